"""Flax NNX model library: one file a family, named by the ``model_type`` of its config.json."""

from dataclasses import dataclass
from typing import Any, Protocol

from flax import nnx
from jax.typing import DTypeLike

from lynx_jax.backends import ExpertBackend
from lynx_jax.errors import InputError
from lynx_jax.models.config import DecoderConfig
from lynx_jax.models.decoder import DecoderForCausalLM
from lynx_jax.models.deepseek_v2 import WEIGHTS as DEEPSEEK_V2_WEIGHTS
from lynx_jax.models.deepseek_v2 import DeepseekV2Config, DeepseekV2ForCausalLM
from lynx_jax.models.deepseek_v3 import WEIGHTS as DEEPSEEK_V3_WEIGHTS
from lynx_jax.models.deepseek_v3 import DeepseekV3Config, DeepseekV3ForCausalLM
from lynx_jax.models.gpt_oss import WEIGHTS as GPT_OSS_WEIGHTS
from lynx_jax.models.gpt_oss import GptOssConfig, GptOssForCausalLM
from lynx_jax.models.llama4_text import WEIGHTS as LLAMA4_WEIGHTS
from lynx_jax.models.llama4_text import Llama4ForCausalLM, Llama4TextConfig
from lynx_jax.models.mixtral import WEIGHTS as MIXTRAL_WEIGHTS
from lynx_jax.models.mixtral import MixtralConfig, MixtralForCausalLM
from lynx_jax.models.olmoe import WEIGHTS as OLMOE_WEIGHTS
from lynx_jax.models.olmoe import OlmoeConfig, OlmoeForCausalLM
from lynx_jax.models.phimoe import WEIGHTS as PHIMOE_WEIGHTS
from lynx_jax.models.phimoe import PhimoeConfig, PhimoeForCausalLM
from lynx_jax.models.qwen2_moe import WEIGHTS as QWEN2_MOE_WEIGHTS
from lynx_jax.models.qwen2_moe import Qwen2MoeConfig, Qwen2MoeForCausalLM
from lynx_jax.models.qwen3_moe import WEIGHTS as QWEN3_MOE_WEIGHTS
from lynx_jax.models.qwen3_moe import Qwen3MoeConfig, Qwen3MoeForCausalLM
from lynx_jax.models.qwen3_vl_moe import WEIGHTS as QWEN3_VL_MOE_WEIGHTS
from lynx_jax.models.qwen3_vl_moe import Qwen3VLMoeConfig
from lynx_jax.models.weights import WeightTable

__all__ = [
    "DecoderConfig",
    "DecoderForCausalLM",
    "DeepseekV2Config",
    "DeepseekV2ForCausalLM",
    "DeepseekV3Config",
    "DeepseekV3ForCausalLM",
    "Family",
    "GptOssConfig",
    "GptOssForCausalLM",
    "Llama4ForCausalLM",
    "Llama4TextConfig",
    "MixtralConfig",
    "MixtralForCausalLM",
    "OlmoeConfig",
    "OlmoeForCausalLM",
    "PhimoeConfig",
    "PhimoeForCausalLM",
    "Qwen2MoeConfig",
    "Qwen2MoeForCausalLM",
    "Qwen3MoeConfig",
    "Qwen3MoeForCausalLM",
    "Qwen3VLMoeConfig",
    "get_family",
]


class ModelClass(Protocol):
    """Builds a family's model; ``config`` is of the family's own class."""

    def __call__(
        self, config: Any, *, backend: ExpertBackend, dtype: DTypeLike = ..., rngs: nnx.Rngs
    ) -> DecoderForCausalLM: ...


@dataclass(frozen=True)
class Family:
    """One architecture: how its config is read, its model is built and its weights are named."""

    config_class: type[DecoderConfig]
    model_class: ModelClass
    weights: WeightTable


_LLAMA4 = Family(Llama4TextConfig, Llama4ForCausalLM, LLAMA4_WEIGHTS)
_FAMILIES = {
    "deepseek_v2": Family(DeepseekV2Config, DeepseekV2ForCausalLM, DEEPSEEK_V2_WEIGHTS),
    "deepseek_v3": Family(DeepseekV3Config, DeepseekV3ForCausalLM, DEEPSEEK_V3_WEIGHTS),
    "gpt_oss": Family(GptOssConfig, GptOssForCausalLM, GPT_OSS_WEIGHTS),
    "llama4": _LLAMA4,
    "llama4_text": _LLAMA4,
    "mixtral": Family(MixtralConfig, MixtralForCausalLM, MIXTRAL_WEIGHTS),
    "olmoe": Family(OlmoeConfig, OlmoeForCausalLM, OLMOE_WEIGHTS),
    "phimoe": Family(PhimoeConfig, PhimoeForCausalLM, PHIMOE_WEIGHTS),
    "qwen2_moe": Family(Qwen2MoeConfig, Qwen2MoeForCausalLM, QWEN2_MOE_WEIGHTS),
    "qwen3_moe": Family(Qwen3MoeConfig, Qwen3MoeForCausalLM, QWEN3_MOE_WEIGHTS),
    "qwen3_vl_moe": Family(Qwen3VLMoeConfig, Qwen3MoeForCausalLM, QWEN3_VL_MOE_WEIGHTS),
}


def get_family(model_type: str) -> Family:
    """The family that a config.json names.

    Raises:
      InputError: the type is not known; the message lists those that are.
    """
    if model_type not in _FAMILIES:
        raise InputError(
            f"model_type {model_type!r} is not supported; expected one of "
            f"{', '.join(sorted(_FAMILIES))}"
        )
    return _FAMILIES[model_type]
