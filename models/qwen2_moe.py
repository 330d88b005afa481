"""Qwen1.5-MoE and Qwen2-MoE (arXiv 2407.10671, section 2.2.2): a gated expert for every token."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from lynx_jax.backends import ExpertBackend
from lynx_jax.models.attention import Attention
from lynx_jax.models.decoder import DecoderForCausalLM, DecoderLayer
from lynx_jax.models.fields import require
from lynx_jax.models.layers import MLP, Linear
from lynx_jax.models.moe import SparseMoeBlock
from lynx_jax.models.qwen_config import QwenMoeConfig
from lynx_jax.models.weights import (
    DECODER_ROWS,
    MIXTURE_ROWS,
    Weight,
    WeightTable,
    linear,
    mlp_rows,
)

_FULL, _SLIDING = "full_attention", "sliding_attention"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Qwen2MoeConfig(QwenMoeConfig):
    """Fields of Qwen2-MoE's config.json.

    Attributes:
      shared_expert_intermediate_size: hidden width of the expert that every token uses.
      norm_topk_prob: divide the k weights by their sum; the published models do not.
      qkv_bias: queries, keys and values have biases.
      layer_types: which layers have a window; where it is absent, those of even index below
        max_window_layers have one if use_sliding_window says so.
      max_window_layers: the first layers, of which every second one may have a window.
    """

    shared_expert_intermediate_size: int
    norm_topk_prob: bool = False
    qkv_bias: bool = True
    layer_types: tuple[str, ...] = ()
    max_window_layers: int | None = None

    def check(self) -> None:
        super().check()
        require(
            self.shared_expert_intermediate_size >= 1,
            "shared_expert_intermediate_size to be at least 1",
            self.shared_expert_intermediate_size,
        )
        self._check_windows()

    def _check_windows(self) -> None:
        kinds, layers, window = self.layer_types, self.num_hidden_layers, self.sliding_window
        if not kinds:
            require(
                window is None or self.max_window_layers is not None,
                "max_window_layers or layer_types where use_sliding_window is true",
                "neither",
            )
            return
        unknown = next((kind for kind in kinds if kind not in (_FULL, _SLIDING)), None)
        require(unknown is None, f"layer_types {_FULL!r} or {_SLIDING!r}", repr(unknown))
        require(len(kinds) == layers, f"layer_types of {layers} layers", len(kinds))
        require(
            window is not None or _SLIDING not in kinds,
            f"use_sliding_window and a sliding_window where layer_types has {_SLIDING!r}",
            "none in force",
        )

    def window(self, layer: int) -> int | None:
        """The sliding window of the layer of this index; None for full attention."""
        if self.layer_types:
            slides = self.layer_types[layer] == _SLIDING
        else:
            slides = layer % 2 == 0 and layer < (self.max_window_layers or 0)
        return self.sliding_window if slides else None


class GatedMLP(MLP):
    """Dense SwiGLU layer whose output each token scales by a sigmoid of its own."""

    def __init__(self, width: int, hidden: int, *, dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        super().__init__(width, hidden, dtype=dtype, rngs=rngs)
        self.gate = Linear(width, 1, dtype=dtype, rngs=rngs)

    def __call__(self, x: Float[Array, "*batch width"]) -> Float[Array, "*batch width"]:
        return jax.nn.sigmoid(self.gate(x)) * super().__call__(x)


class Qwen2MoeForCausalLM(DecoderForCausalLM):
    """Qwen2-MoE with its output head."""

    def __init__(
        self,
        config: Qwen2MoeConfig,
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
                    window=config.window(index),
                    qkv_bias=config.qkv_bias,
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
    config: Qwen2MoeConfig,
    index: int,
    *,
    backend: ExpertBackend,
    dtype: DTypeLike,
    rngs: nnx.Rngs,
) -> SparseMoeBlock | MLP:
    width = config.hidden_size
    if not config.is_sparse(index):
        return MLP(width, config.intermediate_size, dtype=dtype, rngs=rngs)
    return SparseMoeBlock(
        config,
        config.moe_intermediate_size,
        router=config.router,
        backend=backend,
        shared_expert=GatedMLP(
            width, config.shared_expert_intermediate_size, dtype=dtype, rngs=rngs
        ),
        dtype=dtype,
        rngs=rngs,
    )


WEIGHTS = WeightTable(
    (
        *DECODER_ROWS,
        *(
            Weight(f"{name}.bias", (f"model.{name}.bias",))
            for name in (f"layers.{{i}}.self_attn.{letter}_proj" for letter in "qkv")
        ),
        *MIXTURE_ROWS,
        *mlp_rows("layers.{i}.mlp.shared_expert", "model.layers.{i}.mlp.shared_expert"),
        linear("layers.{i}.mlp.shared_expert.gate", "model.layers.{i}.mlp.shared_expert_gate"),
        *mlp_rows("layers.{i}.mlp", "model.layers.{i}.mlp"),  # dense layers
    )
)
