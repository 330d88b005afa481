"""Grouped-query attention and its cache.

Array axes in comments: B rows, T tokens, S cache entries, H query heads.
"""

from dataclasses import dataclass
from typing import Any, Literal, Protocol, Self

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from lynx_jax.models.config import DecoderConfig
from lynx_jax.models.layers import Linear, RMSNorm
from lynx_jax.models.rope import rotate
from lynx_jax.routing import Phase

# What one attention layer keeps of the tokens it has seen: a pytree of arrays [rows, entries, ...].
type LayerCache = Any


class SelfAttention(Protocol):
    """What a decoder layer asks of its attention."""

    def __call__(
        self,
        x: Float[Array, "rows tokens width"],
        positions: Int[Array, "rows tokens"],
        live: Bool[Array, "rows tokens"],
        cache: LayerCache | None,
        *,
        phase: Phase,
    ) -> tuple[Float[Array, "rows tokens width"], LayerCache]:
        """The output, and the cache with the tokens in it; see ``DecoderForCausalLM.forward``."""
        ...

    def init_cache(self, rows: int, entries: int, dtype: DTypeLike) -> LayerCache:
        """An empty cache for ``rows`` sequences of up to ``entries`` tokens."""
        ...


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class KeyValueCache:
    """Keys and values of one attention layer, after rotary embedding."""

    k: Float[Array, "rows entries kv_heads head_dim"]
    v: Float[Array, "rows entries kv_heads head_dim"]

    @classmethod
    def empty(cls, rows: int, entries: int, kv_heads: int, head_dim: int, dtype: DTypeLike) -> Self:
        """Zeros for ``rows`` sequences of up to ``entries`` tokens."""
        shape = (rows, entries, kv_heads, head_dim)
        return cls(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))

    def write(
        self,
        positions: Int[Array, "rows 1"],
        k: Float[Array, "rows 1 kv_heads head_dim"],
        v: Float[Array, "rows 1 kv_heads head_dim"],
    ) -> Self:
        """The cache with one token a row stored at its position."""
        return type(self)(k=write_token(self.k, positions, k), v=write_token(self.v, positions, v))


def write_token(
    entries: Float[Array, "rows entries *each"],
    positions: Int[Array, "rows 1"],
    new: Float[Array, "rows 1 *each"],
) -> Float[Array, "rows entries *each"]:
    """The entries with each row's new one stored at its position."""
    rows = jnp.arange(new.shape[0])
    return entries.at[rows, positions[:, 0]].set(new[:, 0].astype(entries.dtype))


def visible(
    queries: Int[Array, "rows tokens"], keys: Int[Array, "#rows entries"], window: int | None
) -> Bool[Array, "rows tokens entries"]:
    """Which key positions each query position sees.

    Args:
      queries, keys: positions.
      window: keys this far back and further are not seen; None for all.
    """
    distance = queries[:, :, None] - keys[:, None, :]
    seen = distance >= 0
    return seen if window is None else seen & (distance < window)


