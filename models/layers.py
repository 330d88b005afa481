"""Layers that the families share.

Array axes in comments: B rows, T tokens, S cache entries, H query heads, K key-value heads, D model
width, N experts, F expert width.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from lynx_jax.backends import ExpertBackend
from lynx_jax.models.config import DecoderConfig
from lynx_jax.pallas_kernels.dense import linear
from lynx_jax.policies import Policy
from lynx_jax.routers import Router
from lynx_jax.routing import Phase, Routing, route


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LayerCache:
    """Keys and values of one attention layer, after rotary embedding."""

    k: Float[Array, "rows entries kv_heads head_dim"]
    v: Float[Array, "rows entries kv_heads head_dim"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LayerRouting:
    """What the router of one MoE layer said and what was made of it.

    Attributes:
      router_logits: float32 logits before choice.
      routing: the chosen experts, rows and tokens flattened into one axis.
    """

    router_logits: Float[Array, "rows tokens experts"]
    routing: Routing


class RMSNorm(nnx.Module):
    """Root-mean-square norm in float32, cast back before the scale as Llama-like models do."""

    def __init__(self, width: int, *, eps: float, dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        self.eps = eps
        self.scale = nnx.Param(nnx.initializers.ones_init()(rngs.params(), (width,), dtype))

    def __call__(self, x: Float[Array, "*batch width"]) -> Float[Array, "*batch width"]:
        x32 = x.astype(jnp.float32)
        mean_square = jnp.mean(jnp.square(x32), axis=-1, keepdims=True)
        return self.scale[...] * (x32 * jax.lax.rsqrt(mean_square + self.eps)).astype(x.dtype)


class Linear(nnx.Module):
    """Projection without bias; ``weight`` is [outputs, inputs], as checkpoints store it.

    Stored this way round because XLA on CPU reads it up to eight times faster for a few rows than
    the [inputs, outputs] kernel of ``nnx.Linear``.
    """

    def __init__(self, inputs: int, outputs: int, *, dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        init = nnx.initializers.lecun_normal(in_axis=1, out_axis=0)
        self.weight = nnx.Param(init(rngs.params(), (outputs, inputs), dtype))

    def __call__(
        self, x: Float[Array, "*batch inputs"], *, dtype: DTypeLike | None = None
    ) -> Float[Array, "*batch outputs"]:
        """The projection, summed in float32 and given as ``dtype``; by default that of ``x``."""
        return linear(x, self.weight[...]).astype(dtype or x.dtype)


def rotary_embedding(
    x: Float[Array, "rows tokens heads head_dim"],
    positions: Int[Array, "rows tokens"],
    theta: float,
) -> Float[Array, "rows tokens heads head_dim"]:
    """Rotary position embedding in the half-split layout (arXiv 2104.09864), in float32."""
    half = x.shape[-1] // 2
    frequencies = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = positions[:, :, None, None].astype(jnp.float32) * frequencies  # [B, T, 1, half]
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return rotated.astype(x.dtype)


class Attention(nnx.Module):
    """Grouped-query causal attention with rotary embedding.

    Args:
      qk_norm: normalise each head's queries and keys before the rotary embedding (Qwen3).
    """

    def __init__(
        self, config: DecoderConfig, *, qk_norm: bool, dtype: DTypeLike, rngs: nnx.Rngs
    ) -> None:
        self.config = config
        width, head_dim = config.hidden_size, config.head_dim
        query = config.num_attention_heads * head_dim
        key = config.num_key_value_heads * head_dim
        self.q_proj = Linear(width, query, dtype=dtype, rngs=rngs)
        self.k_proj = Linear(width, key, dtype=dtype, rngs=rngs)
        self.v_proj = Linear(width, key, dtype=dtype, rngs=rngs)
        self.o_proj = Linear(query, width, dtype=dtype, rngs=rngs)
        eps = config.rms_norm_eps
        self.q_norm = RMSNorm(head_dim, eps=eps, dtype=dtype, rngs=rngs) if qk_norm else None
        self.k_norm = RMSNorm(head_dim, eps=eps, dtype=dtype, rngs=rngs) if qk_norm else None

    def __call__(
        self,
        x: Float[Array, "rows tokens width"],
        positions: Int[Array, "rows tokens"],
        live: Bool[Array, "rows tokens"],
        cache: LayerCache | None,
        *,
        phase: Phase,
    ) -> tuple[Float[Array, "rows tokens width"], LayerCache]:
        q, k, v = self._heads(x, positions)
        if phase is Phase.DECODE:
            assert cache is not None
            cache = _write(cache, positions, k, v)
            entries = jnp.arange(cache.k.shape[1])
            mask = self._visible(positions, entries[None])
        else:
            cache = LayerCache(k, v)
            mask = self._visible(positions, positions) & live[:, None, :]
        # [B, T, H, head_dim]; a row that sees nothing (padding) yields numbers of no meaning.
        mixed = jax.nn.dot_product_attention(q, cache.k, cache.v, mask=mask[:, None])
        return self.o_proj(mixed.reshape(*x.shape[:2], -1)), cache

    def _heads(self, x: Array, positions: Array) -> tuple[Array, Array, Array]:
        config = self.config
        q = self.q_proj(x).reshape(*x.shape[:2], config.num_attention_heads, -1)
        k = self.k_proj(x).reshape(*x.shape[:2], config.num_key_value_heads, -1)
        v = self.v_proj(x).reshape(*x.shape[:2], config.num_key_value_heads, -1)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        theta = config.rope_theta
        return rotary_embedding(q, positions, theta), rotary_embedding(k, positions, theta), v

    def _visible(self, queries: Array, keys: Array) -> Array:
        """Mask [B, T, S]: which key positions each query position sees."""
        distance = queries[:, :, None] - keys[:, None, :]
        window = self.config.sliding_window
        visible = distance >= 0
        return visible if window is None else visible & (distance < window)


def _write(cache: LayerCache, positions: Array, k: Array, v: Array) -> LayerCache:
    """The cache with one token a row stored at ``positions`` [B, 1]."""
    rows = jnp.arange(k.shape[0])
    at = positions[:, 0]
    return LayerCache(
        k=cache.k.at[rows, at].set(k[:, 0].astype(cache.k.dtype)),
        v=cache.v.at[rows, at].set(v[:, 0].astype(cache.v.dtype)),
    )


class MLP(nnx.Module):
    """Dense SwiGLU feed-forward layer."""

    def __init__(self, width: int, hidden: int, *, dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        self.gate_proj = Linear(width, hidden, dtype=dtype, rngs=rngs)
        self.up_proj = Linear(width, hidden, dtype=dtype, rngs=rngs)
        self.down_proj = Linear(hidden, width, dtype=dtype, rngs=rngs)

    def __call__(self, x: Float[Array, "*batch width"]) -> Float[Array, "*batch width"]:
        return self.down_proj(jax.nn.silu(self.gate_proj(x)) * self.up_proj(x))


class Experts(nnx.Module):
    """Weights of a layer's N SwiGLU experts: gate and up in one, then down, [outputs, inputs].

    One stacked array each, or an array an expert where the backend asks for that.
    """

    def __init__(
        self,
        num_experts: int,
        width: int,
        hidden: int,
        *,
        backend: ExpertBackend,
        dtype: DTypeLike,
        rngs: nnx.Rngs,
    ) -> None:
        self.backend = backend
        self.gate_up_proj = _expert_weights(
            num_experts, (2 * hidden, width), split=backend.split, dtype=dtype, rngs=rngs
        )
        self.down_proj = _expert_weights(
            num_experts, (width, hidden), split=backend.split, dtype=dtype, rngs=rngs
        )

    def __call__(
        self, x: Float[Array, "rows width"], routing: Routing, *, phase: Phase
    ) -> Float[Array, "rows width"]:
        gate_up, down = _arrays(self.gate_up_proj), _arrays(self.down_proj)
        return self.backend(x, routing, gate_up, down, phase=phase)


def _expert_weights(
    num_experts: int, shape: tuple[int, int], *, split: bool, dtype: DTypeLike, rngs: nnx.Rngs
) -> nnx.Param[Array] | nnx.List[nnx.Param[Array]]:
    init = nnx.initializers.lecun_normal(in_axis=2, out_axis=1, batch_axis=0)
    stacked = init(rngs.params(), (num_experts, *shape), dtype)
    return nnx.List(nnx.Param(expert) for expert in stacked) if split else nnx.Param(stacked)


def _arrays(
    weights: nnx.Param[Array] | nnx.List[nnx.Param[Array]],
) -> Array | tuple[Array, ...]:
    if isinstance(weights, nnx.List):
        return tuple(weight[...] for weight in weights)
    return weights[...]


class SparseMoeBlock(nnx.Module):
    """Router, expert selection and experts of one layer.

    Args:
      config: gives D, N and k.
      hidden: width F of one expert.
      router: the family's scores and weight rule.
    """

    def __init__(
        self,
        config: DecoderConfig,
        hidden: int,
        *,
        router: Router,
        backend: ExpertBackend,
        dtype: DTypeLike,
        rngs: nnx.Rngs,
    ) -> None:
        self.k = config.num_experts_per_tok
        router.validate(self.k, config.num_experts)
        self.router = router
        self.gate = Linear(config.hidden_size, config.num_experts, dtype=dtype, rngs=rngs)
        self.experts = Experts(
            config.num_experts, config.hidden_size, hidden, backend=backend, dtype=dtype, rngs=rngs
        )

    def __call__(
        self,
        x: Float[Array, "rows tokens width"],
        live: Bool[Array, "rows tokens"],
        *,
        phase: Phase,
        policy: Policy,
    ) -> tuple[Float[Array, "rows tokens width"], LayerRouting]:
        flat = x.reshape(-1, x.shape[-1])
        logits = self.gate(flat, dtype=jnp.float32)
        routing = route(
            logits, live.reshape(-1), k=self.k, router=self.router, policy=policy, phase=phase
        )
        y = self.experts(flat, routing, phase=phase).reshape(x.shape)
        return y, LayerRouting(logits.reshape(*x.shape[:2], -1), routing)
