"""Layers that attention, mixtures and dense feed-forward parts are made of."""

from typing import Protocol

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from lynx_jax.pallas_kernels.dense import linear


class Norm(Protocol):
    """Makes the norm of a stream of this width; ``RMSNorm`` is one."""

    def __call__(
        self, width: int, *, eps: float, dtype: DTypeLike, rngs: nnx.Rngs
    ) -> nnx.Module: ...


class RMSNorm(nnx.Module):
    """Root-mean-square norm in float32, cast back before the scale as Llama-like models do."""

    def __init__(self, width: int, *, eps: float, dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        self.eps = eps
        self.scale = nnx.Param(nnx.initializers.ones_init()(rngs.params(), (width,), dtype))

    def __call__(self, x: Float[Array, "*batch width"]) -> Float[Array, "*batch width"]:
        x32 = x.astype(jnp.float32)
        mean_square = jnp.mean(jnp.square(x32), axis=-1, keepdims=True)
        return self.scale[...] * (x32 * jax.lax.rsqrt(mean_square + self.eps)).astype(x.dtype)


class LayerNorm(nnx.Module):
    """Norm by mean and variance in float32, with a scale and a bias (arXiv 1607.06450)."""

    def __init__(self, width: int, *, eps: float, dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        self.eps = eps
        self.scale = nnx.Param(nnx.initializers.ones_init()(rngs.params(), (width,), dtype))
        self.bias = nnx.Param(jnp.zeros(width, dtype))

    def __call__(self, x: Float[Array, "*batch width"]) -> Float[Array, "*batch width"]:
        x32 = x.astype(jnp.float32)
        centred = x32 - jnp.mean(x32, axis=-1, keepdims=True)
        variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
        scale, bias = (part[...].astype(jnp.float32) for part in (self.scale, self.bias))
        return (centred * jax.lax.rsqrt(variance + self.eps) * scale + bias).astype(x.dtype)


class Linear(nnx.Module):
    """Projection; ``weight`` is [outputs, inputs], as checkpoints store it.

    Stored this way round because XLA on CPU reads it up to eight times faster for a few rows than
    the [inputs, outputs] kernel of ``nnx.Linear``.
    """

    def __init__(
        self, inputs: int, outputs: int, *, bias: bool = False, dtype: DTypeLike, rngs: nnx.Rngs
    ) -> None:
        init = nnx.initializers.lecun_normal(in_axis=1, out_axis=0)
        self.weight = nnx.Param(init(rngs.params(), (outputs, inputs), dtype))
        self.bias = nnx.Param(jnp.zeros(outputs, dtype)) if bias else None

    def __call__(
        self, x: Float[Array, "*batch inputs"], *, dtype: DTypeLike | None = None
    ) -> Float[Array, "*batch outputs"]:
        """The projection, summed in float32 and given as ``dtype``; by default that of ``x``."""
        y = linear(x, self.weight[...])
        if self.bias is not None:
            y = y + self.bias[...].astype(jnp.float32)
        return y.astype(dtype or x.dtype)


class MLP(nnx.Module):
    """Dense SwiGLU feed-forward layer."""

    def __init__(self, width: int, hidden: int, *, dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        self.gate_proj = Linear(width, hidden, dtype=dtype, rngs=rngs)
        self.up_proj = Linear(width, hidden, dtype=dtype, rngs=rngs)
        self.down_proj = Linear(hidden, width, dtype=dtype, rngs=rngs)

    def __call__(self, x: Float[Array, "*batch width"]) -> Float[Array, "*batch width"]:
        return self.down_proj(jax.nn.silu(self.gate_proj(x)) * self.up_proj(x))
