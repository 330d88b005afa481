"""Llama-4's text decoder: top-1 router that scales inputs, chunked and position-free attention.

It stands alone (``llama4_text``) or is the text part of a multimodal checkpoint (``llama4``).
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from lynx_jax.backends import ExpertBackend
from lynx_jax.models.attention import Attention, visible
from lynx_jax.models.config import DecoderConfig, text_part
from lynx_jax.models.decoder import DecoderForCausalLM, DecoderLayer
from lynx_jax.models.fields import require
from lynx_jax.models.layers import MLP
from lynx_jax.models.moe import SparseMoeBlock
from lynx_jax.models.rope import rotate
from lynx_jax.models.weights import (
    DECODER_ROWS,
    Axes,
    ExpertStack,
    Prefix,
    Weight,
    WeightTable,
    linear,
)
from lynx_jax.pallas_kernels.expert_form import ExpertForm
from lynx_jax.routers import Router


@dataclasses.dataclass(frozen=True, kw_only=True)
class Llama4TextConfig(DecoderConfig):
    """Fields of Llama-4's config.json.

    Attributes:
      intermediate_size: width F of one expert and of the shared expert.
      intermediate_size_mlp: hidden width of a dense layer.
      moe_layers: indices of the mixtures; by default every ``interleave_moe_layer_step``-th layer.
      interleave_moe_layer_step: the last of every so many layers is a mixture.
      no_rope_layers: despite its name, 1 for a layer that has rotary embedding and 0 for one that
        has none; by default, and if empty, 0 for every ``no_rope_layer_interval``-th layer.
      no_rope_layer_interval: the last of every so many layers has no rotary embedding.
      layer_types: ``chunked_attention`` or ``full_attention`` for each layer; by default layers
        with rotary embedding are chunked.
      attention_chunk_size: tokens of a chunk, whose tokens see only one another.
      use_qk_norm: normalise each head's queries and keys after the rotary embedding.
      attn_temperature_tuning: whether queries grow with their position in layers without rotary
        embedding; published as 4, which means true.
      floor_scale: tokens after which they grow by one step.
      attn_scale: how much they grow.
      attention_bias: must be false; the published models have none.
    """

    hub_names: ClassVar[Mapping[str, tuple[str, ...]]] = {"num_experts": ("num_local_experts",)}

    intermediate_size: int
    intermediate_size_mlp: int = 0
    moe_layers: tuple[int, ...] | None = None
    interleave_moe_layer_step: int = 1
    no_rope_layers: tuple[int, ...] = ()
    no_rope_layer_interval: int = 4
    layer_types: tuple[str, ...] | None = None
    attention_chunk_size: int = 8192
    use_qk_norm: bool
    attn_temperature_tuning: bool | int = True
    floor_scale: float = 8192.0
    attn_scale: float = 0.1
    attention_bias: bool = False

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Self:
        """The config that config.json's content describes; see ``DecoderConfig.from_dict``."""
        text = dict(text_part(raw))
        if "attention_chunk_size" in text and text["attention_chunk_size"] is None:
            text["attention_chunk_size"] = text.get("max_position_embeddings")  # a chunk of all
        return super().from_dict(text)

    def check(self) -> None:
        super().check()
        require(not self.attention_bias, "attention_bias false for llama4_text", True)
        for name in (
            "intermediate_size",
            "interleave_moe_layer_step",
            "no_rope_layer_interval",
            "attention_chunk_size",
            "floor_scale",
        ):
            require(getattr(self, name) >= 1, f"{name} to be at least 1", getattr(self, name))
        layers, types = self.num_hidden_layers, self.layer_types
        ropes = self.no_rope_layers
        require(len(ropes) in (0, layers), f"no_rope_layers for {layers} layers", f"{len(ropes)}")
        require(set(ropes) <= {0, 1}, "0 and 1 in no_rope_layers", ropes)
        if types is not None:
            require(len(types) == layers, f"layer_types for {layers} layers", f"{len(types)}")
            known = {"chunked_attention", "full_attention"}
            require(set(types) <= known, f"layer_types of {sorted(known)}", types)
        beyond = [i for i in self.moe_layers or () if not 0 <= i < layers]
        require(not beyond, f"moe_layers below {layers}", beyond)
        dense = not all(map(self.is_sparse, range(layers)))
        require(
            self.intermediate_size_mlp >= 1 or not dense,
            "intermediate_size_mlp of at least 1, for the dense layers",
            self.intermediate_size_mlp,
        )

    def is_sparse(self, layer: int) -> bool:
        """Whether the layer of this index is a mixture."""
        if self.moe_layers is not None:
            return layer in self.moe_layers
        return (layer + 1) % self.interleave_moe_layer_step == 0

    def has_rope(self, layer: int) -> bool:
        """Whether the layer of this index has rotary embedding."""
        if self.no_rope_layers:
            return self.no_rope_layers[layer] == 1
        return (layer + 1) % self.no_rope_layer_interval != 0

    def is_chunked(self, layer: int) -> bool:
        """Whether a token of this layer sees only its own chunk."""
        if self.layer_types is not None:
            return self.layer_types[layer] == "chunked_attention"
        return self.has_rope(layer)


