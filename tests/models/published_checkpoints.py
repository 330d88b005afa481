"""The published checkpoints that the families cover; see ``published`` for what stands in them."""

from typing import Any

from tests.models.published import (
    Published,
    block_fp8,
    deepseek,
    deepseek_v3,
    gpt_oss,
    llama4,
    mixtral,
    olmoe,
    phimoe,
    qwen2_moe,
    qwen3_moe,
    qwen3_vl_moe,
)


def _config(
    model_type: str,
    *,
    width: int,
    layers: int,
    heads: int,
    kv_heads: int,
    vocab: int,
    eps: float = 1e-6,
    **fields: Any,
) -> dict[str, Any]:
    return {
        "model_type": model_type,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
        "rms_norm_eps": eps,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        **fields,
    }


def _mixtral(*, width: int, layers: int, heads: int, hidden: int, context: int) -> dict[str, Any]:
    return _config(
        "mixtral",
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=8,
        vocab=32000,
        eps=1e-5,
        intermediate_size=hidden,
        num_local_experts=8,
        num_experts_per_tok=2,
        max_position_embeddings=context,
        rope_theta=1e6,
        sliding_window=None,
    )


_QWEN2 = {
    "num_experts_per_tok": 8,
    "norm_topk_prob": False,
    "decoder_sparse_step": 1,
    "rope_theta": 1e6,
    "sliding_window": 32768,
    "max_window_layers": 21,
    "use_sliding_window": False,
}
_QWEN15_MOE = _config(
    "qwen2_moe", width=2048, layers=24, heads=16, kv_heads=16, vocab=151936, **_QWEN2
) | {
    "num_experts": 60,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 1408,
    "intermediate_size": 5632,
    "shared_expert_intermediate_size": 5632,
    "max_position_embeddings": 8192,
}
_QWEN2_57B = _config(
    "qwen2_moe", width=3584, layers=28, heads=28, kv_heads=4, vocab=151936, **_QWEN2
) | {
    "num_experts": 64,
    "moe_intermediate_size": 2560,
    "intermediate_size": 18944,
    "shared_expert_intermediate_size": 20480,
    "max_position_embeddings": 131072,
}


def _qwen3(*, width: int, layers: int, heads: int, hidden: int, dense: int) -> dict[str, Any]:
    return _config(
        "qwen3_moe",
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=4,
        vocab=151936,
        head_dim=128,
        num_experts=128,
        num_experts_per_tok=8,
        moe_intermediate_size=hidden,
        intermediate_size=dense,
        norm_topk_prob=True,
        decoder_sparse_step=1,
        mlp_only_layers=[],
        max_position_embeddings=40960,
        rope_theta=1e6,
        rope_scaling=None,
        sliding_window=None,
        use_sliding_window=False,
    )


_QWEN3_30B = _qwen3(width=2048, layers=48, heads=32, hidden=768, dense=6144)
_QWEN3_235B = _qwen3(width=4096, layers=94, heads=64, hidden=1536, dense=12288)


def _qwen3_vl(text: dict[str, Any]) -> dict[str, Any]:
    """Around the sizes of a text model; the head's tie stands outside the text part."""
    text = text | {
        "model_type": "qwen3_vl_moe_text",
        "max_position_embeddings": 262144,
        "rope_theta": 5e6,
        "rope_scaling": {
            "rope_type": "default",
            "mrope_interleaved": True,
            "mrope_section": [24, 20, 20],
        },
    }
    for name in ("tie_word_embeddings", "sliding_window", "use_sliding_window"):
        text.pop(name, None)
    return {"model_type": "qwen3_vl_moe", "text_config": text, "tie_word_embeddings": False}


_OLMOE = _config("olmoe", width=2048, layers=16, heads=16, kv_heads=16, vocab=50304, eps=1e-5) | {
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "intermediate_size": 1024,
    "norm_topk_prob": False,
    "clip_qkv": None,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
}


def _deepseek(
    model_type: str, *, width: int, layers: int, heads: int, mscale: float, **fields: Any
) -> dict[str, Any]:
    scaling = {
        "type": "yarn",
        "factor": 40,
        "original_max_position_embeddings": 4096,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": mscale,
        "mscale_all_dim": mscale,
    }
    return _config(
        model_type,
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=heads,
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
        moe_layer_freq=1,
        max_position_embeddings=163840,
        rope_theta=10000,
        rope_scaling=scaling,
        **fields,
    )


_V2_LITE = _deepseek("deepseek_v2", width=2048, layers=27, heads=16, mscale=0.707, vocab=102400) | {
    "q_lora_rank": None,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 1408,
    "intermediate_size": 10944,
    "first_k_dense_replace": 1,
    "scoring_func": "softmax",
    "topk_method": "greedy",
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": False,
    "routed_scaling_factor": 1.0,
}
_V2 = _deepseek("deepseek_v2", width=5120, layers=60, heads=128, mscale=0.707, vocab=102400) | {
    "q_lora_rank": 1536,
    "n_routed_experts": 160,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 1536,
    "intermediate_size": 12288,
    "first_k_dense_replace": 1,
    "scoring_func": "softmax",
    "topk_method": "group_limited_greedy",
    "n_group": 8,
    "topk_group": 3,
    "norm_topk_prob": False,
    "routed_scaling_factor": 16.0,
}
_V3 = _deepseek("deepseek_v3", width=7168, layers=61, heads=128, mscale=1.0, vocab=129280) | {
    "q_lora_rank": 1536,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "intermediate_size": 18432,
    "first_k_dense_replace": 3,
    "num_nextn_predict_layers": 1,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "n_group": 8,
    "topk_group": 4,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
}
_FP8 = {
    "quantization_config": {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
    }
}


