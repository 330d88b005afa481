"""The tiny checkpoints and the cases that are made of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from golden_recipe.configs import (
    DEEPSEEK_V2,
    DEEPSEEK_V2_LITE,
    DEEPSEEK_V3,
    GPT_OSS,
    MIXTRAL,
    OLMOE,
    PHIMOE,
    QWEN2,
    QWEN3,
    QWEN3_60,
    QWEN3_DENSE,
)
from golden_recipe.llama4 import LLAMA4, LLAMA4_TEXT
from golden_recipe.old_configs import (
    old_deepseek_v3,
    old_gpt_oss,
    old_llama4,
    old_mixtral,
    old_olmoe,
    old_phimoe,
    old_qwen2,
    old_qwen3,
    old_qwen3_vl,
    short_window,
    unnormalized,
)
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


def _mixtral(name: str, **saved: Any) -> Checkpoint:
    return Checkpoint(name, "MixtralConfig", MIXTRAL, "mixtral", "byte_fallback", **saved)


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
    _qwen3("qwen3_moe", QWEN3, "qwen3_moe", max_shard_size="180KB"),
    _qwen3("qwen3_moe_fused", QWEN3, "qwen3_moe", fused=True),
    _qwen3("qwen3_moe_dense", QWEN3_DENSE, "qwen3_moe_dense"),
    _qwen3("qwen3_moe_60", QWEN3_60, "qwen3_moe_60"),
    _qwen3_vl("qwen3_vl_moe", flipped=True),
    _qwen3_vl("qwen3_vl_moe_fused"),
    _deepseek("deepseek_v2", "DeepseekV2Config", DEEPSEEK_V2, bfloat16=True),
    _deepseek("deepseek_v2_lite", "DeepseekV2Config", DEEPSEEK_V2_LITE, bfloat16=True),
    _deepseek("deepseek_v3", "DeepseekV3Config", DEEPSEEK_V3),
    Checkpoint("qwen2_moe", "Qwen2MoeConfig", QWEN2, "qwen2_moe", None),
    Checkpoint("olmoe", "OlmoeConfig", OLMOE, "olmoe", None),
    Checkpoint("phimoe", "PhimoeConfig", PHIMOE, "phimoe", None),
    _bfloat16("llama4_text", "Llama4TextConfig", LLAMA4_TEXT),
    _bfloat16("llama4", "Llama4Config", LLAMA4, auto_class="AutoModelForImageTextToText"),
    _bfloat16("gpt_oss", "GptOssConfig", GPT_OSS),
)


CASES = (
    Case("mixtral", "mixtral", "mixtral"),
    Case("mixtral_fused", "mixtral_fused", "mixtral"),
    Case("mixtral_old_config", "mixtral", "mixtral", old_mixtral),
    Case("mixtral_window", "mixtral", "mixtral_window", short_window),
    Case("mixtral_bf16", "mixtral_bf16", "mixtral_bf16"),
    Case("qwen3_moe", "qwen3_moe", "qwen3_moe"),
    Case("qwen3_moe_fused", "qwen3_moe_fused", "qwen3_moe"),
    Case("qwen3_moe_old_config", "qwen3_moe", "qwen3_moe", old_qwen3),
    Case("qwen3_moe_unnormalized", "qwen3_moe", "qwen3_moe_unnormalized", unnormalized),
    Case("qwen3_moe_dense", "qwen3_moe_dense", "qwen3_moe_dense"),
    Case("qwen3_moe_60", "qwen3_moe_60", "qwen3_moe_60"),
    Case("qwen3_vl_moe", "qwen3_vl_moe", "qwen3_vl_moe"),
    Case("qwen3_vl_moe_fused", "qwen3_vl_moe_fused", "qwen3_vl_moe"),
    Case("qwen3_vl_moe_old_config", "qwen3_vl_moe", "qwen3_vl_moe", old_qwen3_vl),
    Case("deepseek_v2", "deepseek_v2", "deepseek_v2"),
    Case("deepseek_v2_lite", "deepseek_v2_lite", "deepseek_v2_lite"),
    Case("deepseek_v3", "deepseek_v3", "deepseek_v3"),
    Case("deepseek_v3_old_config", "deepseek_v3", "deepseek_v3", old_deepseek_v3),
    Case("qwen2_moe", "qwen2_moe", "qwen2_moe"),
    Case("qwen2_moe_old_config", "qwen2_moe", "qwen2_moe_full_attention", old_qwen2),
    Case("olmoe", "olmoe", "olmoe"),
    Case("olmoe_old_config", "olmoe", "olmoe_unclipped", old_olmoe),
    Case("phimoe", "phimoe", "phimoe"),
    Case("phimoe_old_config", "phimoe", "phimoe", old_phimoe),
    Case("llama4_text", "llama4_text", "llama4_text"),
    Case("llama4_text_old_config", "llama4_text", "llama4_text", old_llama4),
    Case("llama4", "llama4", "llama4"),
    Case("gpt_oss", "gpt_oss", "gpt_oss"),
    Case("gpt_oss_old_config", "gpt_oss", "gpt_oss", old_gpt_oss),
)
