"""Multi-head latent attention (arXiv 2405.04434, section 2.1) over a compressed cache.

Keys and values of all heads are made from one latent vector a token; one rotary key a token is
shared by all heads. Only these two are kept. Prefill makes the heads' keys and values of the tokens
at hand; decode never does: what makes a head's keys goes into its query instead, and what makes its
values into its output, so that attention runs over the latent vectors themselves.

Array axes in comments: B rows, T tokens, S cache entries, H heads, C latent, P content part of a
head, R rotary part, V value width.
"""

import functools
from dataclasses import dataclass
from typing import Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from lynx_jax.models.attention import visible, write_token
from lynx_jax.models.deepseek_config import DeepseekConfig
from lynx_jax.models.layers import Linear, RMSNorm
from lynx_jax.models.rope import rotate
from lynx_jax.routing import Phase

# The norms of the compressed vectors have an epsilon of their own; config.json does not give it.
_LATENT_EPS = 1e-6
# Finite, so that a token that sees nothing does not make NaN.
_LOWEST = float(np.finfo(np.float32).min)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LatentCache:
    """What latent attention keeps of its tokens: the normed latent vector, then the rotary key."""

    tokens: Float[Array, "rows entries latent_and_rotary"]

    def write(
        self, positions: Int[Array, "rows 1"], new: Float[Array, "rows 1 latent_and_rotary"]
    ) -> Self:
        """The cache with one token a row stored at its position."""
        return type(self)(write_token(self.tokens, positions, new))