class Attention(nnx.Module):
    """Grouped-query causal attention with rotary embedding.

    Args:
      config: gives widths, heads and rope.
      window: keys this far back and further are not seen; None for full attention.
      qk_norm: normalise queries and keys before the rotary embedding, each head by itself (Qwen3)
        or all heads together (OLMoE).
      qkv_bias, out_bias: whether the projections have biases.
      clip: queries, keys and values are clipped to this size before they are cut into heads.
    """

    def __init__(
        self,
        config: DecoderConfig,
        *,
        window: int | None,
        qk_norm: Literal["head", "width"] | None = None,
        qkv_bias: bool = False,
        out_bias: bool = False,
        clip: float | None = None,
        dtype: DTypeLike,
        rngs: nnx.Rngs,
    ) -> None:
        self.config, self.window, self.clip = config, window, clip
        self.norm_per_head = qk_norm == "head"
        width, head_dim, eps = config.hidden_size, config.head_dim, config.rms_norm_eps
        query = config.num_attention_heads * head_dim
        key = config.num_key_value_heads * head_dim
        self.q_proj = Linear(width, query, bias=qkv_bias, dtype=dtype, rngs=rngs)
        self.k_proj = Linear(width, key, bias=qkv_bias, dtype=dtype, rngs=rngs)
        self.v_proj = Linear(width, key, bias=qkv_bias, dtype=dtype, rngs=rngs)
        self.o_proj = Linear(query, width, bias=out_bias, dtype=dtype, rngs=rngs)
        q_width, k_width = (head_dim, head_dim) if self.norm_per_head else (query, key)
        self.q_norm = RMSNorm(q_width, eps=eps, dtype=dtype, rngs=rngs) if qk_norm else None
        self.k_norm = RMSNorm(k_width, eps=eps, dtype=dtype, rngs=rngs) if qk_norm else None

    def __call__(
        self,
        x: Float[Array, "rows tokens width"],
        positions: Int[Array, "rows tokens"],
        live: Bool[Array, "rows tokens"],
        cache: KeyValueCache | None,
        *,
        phase: Phase,
    ) -> tuple[Float[Array, "rows tokens width"], KeyValueCache]:
        q, k, v = self._heads(x, positions)
        if phase is Phase.DECODE:
            assert cache is not None
            cache = cache.write(positions, k, v)
            mask = self.sees(positions, jnp.arange(cache.k.shape[1])[None])
        else:
            cache = KeyValueCache(k, v)
            mask = self.sees(positions, positions) & live[:, None, :]
        # [B, T, H, head_dim]; a row that sees nothing (padding) yields numbers of no meaning.
        mixed = self.mix(q, cache.k, cache.v, mask)
        return self.o_proj(mixed.reshape(*x.shape[:2], -1)), cache

    def init_cache(self, rows: int, entries: int, dtype: DTypeLike) -> KeyValueCache:
        """An empty cache for ``rows`` sequences of up to ``entries`` tokens."""
        config = self.config
        return KeyValueCache.empty(
            rows, entries, config.num_key_value_heads, config.head_dim, dtype
        )

    def place(
        self,
        q: Float[Array, "rows tokens heads head_dim"],
        k: Float[Array, "rows tokens kv_heads head_dim"],
        positions: Int[Array, "rows tokens"],
    ) -> tuple[
        Float[Array, "rows tokens heads head_dim"], Float[Array, "rows tokens kv_heads head_dim"]
    ]:
        """Queries and keys that know their places in the text; families may override it."""
        rope = self.config.rope
        return rotate(q, positions, rope), rotate(k, positions, rope)

    def sees(
        self, queries: Int[Array, "rows tokens"], keys: Int[Array, "#rows entries"]
    ) -> Bool[Array, "rows tokens entries"]:
        """Which key positions each query position sees; families may override it."""
        return visible(queries, keys, self.window)

    def mix(
        self,
        q: Float[Array, "rows tokens heads head_dim"],
        k: Float[Array, "rows entries kv_heads head_dim"],
        v: Float[Array, "rows entries kv_heads head_dim"],
        mask: Bool[Array, "rows tokens entries"],
    ) -> Float[Array, "rows tokens heads head_dim"]:
        """Values weighed by the softmax of the scores; families may override it."""
        return jax.nn.dot_product_attention(q, k, v, mask=mask[:, None])

    def _heads(self, x: Array, positions: Array) -> tuple[Array, Array, Array]:
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        if not self.norm_per_head:
            q, k = self._normed(q, k)
        if self.clip is not None:
            q, k, v = (jnp.clip(y, -self.clip, self.clip) for y in (q, k, v))
        q, k, v = (y.reshape(*x.shape[:2], -1, self.config.head_dim) for y in (q, k, v))
        if self.norm_per_head:
            q, k = self._normed(q, k)
        return *self.place(q, k, positions), v

    def _normed(self, q: Array, k: Array) -> tuple[Array, Array]:
        if self.q_norm is None or self.k_norm is None:
            return q, k
        return self.q_norm(q), self.k_norm(k)
