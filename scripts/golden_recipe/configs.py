"""Arguments of the tiny models' config classes.

In each all dimensions differ from one another, so that none can be taken for another: vocabulary,
hidden size, heads x head_dim, key-value heads x head_dim, I, 2I, N, k, layers. Those of Llama 4 and
Qwen3-VL stand in files of their own.
"""

from typing import Any


def _rope(theta: float) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": theta}


MIXTRAL = {
    "vocab_size": 307,
    "hidden_size": 44,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 10,
    "intermediate_size": 26,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 96,
    "rms_norm_eps": 1e-5,
    "rope_parameters": _rope(1e6),
    "bos_token_id": 1,
    "eos_token_id": 2,
}

QWEN3 = {
    "vocab_size": 311,
    "hidden_size": 36,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "intermediate_size": 50,
    "moe_intermediate_size": 14,
    "num_experts": 12,
    "num_experts_per_tok": 3,
    "norm_topk_prob": True,
    "max_position_embeddings": 96,
    "rms_norm_eps": 1e-6,
    "rope_parameters": _rope(1e6),
    "eos_token_id": 2,
    "pad_token_id": 0,
}

# Layers 1 and 5 are sparse: every second one, and 3 is excepted.
QWEN3_DENSE = QWEN3 | {
    "vocab_size": 313,
    "hidden_size": 32,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "head_dim": 12,
    "num_experts": 10,
    "decoder_sparse_step": 2,
    "mlp_only_layers": [3],
    "tie_word_embeddings": True,
    "rope_parameters": _rope(5e5),
}

QWEN3_60 = QWEN3 | {
    "vocab_size": 317,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "head_dim": 8,
    "moe_intermediate_size": 7,
    "num_experts": 60,
    "num_experts_per_tok": 4,
    "rope_parameters": _rope(1e4),
}

# Beyond the original context; a ramp over several rotary pairs; a factor on cosine and sine.
YARN = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 4.0,
    "original_max_position_embeddings": 12,
    "beta_fast": 1.5,
    "beta_slow": 0.25,
    "mscale": 0.707,
    "mscale_all_dim": 0.9,
}

DEEPSEEK_V2 = {
    "vocab_size": 331,
    "hidden_size": 35,
    "num_hidden_layers": 4,
    "num_attention_heads": 7,
    "q_lora_rank": 20,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 12,
    "v_head_dim": 11,
    "intermediate_size": 46,
    "moe_intermediate_size": 13,
    "n_routed_experts": 15,
    "num_experts_per_tok": 4,
    "n_shared_experts": 3,
    "first_k_dense_replace": 2,
    "topk_method": "group_limited_greedy",
    "n_group": 5,
    "topk_group": 2,
    "routed_scaling_factor": 1.7,
    "norm_topk_prob": False,
    "max_position_embeddings": 48,
    "rms_norm_eps": 0.01,  # so that the latent norms' own epsilon tells
    "rope_parameters": YARN,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

DEEPSEEK_V2_LITE = DEEPSEEK_V2 | {
    "vocab_size": 337,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "q_lora_rank": None,
    "first_k_dense_replace": 1,
    "topk_method": "greedy",
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 1.0,
    "rope_parameters": YARN | {"mscale": 0.707, "mscale_all_dim": 0.707},
}

DEEPSEEK_V3 = {
    "vocab_size": 347,
    "hidden_size": 30,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "q_lora_rank": 21,
    "kv_lora_rank": 13,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 10,
    "v_head_dim": 7,
    "intermediate_size": 40,
    "moe_intermediate_size": 11,
    "n_routed_experts": 16,
    "num_experts_per_tok": 5,
    "n_shared_experts": 3,
    "first_k_dense_replace": 2,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 2.5,
    "norm_topk_prob": True,
    "max_position_embeddings": 48,
    "rms_norm_eps": 0.01,
    "rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0},
    "num_mtp_layers": 1,
    "bos_token_id": 0,
    "eos_token_id": 1,
}

# Layer 1 is dense; layers 0 and 2 have a window.
QWEN2 = {
    "vocab_size": 151,
    "hidden_size": 28,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 38,
    "moe_intermediate_size": 13,
    "shared_expert_intermediate_size": 21,
    "num_experts": 9,
    "num_experts_per_tok": 3,
    "norm_topk_prob": False,
    "mlp_only_layers": [1],
    "use_sliding_window": True,
    "sliding_window": 6,
    "max_window_layers": 3,
    "max_position_embeddings": 96,
    "rms_norm_eps": 1e-6,
    "rope_parameters": _rope(1e6),
    "eos_token_id": 2,
}

# The norms cover 40 query values and 20 key values; some values are clipped.
OLMOE = {
    "vocab_size": 139,
    "hidden_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 7,
    "num_experts": 13,
    "num_experts_per_tok": 5,
    "norm_topk_prob": False,
    "clip_qkv": 1.5,
    "tie_word_embeddings": True,
    "max_position_embeddings": 96,
    "rms_norm_eps": 1e-5,
    "rope_parameters": _rope(1e4),
    "pad_token_id": 1,
    "eos_token_id": 2,
}

# Layers 0 and 2 slide; positions go beyond the original context of yarn. Inputs of the experts come
# in blocks of 32, as mxfp4 needs them.
GPT_OSS = {
    "vocab_size": 353,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 10,
    "intermediate_size": 64,
    "num_local_experts": 7,
    "num_experts_per_tok": 4,
    "sliding_window": 7,
    "max_position_embeddings": 96,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 150.0,
        "factor": 8.0,
        "beta_fast": 2.0,
        "beta_slow": 0.25,
        "truncate": False,
        "original_max_position_embeddings": 12,
    },
    "eos_token_id": 2,
    "pad_token_id": 0,
}


# Within the original context, which is what the reference computes right.
PHIMOE = {
    "vocab_size": 149,
    "hidden_size": 33,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 8,
    "intermediate_size": 13,
    "num_local_experts": 7,
    "num_experts_per_tok": 2,
    "router_jitter_noise": 0.15,  # so wide that weights are not all 1
    "attention_bias": True,
    "lm_head_bias": True,
    "sliding_window": 11,
    "max_position_embeddings": 96,
    "rms_norm_eps": 1e-3,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0, 1.5, 2.25, 3.5],
        "long_factor": [2.0, 4.0, 6.0, 9.0],
        "short_mscale": 1.25,
        "long_mscale": 1.5,
        "original_max_position_embeddings": 32,
    },
    "bos_token_id": 1,
    "eos_token_id": 2,
}