class LatentAttention(nnx.Module):
    """Causal attention of DeepSeek-V2 and V3; parameters have their published names."""

    def __init__(self, config: DeepseekConfig, *, dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        self.config = config
        width, heads, latent = (
            config.hidden_size,
            config.num_attention_heads,
            config.kv_lora_rank,
        )
        content, rotary, value = (
            config.qk_nope_head_dim,
            config.qk_rope_head_dim,
            config.v_head_dim,
        )
        queries = heads * (content + rotary)
        if config.q_lora_rank is None:
            self.q_proj = Linear(width, queries, dtype=dtype, rngs=rngs)
        else:
            rank = config.q_lora_rank
            self.q_a_proj = Linear(width, rank, dtype=dtype, rngs=rngs)
            self.q_a_layernorm = RMSNorm(rank, eps=_LATENT_EPS, dtype=dtype, rngs=rngs)
            self.q_b_proj = Linear(rank, queries, dtype=dtype, rngs=rngs)
        self.kv_a_proj_with_mqa = Linear(width, latent + rotary, dtype=dtype, rngs=rngs)
        self.kv_a_layernorm = RMSNorm(latent, eps=_LATENT_EPS, dtype=dtype, rngs=rngs)
        self.kv_b_proj = Linear(latent, heads * (content + value), dtype=dtype, rngs=rngs)
        self.o_proj = Linear(heads * value, width, dtype=dtype, rngs=rngs)

    def __call__(
        self,
        x: Float[Array, "rows tokens width"],
        positions: Int[Array, "rows tokens"],
        live: Bool[Array, "rows tokens"],
        cache: LatentCache | None,
        *,
        phase: Phase,
    ) -> tuple[Float[Array, "rows tokens width"], LatentCache]:
        content, rotary = self._queries(x, positions)
        new = self._compressed(x, positions)
        if phase is Phase.DECODE:
            assert cache is not None
            cache = cache.write(positions, new)
            entries = jnp.arange(cache.tokens.shape[1])
            mask = visible(positions, entries[None], None)
            mixed = self._absorbed(content, rotary, cache.tokens, mask)
        else:
            cache = LatentCache(new)
            mask = visible(positions, positions, None) & live[:, None, :]
            mixed = self._expanded(content, rotary, new, mask)
        return self.o_proj(mixed.reshape(*x.shape[:2], -1)), cache

    def init_cache(self, rows: int, entries: int, dtype: DTypeLike) -> LatentCache:
        """An empty cache for ``rows`` sequences of up to ``entries`` tokens."""
        width = self.config.kv_lora_rank + self.config.qk_rope_head_dim
        return LatentCache(jnp.zeros((rows, entries, width), dtype))

    def _queries(self, x: Array, positions: Array) -> tuple[Array, Array]:
        """Content [B, T, H, P] and rotated [B, T, H, R] part of every head's query."""
        config = self.config
        q = self._query_projection(x).reshape(*x.shape[:2], config.num_attention_heads, -1)
        content, rotary = jnp.split(q, [config.qk_nope_head_dim], axis=-1)
        return content, self._rotated(rotary, positions)

    def _query_projection(self, x: Array) -> Array:
        if self.config.q_lora_rank is None:
            return self.q_proj(x)
        return self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))

    def _compressed(self, x: Array, positions: Array) -> Array:
        """What the cache keeps of each token, [B, T, C + R]."""
        latent, key = jnp.split(self.kv_a_proj_with_mqa(x), [self.config.kv_lora_rank], axis=-1)
        key = self._rotated(key[:, :, None], positions)[:, :, 0]
        return jnp.concatenate([self.kv_a_layernorm(latent), key], axis=-1)

    def _rotated(self, x: Array, positions: Array) -> Array:
        config = self.config
        return rotate(x, positions, config.rope, interleaved=config.rope_interleave)

    def _expanded(self, content: Array, rotary: Array, tokens: Array, mask: Array) -> Array:
        """Attention [B, T, H, V] with the keys and values of every head."""
        config = self.config
        latent, key = jnp.split(tokens, [config.kv_lora_rank], axis=-1)
        heads = self.kv_b_proj(latent).reshape(*latent.shape[:2], config.num_attention_heads, -1)
        keys, values = jnp.split(heads, [config.qk_nope_head_dim], axis=-1)
        scores = _dot("bthp,bshp->bhts", content, keys) + _dot("bthr,bsr->bhts", rotary, key)
        weights = self._softmax(scores, mask).astype(tokens.dtype)
        return _dot("bhts,bshv->bthv", weights, values).astype(tokens.dtype)

    def _absorbed(self, content: Array, rotary: Array, tokens: Array, mask: Array) -> Array:
        """The same attention over the cached tokens [B, S, C + R] as they are."""
        config = self.config
        up = self.kv_b_proj.weight[...].reshape(config.num_attention_heads, -1, config.kv_lora_rank)
        key_up, value_up = jnp.split(up, [config.qk_nope_head_dim], axis=1)
        latent = _dot("bthp,hpc->bthc", content, key_up).astype(tokens.dtype)
        queries = jnp.concatenate([latent, rotary], axis=-1)
        scores = _dot("bthc,bsc->bhts", queries, tokens)
        weights = self._softmax(scores, mask).astype(tokens.dtype)
        # The rotary keys are mixed too and dropped: cheaper than a copy of the cache without them.
        mixed = _dot("bhts,bsc->bthc", weights, tokens)[..., : config.kv_lora_rank]
        return _dot("bthc,hvc->bthv", mixed.astype(tokens.dtype), value_up).astype(tokens.dtype)

    def _softmax(self, scores: Array, mask: Array) -> Array:
        """float32 weights [B, H, T, S]; of no meaning where a token sees nothing (padding)."""
        scaled = jnp.where(mask[:, None], scores * self.config.softmax_scale, _LOWEST)
        return jax.nn.softmax(scaled, axis=-1)


def _dot(subscripts: str, a: Array, b: Array) -> Array:
    """An einsum that sums and ends in float32.

    In a compiled step, XLA for CPU may meet a product of bfloat16 arrays with a float32 result
    that it cannot run. Products of bfloat16 numbers are exact in float32: casting first gives the
    same.
    """
    product: Array = jax.lax.platform_dependent(
        a,
        b,
        cpu=lambda a, b: jnp.einsum(subscripts, a.astype(jnp.float32), b.astype(jnp.float32)),
        default=functools.partial(jnp.einsum, subscripts, preferred_element_type=jnp.float32),
    )
    return product
