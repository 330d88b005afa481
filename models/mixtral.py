"""Mixtral (arXiv 2401.04088): every layer is a mixture; top-k weights always renormalised."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from lynx_jax.backends import ExpertBackend
from lynx_jax.models.attention import Attention
from lynx_jax.models.config import DecoderConfig
from lynx_jax.models.decoder import DecoderForCausalLM, DecoderLayer
from lynx_jax.models.fields import require
from lynx_jax.models.moe import SparseMoeBlock
from lynx_jax.models.weights import DECODER_ROWS, ExpertStack, WeightTable, linear
from lynx_jax.routers import Router


@dataclasses.dataclass(frozen=True, kw_only=True)
class MixtralConfig(DecoderConfig):
    """Fields of Mixtral's config.json.

    Attributes:
      intermediate_size: width F of one expert.
    """

    hub_names: ClassVar[Mapping[str, tuple[str, ...]]] = {"num_experts": ("num_local_experts",)}

    intermediate_size: int

    def check(self) -> None:
        super().check()
        require(
            self.intermediate_size >= 1,
            "intermediate_size to be at least 1",
            self.intermediate_size,
        )


class MixtralForCausalLM(DecoderForCausalLM):
    """Mixtral with its output head."""

    def __init__(
        self,
        config: MixtralConfig,
        *,
        backend: ExpertBackend,
        dtype: DTypeLike = jnp.bfloat16,
        rngs: nnx.Rngs,
    ) -> None:
        layers = [
            DecoderLayer(
                config,
                Attention(config, window=config.sliding_window, dtype=dtype, rngs=rngs),
                SparseMoeBlock(
                    config,
                    config.intermediate_size,
                    router=Router("softmax", "renormalize"),
                    backend=backend,
                    dtype=dtype,
                    rngs=rngs,
                ),
                dtype=dtype,
                rngs=rngs,
            )
            for _ in range(config.num_hidden_layers)
        ]
        super().__init__(config, layers, dtype=dtype, rngs=rngs)


WEIGHTS = WeightTable(
    (
        *DECODER_ROWS,
        linear(
            "layers.{i}.mlp.gate",
            "model.layers.{i}.block_sparse_moe.gate",
            "model.layers.{i}.mlp.gate",
        ),
        ExpertStack(
            "layers.{i}.mlp.experts.gate_up_proj",
            fused="model.layers.{i}.mlp.experts.gate_up_proj",
            per_expert=(
                "model.layers.{i}.block_sparse_moe.experts.{e}.w1.weight",
                "model.layers.{i}.block_sparse_moe.experts.{e}.w3.weight",
            ),
        ),
        ExpertStack(
            "layers.{i}.mlp.experts.down_proj",
            fused="model.layers.{i}.mlp.experts.down_proj",
            per_expert=("model.layers.{i}.block_sparse_moe.experts.{e}.w2.weight",),
        ),
    )
)