def _llama4(*, experts: int, step: int, qk_norm: bool, **fields: Any) -> dict[str, Any]:
    text = _config(
        "llama4_text",
        width=5120,
        layers=48,
        heads=40,
        kv_heads=8,
        vocab=202048,
        eps=1e-5,
        head_dim=128,
        intermediate_size=8192,
        intermediate_size_mlp=16384,
        num_local_experts=experts,
        num_experts_per_tok=1,
        interleave_moe_layer_step=step,
        attention_chunk_size=8192,
        use_qk_norm=qk_norm,
        rope_theta=500000.0,
        **fields,
    )
    return {"model_type": "llama4", "text_config": text, "vision_config": {}}


_SCOUT = _llama4(
    experts=16,
    step=1,
    qk_norm=True,
    max_position_embeddings=10485760,
    rope_scaling={
        "rope_type": "llama3",
        "factor": 16.0,
        "high_freq_factor": 1.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
    },
)
_MAVERICK = _llama4(experts=128, step=2, qk_norm=False, max_position_embeddings=1048576)


def _gpt_oss(*, layers: int, experts: int) -> dict[str, Any]:
    return _config(
        "gpt_oss",
        width=2880,
        layers=layers,
        heads=64,
        kv_heads=8,
        vocab=201088,
        eps=1e-5,
        head_dim=64,
        intermediate_size=2880,
        num_local_experts=experts,
        num_experts_per_tok=4,
        max_position_embeddings=131072,
        sliding_window=128,
        layer_types=["sliding_attention", "full_attention"] * (layers // 2),
        attention_bias=True,
        swiglu_limit=7.0,
        rope_theta=150000,
        rope_scaling={
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "original_max_position_embeddings": 4096,
            "truncate": False,
        },
        quantization_config={
            "quant_method": "mxfp4",
            "modules_to_not_convert": [
                "model.layers.*.self_attn",
                "model.layers.*.mlp.router",
                "model.embed_tokens",
                "lm_head",
            ],
        },
    )


_PHI = _config("phimoe", width=4096, layers=32, heads=32, kv_heads=8, vocab=32064, eps=1e-5) | {
    "intermediate_size": 6400,
    "num_local_experts": 16,
    "num_experts_per_tok": 2,
    "attention_bias": True,
    "lm_head_bias": True,
    "max_position_embeddings": 131072,
    "original_max_position_embeddings": 4096,
    "rope_theta": 10000.0,
    "rope_scaling": {
        "type": "longrope",
        "short_factor": [1.0] * 64,
        "long_factor": [4.0] * 64,
        "short_mscale": 1.243163121016122,
        "long_mscale": 1.243163121016122,
        "original_max_position_embeddings": 4096,
    },
    "router_jitter_noise": 0.01,
    "sliding_window": 131072,
}

CHECKPOINTS = {
    "Mixtral-8x7B": Published(
        _mixtral(width=4096, layers=32, heads=32, hidden=14336, context=32768),
        46_702_792_704,
        mixtral,
    ),
    "Mixtral-8x22B": Published(
        _mixtral(width=6144, layers=56, heads=48, hidden=16384, context=65536),
        140_620_634_112,
        mixtral,
    ),
    "Qwen1.5-MoE-A2.7B": Published(_QWEN15_MOE, 14_315_784_192, qwen2_moe),
    "Qwen2-57B-A14B": Published(_QWEN2_57B, 57_408_658_944, qwen2_moe),
    "Qwen3-30B-A3B": Published(_QWEN3_30B, 30_532_122_624, qwen3_moe),
    "Qwen3-30B-A3B-FP8": Published(
        _QWEN3_30B | _FP8, 30_532_122_624, block_fp8("BF16")(qwen3_moe), elements=30_533_947_392
    ),
    "Qwen3-235B-A22B": Published(_QWEN3_235B, 235_093_634_560, qwen3_moe),
    "Qwen3-VL-30B-A3B": Published(
        _qwen3_vl(_QWEN3_30B), 30_532_122_624, qwen3_vl_moe, elements=31_070_754_032
    ),
    "Qwen3-VL-235B-A22B": Published(
        _qwen3_vl(_QWEN3_235B), 235_093_634_560, qwen3_vl_moe, elements=235_670_022_896
    ),
    "DeepSeek-V2-Lite": Published(_V2_LITE, 15_706_484_224, deepseek),
    "DeepSeek-V2": Published(_V2, 235_741_434_880, deepseek),
    "DeepSeek-V3": Published(
        _V3 | _FP8, 671_026_419_200, deepseek_v3, elements=684_531_386_000, tensors=91_991
    ),
    "OLMoE-1B-7B": Published(_OLMOE, 6_919_161_856, olmoe, tensors=3_219),
    "Llama-4-Scout": Published(_SCOUT, 107_769_861_120, llama4, elements=108_641_793_536),
    "Llama-4-Maverick": Published(_MAVERICK, 400_711_848_960, llama4, elements=401_583_781_376),
    "gpt-oss-20b": Published(
        _gpt_oss(layers=24, experts=32), 20_914_757_184, gpt_oss, elements=21_511_953_984
    ),
    "gpt-oss-120b": Published(
        _gpt_oss(layers=36, experts=128), 116_829_156_672, gpt_oss, elements=120_412_337_472
    ),
    "Phi-3.5-MoE": Published(_PHI, 41_873_153_344, phimoe),
}
