"""Qwen3-MoE (arXiv 2505.09388): per-head query and key norms, some layers may be dense."""

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
from lynx_jax.models.layers import MLP
from lynx_jax.models.moe import SparseMoeBlock
from lynx_jax.models.weights import DECODER_ROWS, ExpertStack, WeightTable, linear, norm
from lynx_jax.routers import Router


@dataclasses.dataclass(frozen=True, kw_only=True)
class Qwen3MoeConfig(DecoderConfig):
    """Fields of Qwen3-MoE's config.json.

    Attributes:
      moe_intermediate_size: width F of one expert.
      intermediate_size: hidden width of a dense layer.
      norm_topk_prob: divide the k weights by their sum; the published models say true, and the
        default of their config class is false, so the field is needed.
      decoder_sparse_step: every so many layers one is a mixture.
      mlp_only_layers: indices of layers that are dense whatever the step says.
      use_sliding_window: whether sliding_window is in force.
      attention_bias: must be false; the published models have none.
    """

    # Transformers 5 saves the published num_experts under Mixtral's name.
    hub_names: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "num_experts": ("num_experts", "num_local_experts")
    }

    moe_intermediate_size: int
    norm_topk_prob: bool
    intermediate_size: int = 0
    decoder_sparse_step: int = 1
    mlp_only_layers: tuple[int, ...] = ()
    use_sliding_window: bool = False
    attention_bias: bool = False

    def __post_init__(self) -> None:
        if not self.use_sliding_window:
            object.__setattr__(self, "sliding_window", None)

    def check(self) -> None:
        super().check()
        require(not self.attention_bias, "attention_bias false for qwen3_moe", True)
        require(
            self.moe_intermediate_size >= 1,
            "moe_intermediate_size to be at least 1",
            self.moe_intermediate_size,
        )
        step = self.decoder_sparse_step
        require(step >= 1, "decoder_sparse_step to be at least 1", step)
        dense = not all(map(self.is_sparse, range(self.num_hidden_layers)))
        require(
            self.intermediate_size >= 1 or not dense,
            "intermediate_size of at least 1, for the dense layers",
            self.intermediate_size,
        )

    def is_sparse(self, layer: int) -> bool:
        """Whether the layer of this index is a mixture."""
        return layer not in self.mlp_only_layers and (layer + 1) % self.decoder_sparse_step == 0


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
        router=Router("softmax", "renormalize" if config.norm_topk_prob else "keep_sum"),
        backend=backend,
        dtype=dtype,
        rngs=rngs,
    )


WEIGHTS = WeightTable(
    (
        *DECODER_ROWS,
        norm("layers.{i}.self_attn.q_norm", "model.layers.{i}.self_attn.q_norm"),
        norm("layers.{i}.self_attn.k_norm", "model.layers.{i}.self_attn.k_norm"),
        linear("layers.{i}.mlp.gate", "model.layers.{i}.mlp.gate"),
        ExpertStack(
            "layers.{i}.mlp.experts.gate_up_proj",
            fused="model.layers.{i}.mlp.experts.gate_up_proj",
            per_expert=(
                "model.layers.{i}.mlp.experts.{e}.gate_proj.weight",
                "model.layers.{i}.mlp.experts.{e}.up_proj.weight",
            ),
        ),
        ExpertStack(
            "layers.{i}.mlp.experts.down_proj",
            fused="model.layers.{i}.mlp.experts.down_proj",
            per_expert=("model.layers.{i}.mlp.experts.{e}.down_proj.weight",),
        ),
        # Dense layers.
        linear("layers.{i}.mlp.gate_proj", "model.layers.{i}.mlp.gate_proj"),
        linear("layers.{i}.mlp.up_proj", "model.layers.{i}.mlp.up_proj"),
        linear("layers.{i}.mlp.down_proj", "model.layers.{i}.mlp.down_proj"),
    )
)