class Llama4Attention(Attention):
    """Chunked with interleaved rotary embedding, or over the whole text without."""

    config: Llama4TextConfig

    def __init__(
        self, config: Llama4TextConfig, index: int, *, dtype: DTypeLike, rngs: nnx.Rngs
    ) -> None:
        super().__init__(config, window=None, dtype=dtype, rngs=rngs)
        self.has_rope, self.is_chunked = config.has_rope(index), config.is_chunked(index)

    def place(
        self,
        q: Float[Array, "rows tokens heads head_dim"],
        k: Float[Array, "rows tokens kv_heads head_dim"],
        positions: Int[Array, "rows tokens"],
    ) -> tuple[
        Float[Array, "rows tokens heads head_dim"], Float[Array, "rows tokens kv_heads head_dim"]
    ]:
        config = self.config
        if not self.has_rope:
            return (self._grown(q, positions) if config.attn_temperature_tuning else q), k
        q, k = (rotate(x, positions, config.rope, interleaved=True) for x in (q, k))
        if config.use_qk_norm:
            q, k = (_l2_norm(x, config.rms_norm_eps) for x in (q, k))
        return q, k

    def sees(
        self, queries: Int[Array, "rows tokens"], keys: Int[Array, "#rows entries"]
    ) -> Bool[Array, "rows tokens entries"]:
        seen = visible(queries, keys, None)
        if not self.is_chunked:
            return seen
        chunk = self.config.attention_chunk_size
        return seen & (queries[:, :, None] // chunk == keys[:, None, :] // chunk)

    def _grown(self, q: Array, positions: Array) -> Array:
        """Queries [B, T, H, head_dim] times ``1 + scale * log(1 + steps)`` (arXiv 2501.19399)."""
        steps = jnp.floor((positions.astype(jnp.float32) + 1) / self.config.floor_scale)
        factor = 1 + self.config.attn_scale * jnp.log1p(steps)
        return (q.astype(jnp.float32) * factor[:, :, None, None]).astype(q.dtype)


def _l2_norm(x: Array, eps: float) -> Array:
    """Each head divided by its root mean square, in float32; there is no scale."""
    x32 = x.astype(jnp.float32)
    mean_square = jnp.mean(jnp.square(x32), axis=-1, keepdims=True)
    return (x32 * jax.lax.rsqrt(mean_square + eps)).astype(x.dtype)


class Llama4ForCausalLM(DecoderForCausalLM):
    """Llama-4's text decoder with its output head."""

    def __init__(
        self,
        config: Llama4TextConfig,
        *,
        backend: ExpertBackend,
        dtype: DTypeLike = jnp.bfloat16,
        rngs: nnx.Rngs,
    ) -> None:
        layers = [
            DecoderLayer(
                config,
                Llama4Attention(config, index, dtype=dtype, rngs=rngs),
                _mlp(config, index, backend=backend, dtype=dtype, rngs=rngs),
                dtype=dtype,
                rngs=rngs,
            )
            for index in range(config.num_hidden_layers)
        ]
        super().__init__(config, layers, dtype=dtype, rngs=rngs)


def _mlp(
    config: Llama4TextConfig,
    index: int,
    *,
    backend: ExpertBackend,
    dtype: DTypeLike,
    rngs: nnx.Rngs,
) -> SparseMoeBlock | MLP:
    width = config.hidden_size
    if not config.is_sparse(index):
        return MLP(width, config.intermediate_size_mlp, dtype=dtype, rngs=rngs)
    return SparseMoeBlock(
        config,
        config.intermediate_size,
        router=Router("sigmoid", "own"),
        backend=backend,
        form=ExpertForm(scale_input=True),
        shared_expert=MLP(width, config.intermediate_size, dtype=dtype, rngs=rngs),
        dtype=dtype,
        rngs=rngs,
    )


def _rows_of_mlp(target: str, source: str) -> list[Weight]:
    names = ("gate_proj", "up_proj", "down_proj")
    return [linear(f"{target}.{name}", f"{source}.{name}") for name in names]


_SOURCE = "model.layers.{i}.feed_forward"

WEIGHTS = WeightTable(
    (
        *DECODER_ROWS,
        linear("layers.{i}.mlp.gate", f"{_SOURCE}.router"),
        ExpertStack(
            "layers.{i}.mlp.experts.gate_up_proj",
            fused=f"{_SOURCE}.experts.gate_up_proj",
            axes=Axes.IN_OUT,
        ),
        ExpertStack(
            "layers.{i}.mlp.experts.down_proj",
            fused=f"{_SOURCE}.experts.down_proj",
            axes=Axes.IN_OUT,
        ),
        *_rows_of_mlp("layers.{i}.mlp.shared_expert", f"{_SOURCE}.shared_expert"),
        *_rows_of_mlp("layers.{i}.mlp", _SOURCE),  # dense layers
    ),
    prefixes=(Prefix(), Prefix("language_model.model.", "language_model.")),
    skipped=("vision_model.", "multi_modal_projector."),
)
