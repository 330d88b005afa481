"""Qwen3-MoE (arXiv 2505.09388): per-head query and key norms, some layers may be dense."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from lynx_jax.backends import ExpertBackend
from lynx_jax.models.attention import Attention
from lynx_jax.models.decoder import DecoderForCausalLM, DecoderLayer
from lynx_jax.models.fields import require
from lynx_jax.models.layers import MLP
from lynx_jax.models.moe import SparseMoeBlock
from lynx_jax.models.qwen_config import QwenMoeConfig
from lynx_jax.models.weights import DECODER_ROWS, MIXTURE_ROWS, WeightTable, mlp_rows, norm


@dataclasses.dataclass(frozen=True, kw_only=True)
class Qwen3MoeConfig(QwenMoeConfig):
    """Fields of Qwen3-MoE's config.json.

    norm_topk_prob has no default: the published models say true, their config class false.

    Attributes:
      attention_bias: must be false; the published models have none.
    """

    # Transformers 5 saves the published num_experts under Mixtral's name.
    hub_names: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "num_experts": ("num_experts", "num_local_experts")
    }

    attention_bias: bool = False

    def check(self) -> None:
        super().check()
        require(not self.attention_bias, "attention_bias false for qwen3_moe", True)


class Qwen3MoeForCausalLM(DecoderForCausalLM):
    """Qwen3-MoE with its output head."""

    def __init__(
        self,
        config: Qwen3MoeConfig,
        *,
        backend: ExpertBackend,
        dtype: DTypeLike = jnp.bfloat16,
        rngs: nnx.Rngs,
    ) -> None:
        layers = [
            DecoderLayer(
                config,
                Attention(
                    config,
                    window=config.sliding_window,
                    qk_norm="head",
                    dtype=dtype,
                    rngs=rngs,
                ),
                _mlp(config, index, backend=backend, dtype=dtype, rngs=rngs),
                dtype=dtype,
                rngs=rngs,
            )
            for index in range(config.num_hidden_layers)
        ]
        super().__init__(config, layers, dtype=dtype, rngs=rngs)


def _mlp(
    config: Qwen3MoeConfig,
    index: int,
    *,
    backend: ExpertBackend,
    dtype: DTypeLike,
    rngs: nnx.Rngs,
) -> SparseMoeBlock | MLP:
    if not config.is_sparse(index):
        return MLP(config.hidden_size, config.intermediate_size, dtype=dtype, rngs=rngs)
    return SparseMoeBlock(
        config,
        config.moe_intermediate_size,
        router=config.router,
        backend=backend,
        dtype=dtype,
        rngs=rngs,
    )


WEIGHTS = WeightTable(
    (
        *DECODER_ROWS,
        norm("layers.{i}.self_attn.q_norm", "model.layers.{i}.self_attn.q_norm"),
        norm("layers.{i}.self_attn.k_norm", "model.layers.{i}.self_attn.k_norm"),
        *MIXTURE_ROWS,
        *mlp_rows("layers.{i}.mlp", "model.layers.{i}.mlp"),  # dense layers
    )
)
