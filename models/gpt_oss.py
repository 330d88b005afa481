"""gpt-oss (arXiv 2508.10925): attention sinks, a window in every second layer, biases."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from lynx_jax.backends import ExpertBackend
from lynx_jax.models.attention import Attention
from lynx_jax.models.config import DecoderConfig
from lynx_jax.models.decoder import DecoderForCausalLM, DecoderLayer
from lynx_jax.models.fields import require
from lynx_jax.models.layers import RMSNorm
from lynx_jax.models.moe import SparseMoeBlock
from lynx_jax.models.weights import (
    DECODER_ROWS,
    Axes,
    ExpertStack,
    Weight,
    WeightTable,
    bias,
    linear,
)
from lynx_jax.pallas_kernels.expert_form import ExpertForm
from lynx_jax.routers import Router


@dataclasses.dataclass(frozen=True, kw_only=True)
class GptOssConfig(DecoderConfig):
    """Fields of gpt-oss's config.json.

    An absent ``head_dim`` is 64, whatever the widths are; transformers takes it so, too.

    Attributes:
      intermediate_size: width F of one expert.
      layer_types: ``sliding_attention`` or ``full_attention`` for each layer; by default in turn,
        sliding first.
      attention_bias: whether the projections of attention have biases.
      swiglu_limit, swiglu_alpha: constants of the experts' activation; only the published ones are
        implemented.
    """

    hub_names: ClassVar[Mapping[str, tuple[str, ...]]] = {"num_experts": ("num_local_experts",)}

    intermediate_size: int
    layer_types: tuple[str, ...] | None = None
    attention_bias: bool = True
    swiglu_limit: float = 7.0
    swiglu_alpha: float = 1.702

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Self:
        """The config that config.json's content describes; see ``DecoderConfig.from_dict``."""
        return super().from_dict({"head_dim": 64, **raw})

    def check(self) -> None:
        super().check()
        size = self.intermediate_size
        require(size >= 1, "intermediate_size to be at least 1", size)
        layers, types = self.num_hidden_layers, self.layer_types
        if types is not None:
            require(len(types) == layers, f"layer_types for {layers} layers", f"{len(types)}")
            known = {"full_attention", "sliding_attention"}
            require(set(types) <= known, f"layer_types of {sorted(known)}", types)
        slides = any(map(self.is_sliding, range(layers)))
        require(
            self.sliding_window is not None or not slides,
            "a sliding_window, for the layers of sliding_attention",
            None,
        )
        constants = (self.swiglu_limit, self.swiglu_alpha)
        require(constants == (7.0, 1.702), "swiglu_limit 7.0 and swiglu_alpha 1.702", constants)

    def is_sliding(self, layer: int) -> bool:
        """Whether tokens of this layer see only the ``sliding_window`` last ones."""
        if self.layer_types is None:
            return layer % 2 == 0
        return self.layer_types[layer] == "sliding_attention"


class GptOssRMSNorm(RMSNorm):
    """Root-mean-square norm that is cast back only after the scale."""

    def __call__(self, x: Float[Array, "*batch width"]) -> Float[Array, "*batch width"]:
        x32 = x.astype(jnp.float32)
        mean_square = jnp.mean(jnp.square(x32), axis=-1, keepdims=True)
        scale = self.scale[...].astype(jnp.float32)
        return (scale * (x32 * jax.lax.rsqrt(mean_square + self.eps))).astype(x.dtype)


class GptOssAttention(Attention):
    """Attention in which every head may look away: a sink takes part in the softmax."""

    def __init__(
        self, config: GptOssConfig, index: int, *, dtype: DTypeLike, rngs: nnx.Rngs
    ) -> None:
        super().__init__(
            config,
            window=config.sliding_window if config.is_sliding(index) else None,
            qkv_bias=config.attention_bias,
            out_bias=config.attention_bias,
            dtype=dtype,
            rngs=rngs,
        )
        self.sinks = nnx.Param(jnp.zeros(config.num_attention_heads, dtype))

    def mix(
        self,
        q: Float[Array, "rows tokens heads head_dim"],
        k: Float[Array, "rows entries kv_heads head_dim"],
        v: Float[Array, "rows entries kv_heads head_dim"],
        mask: Bool[Array, "rows tokens entries"],
    ) -> Float[Array, "rows tokens heads head_dim"]:
        return attend_with_sinks(q, k, v, mask, self.sinks[...])


