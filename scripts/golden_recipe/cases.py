"""The tiny checkpoints and the cases that are made of them.

In each checkpoint all dimensions differ from one another, so that none can be taken for another:
vocabulary, hidden size, heads x head_dim, key-value heads x head_dim, I, 2I, N, k, layers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from golden_recipe.llama4 import LLAMA4, LLAMA4_TEXT
from golden_recipe.qwen3_vl import QWEN3_VL

ROWS, TOKENS = 5, 18


@dataclass(frozen=True)
class Checkpoint:
    """A folder that transformers saves.

    Attributes:
      name: the folder.
      config_class: name of the transformers config class.
      config: its arguments.
      seed_name: checkpoints with one seed name hold the same weights.
      tokenizer: which tokenizer stands in the folder; None for none.
      fused: save the experts stacked, as transformers 5 holds them, not in the published layout.
      bfloat16: save in bfloat16, else in float32.
      max_shard_size: passed to ``save_pretrained``.
      auto_class: name of the transformers class that makes the model.
      flipped: save fused experts as inputs by outputs, as Qwen3-VL-MoE is published; transformers
        saves them as outputs by inputs.
    """

    name: str
    config_class: str
    config: Mapping[str, Any]
    seed_name: str
    tokenizer: str | None
    fused: bool = False
    bfloat16: bool = False
    max_shard_size: str = "50GB"
    auto_class: str = "AutoModelForCausalLM"
    flipped: bool = False


@dataclass(frozen=True)
class Case:
    """A checkpoint, read with its own config.json or a changed one, and the numbers expected.

    Attributes:
      name: the case.
      folder: the checkpoint's folder.
      expected: which file of outputs holds; several cases may share one.
      change: makes the case's config.json out of the checkpoint's, in place; None for its own.
    """

    name: str
    folder: str
    expected: str
    change: Callable[[dict[str, Any]], None] | None = field(default=None)


def _rope(theta: float) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": theta}


_MIXTRAL = {
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

_QWEN3 = {
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
_QWEN3_DENSE = _QWEN3 | {
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

_QWEN3_60 = _QWEN3 | {
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
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 4.0,
    "original_max_position_embeddings": 12,
    "beta_fast": 1.5,
    "beta_slow": 0.25,
    "mscale": 0.707,
    "mscale_all_dim": 0.9,
}

_DEEPSEEK_V2 = {
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
    "rope_parameters": _YARN,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

_DEEPSEEK_V2_LITE = _DEEPSEEK_V2 | {
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
    "rope_parameters": _YARN | {"mscale": 0.707, "mscale_all_dim": 0.707},
}

_DEEPSEEK_V3 = {
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
    "rope_parameters": _YARN | {"mscale": 1.0, "mscale_all_dim": 1.0},
    "num_mtp_layers": 1,
    "bos_token_id": 0,
    "eos_token_id": 1,
}

# Layer 1 is dense; layers 0 and 2 have a window.
_QWEN2 = {
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
_OLMOE = {
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
_GPT_OSS = {
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
_PHIMOE = {
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


def _mixtral(name: str, **saved: Any) -> Checkpoint:
    return Checkpoint(name, "MixtralConfig", _MIXTRAL, "mixtral", "byte_fallback", **saved)


def _qwen3(name: str, config: Mapping[str, Any], seed_name: str, **saved: Any) -> Checkpoint:
    return Checkpoint(name, "Qwen3MoeConfig", config, seed_name, "byte_level", **saved)


def _qwen3_vl(name: str, **saved: Any) -> Checkpoint:
    return Checkpoint(
        name,
        "Qwen3VLMoeConfig",
        QWEN3_VL,
        "qwen3_vl_moe",
        None,
        bfloat16=True,
        auto_class="AutoModelForImageTextToText",
        **saved,
    )


def _deepseek(name: str, config_class: str, config: Mapping[str, Any], **saved: Any) -> Checkpoint:
    return Checkpoint(name, config_class, config, name, "byte_level", **saved)


def _bfloat16(name: str, config_class: str, config: Mapping[str, Any], **saved: Any) -> Checkpoint:
    return Checkpoint(name, config_class, config, name, "byte_level", bfloat16=True, **saved)


CHECKPOINTS = (
    _mixtral("mixtral"),
    _mixtral("mixtral_fused", fused=True),
    _mixtral("mixtral_bf16", bfloat16=True),
    _qwen3("qwen3_moe", _QWEN3, "qwen3_moe", max_shard_size="180KB"),
    _qwen3("qwen3_moe_fused", _QWEN3, "qwen3_moe", fused=True),
    _qwen3("qwen3_moe_dense", _QWEN3_DENSE, "qwen3_moe_dense"),
    _qwen3("qwen3_moe_60", _QWEN3_60, "qwen3_moe_60"),
    _qwen3_vl("qwen3_vl_moe", flipped=True),
    _qwen3_vl("qwen3_vl_moe_fused"),
    _deepseek("deepseek_v2", "DeepseekV2Config", _DEEPSEEK_V2, bfloat16=True),
    _deepseek("deepseek_v2_lite", "DeepseekV2Config", _DEEPSEEK_V2_LITE, bfloat16=True),
    _deepseek("deepseek_v3", "DeepseekV3Config", _DEEPSEEK_V3),
    Checkpoint("qwen2_moe", "Qwen2MoeConfig", _QWEN2, "qwen2_moe", None),
    Checkpoint("olmoe", "OlmoeConfig", _OLMOE, "olmoe", None),
    Checkpoint("phimoe", "PhimoeConfig", _PHIMOE, "phimoe", None),
    _bfloat16("llama4_text", "Llama4TextConfig", LLAMA4_TEXT),
    _bfloat16("llama4", "Llama4Config", LLAMA4, auto_class="AutoModelForImageTextToText"),
    _bfloat16("gpt_oss", "GptOssConfig", _GPT_OSS),
)


def _old_fields(config: dict[str, Any]) -> None:
    """The form of transformers 4: rope_theta and torch_dtype."""
    config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
    config["torch_dtype"] = config.pop("dtype")
    config["transformers_version"] = "4.51.0"


def _old_mixtral(config: dict[str, Any]) -> None:
    _old_fields(config)
    config["sliding_window"] = None


def _old_qwen3(config: dict[str, Any]) -> None:
    """As published: a window that is not in use, and an explicit absence of rope scaling.

    Transformers 5 writes ``num_local_experts``, where the published files have ``num_experts``.
    """
    _old_fields(config)
    config["num_experts"] = config.pop("num_local_experts")
    config |= {
        "rope_scaling": None,
        "sliding_window": 4,
        "use_sliding_window": False,
        "max_window_layers": 4,
    }


def _old_qwen3_vl(config: dict[str, Any]) -> None:
    """As published: the text part says nothing of ties."""
    text = config["text_config"]
    text["rope_scaling"] = rope = text.pop("rope_parameters")
    text["rope_theta"] = rope.pop("rope_theta")
    text["num_experts"] = text.pop("num_local_experts")
    text["norm_topk_prob"] = True
    del text["tie_word_embeddings"]
    config["transformers_version"] = "4.57.0"


def _old_deepseek_v3(config: dict[str, Any]) -> None:
    """As published: scaling beside the base, and the rule of the router named."""
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = {"type": rope.pop("rope_type"), **rope}
    config["torch_dtype"] = config.pop("dtype")
    for name in ("head_dim", "qk_head_dim", "rope_interleave"):
        config.pop(name, None)
    config |= {
        "transformers_version": "4.33.1",
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "moe_layer_freq": 1,
        "ep_size": 1,
        "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"},
    }


def _old_qwen2(config: dict[str, Any]) -> None:
    """As published: no types of layers, and a window that is not in use."""
    _old_fields(config)
    config |= {"use_sliding_window": False, "max_window_layers": 3}
    for name in ("layer_types", "qkv_bias"):
        del config[name]


def _old_olmoe(config: dict[str, Any]) -> None:
    """As published: nothing is clipped, and no rope is scaled."""
    _old_fields(config)
    config |= {"clip_qkv": None, "rope_scaling": None}


def _old_phimoe(config: dict[str, Any]) -> None:
    """As published: scaling beside the base, its original context outside, code in the folder."""
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["original_max_position_embeddings"] = rope["original_max_position_embeddings"]
    config["rope_scaling"] = {"type": rope.pop("rope_type"), **rope}
    config["torch_dtype"] = config.pop("dtype")
    config["transformers_version"] = "4.43.3"
    config["auto_map"] = {"AutoConfig": "configuration_phimoe.PhiMoEConfig"}


def _short_window(config: dict[str, Any]) -> None:
    config["sliding_window"] = 7


def _unnormalized(config: dict[str, Any]) -> None:
    config["norm_topk_prob"] = False


def _old_scaling(config: dict[str, Any]) -> None:
    """As published: rope scaling beside the base."""
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = rope
    config["torch_dtype"] = config.pop("dtype")


def _old_llama4(config: dict[str, Any]) -> None:
    """Without what the published files leave to the defaults."""
    _old_scaling(config)
    for name in ("layer_types", "moe_layers", "no_rope_layers", "attn_temperature_tuning"):
        del config[name]


def _old_gpt_oss(config: dict[str, Any]) -> None:
    _old_scaling(config)
    for name in ("layer_types", "swiglu_alpha"):
        del config[name]


CASES = (
    Case("mixtral", "mixtral", "mixtral"),
    Case("mixtral_fused", "mixtral_fused", "mixtral"),
    Case("mixtral_old_config", "mixtral", "mixtral", _old_mixtral),
    Case("mixtral_window", "mixtral", "mixtral_window", _short_window),
    Case("mixtral_bf16", "mixtral_bf16", "mixtral_bf16"),
    Case("qwen3_moe", "qwen3_moe", "qwen3_moe"),
    Case("qwen3_moe_fused", "qwen3_moe_fused", "qwen3_moe"),
    Case("qwen3_moe_old_config", "qwen3_moe", "qwen3_moe", _old_qwen3),
    Case("qwen3_moe_unnormalized", "qwen3_moe", "qwen3_moe_unnormalized", _unnormalized),
    Case("qwen3_moe_dense", "qwen3_moe_dense", "qwen3_moe_dense"),
    Case("qwen3_moe_60", "qwen3_moe_60", "qwen3_moe_60"),
    Case("qwen3_vl_moe", "qwen3_vl_moe", "qwen3_vl_moe"),
    Case("qwen3_vl_moe_fused", "qwen3_vl_moe_fused", "qwen3_vl_moe"),
    Case("qwen3_vl_moe_old_config", "qwen3_vl_moe", "qwen3_vl_moe", _old_qwen3_vl),
    Case("deepseek_v2", "deepseek_v2", "deepseek_v2"),
    Case("deepseek_v2_lite", "deepseek_v2_lite", "deepseek_v2_lite"),
    Case("deepseek_v3", "deepseek_v3", "deepseek_v3"),
    Case("deepseek_v3_old_config", "deepseek_v3", "deepseek_v3", _old_deepseek_v3),
    Case("qwen2_moe", "qwen2_moe", "qwen2_moe"),
    Case("qwen2_moe_old_config", "qwen2_moe", "qwen2_moe_full_attention", _old_qwen2),
    Case("olmoe", "olmoe", "olmoe"),
    Case("olmoe_old_config", "olmoe", "olmoe_unclipped", _old_olmoe),
    Case("phimoe", "phimoe", "phimoe"),
    Case("phimoe_old_config", "phimoe", "phimoe", _old_phimoe),
    Case("llama4_text", "llama4_text", "llama4_text"),
    Case("llama4_text_old_config", "llama4_text", "llama4_text", _old_llama4),
    Case("llama4", "llama4", "llama4"),
    Case("gpt_oss", "gpt_oss", "gpt_oss"),
    Case("gpt_oss_old_config", "gpt_oss", "gpt_oss", _old_gpt_oss),
)