def attend_with_sinks(
    q: Float[Array, "rows tokens heads head_dim"],
    k: Float[Array, "rows entries kv_heads head_dim"],
    v: Float[Array, "rows entries kv_heads head_dim"],
    mask: Bool[Array, "rows tokens entries"],
    sinks: Float[Array, " heads"],
) -> Float[Array, "rows tokens heads head_dim"]:
    """``exp(s) @ v / (sum(exp(s)) + exp(sink))`` with scores ``s = q @ k / sqrt(head_dim)``.

    A head's sink is a score without a value. Computed in float32; a query that sees nothing gives
    zeros.
    """
    head_dim = q.shape[-1]
    groups = q.reshape(*q.shape[:2], k.shape[2], -1, head_dim)
    scores = jnp.einsum("btkgh,bskh->bkgts", groups, k, preferred_element_type=jnp.float32)
    scores = jnp.where(mask[:, None, None], scores * head_dim**-0.5, -jnp.inf)
    sink = sinks.astype(jnp.float32).reshape(k.shape[2], -1, 1, 1)
    top = jnp.maximum(jnp.max(scores, axis=-1, keepdims=True), sink)
    e = jnp.exp(scores - top)
    weights = e / (jnp.sum(e, axis=-1, keepdims=True) + jnp.exp(sink - top))
    mixed = jnp.einsum("bkgts,bskh->btkgh", weights.astype(v.dtype), v)
    return mixed.reshape(q.shape)


class GptOssForCausalLM(DecoderForCausalLM):
    """gpt-oss with its output head."""

    def __init__(
        self,
        config: GptOssConfig,
        *,
        backend: ExpertBackend,
        dtype: DTypeLike = jnp.bfloat16,
        rngs: nnx.Rngs,
    ) -> None:
        layers = [
            DecoderLayer(
                config,
                GptOssAttention(config, index, dtype=dtype, rngs=rngs),
                SparseMoeBlock(
                    config,
                    config.intermediate_size,
                    router=Router("softmax", "renormalize"),
                    backend=backend,
                    form=ExpertForm(activation="clamped_swiglu"),
                    expert_bias=True,
                    router_bias=True,
                    dtype=dtype,
                    rngs=rngs,
                ),
                norm=GptOssRMSNorm,
                dtype=dtype,
                rngs=rngs,
            )
            for index in range(config.num_hidden_layers)
        ]
        super().__init__(config, layers, norm=GptOssRMSNorm, dtype=dtype, rngs=rngs)


_EXPERTS = "model.layers.{i}.mlp.experts"

WEIGHTS = WeightTable(
    (
        *DECODER_ROWS,
        *(
            bias(f"layers.{{i}}.self_attn.{name}", f"model.layers.{{i}}.self_attn.{name}")
            for name in ("q_proj", "k_proj", "v_proj", "o_proj")
        ),
        Weight("layers.{i}.self_attn.sinks", ("model.layers.{i}.self_attn.sinks",)),
        linear("layers.{i}.mlp.gate", "model.layers.{i}.mlp.router"),
        bias("layers.{i}.mlp.gate", "model.layers.{i}.mlp.router"),
        ExpertStack(
            "layers.{i}.mlp.experts.gate_up_proj",
            fused=f"{_EXPERTS}.gate_up_proj",
            axes=Axes.IN_OUT,
            interleaved=True,
        ),
        ExpertStack(
            "layers.{i}.mlp.experts.gate_up_bias",
            fused=f"{_EXPERTS}.gate_up_proj_bias",
            interleaved=True,
        ),
        ExpertStack(
            "layers.{i}.mlp.experts.down_proj", fused=f"{_EXPERTS}.down_proj", axes=Axes.IN_OUT
        ),
        ExpertStack("layers.{i}.mlp.experts.down_bias", fused=f"{_EXPERTS}.down_proj_bias"),
    )
)
