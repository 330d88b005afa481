"""The training step's heavy parts for the CPU, each with its own gradient.

On the CPU, XLA runs a bfloat16 matrix product at full speed only if the left operand is not
transposed; a transpose that it can see is folded into the product, which then runs in float32, ten
times slower. So products are written in the fast form, large operands are transposed behind a loop
(`transposed`), and scores are kept with the summed axis first. Results are those of the plain
formulas, which the tests compare with.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

_LOOP = 4
_ONES = 16  # rows of ones; one row would be simplified back to a sum
_MAX_SCORE = 80.0  # exp of it is finite in float32


def transposed(x: Array) -> Array:
    """The last two axes exchanged; the first axis of three is a batch. Opaque to XLA's folding."""
    if x.ndim == 2:
        parts = x.reshape(_LOOP, x.shape[0] // _LOOP, x.shape[1])
        return jnp.concatenate(list(transposed(parts)), axis=-1)
    parts = x.reshape(_LOOP, -1, *x.shape[1:])
    swapped = jax.lax.map(lambda part: jnp.swapaxes(part, -1, -2), parts)
    return swapped.reshape(x.shape[0], x.shape[2], x.shape[1])


@jax.custom_vjp
def project(x: Array, kernel: Array) -> Array:
    """``x [T, I] @ kernel [I, O]``."""
    return x @ kernel


def _project_fwd(x: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
    return x @ kernel, (x, kernel)


def _project_bwd(saved: tuple[Array, Array], dy: Array) -> tuple[Array, Array]:
    x, kernel = saved
    chunks = 2 * _LOOP
    x_t = transposed(x.reshape(chunks, -1, x.shape[-1]))
    dkernel = jnp.sum((x_t @ dy.reshape(chunks, -1, dy.shape[-1])).astype(jnp.float32), axis=0)
    return jnp.einsum("to,io->ti", dy, kernel), dkernel.astype(kernel.dtype)


project.defvjp(_project_fwd, _project_bwd)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def rms_norm(x: Array, scale: Array, eps: float) -> Array:
    """Root-mean-square norm over the last axis in float32, cast back before the scale."""
    return _norm_fwd(x, scale, eps)[0]


def _norm_fwd(x: Array, scale: Array, eps: float) -> tuple[Array, tuple[Array, Array, Array]]:
    exact = x.astype(jnp.float32)
    inverse = jax.lax.rsqrt(jnp.mean(jnp.square(exact), axis=-1, keepdims=True) + eps)
    return scale * (exact * inverse).astype(x.dtype), (x, scale, inverse)


def _norm_bwd(eps: float, saved: tuple[Array, Array, Array], dy: Array) -> tuple[Array, Array]:
    x, scale, inverse = saved
    normed = x.astype(jnp.float32) * inverse
    exact = dy.astype(jnp.float32)
    # The sum over rows as a product with ones; as a sum it runs as many small windows.
    terms = (exact * normed).astype(x.dtype).reshape(-1, x.shape[-1])
    d_scale = (jnp.ones((_ONES, terms.shape[0]), x.dtype) @ terms)[0]
    inner = exact * scale.astype(jnp.float32)
    dx = inverse * (inner - normed * jnp.mean(inner * normed, axis=-1, keepdims=True))
    return dx.astype(x.dtype), d_scale.astype(scale.dtype)


rms_norm.defvjp(_norm_fwd, _norm_bwd)


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def causal_attention(q: Array, k: Array, v: Array, scale: float) -> Array:
    """Softmax attention; q [Z, G * S, h], k and v [Z, S, h]: G query heads a key head, in turn."""
    return _attention_fwd(q, k, v, scale)[0]


def _attention_fwd(
    q: Array, k: Array, v: Array, scale: float
) -> tuple[Array, tuple[Array, Array, Array, Array]]:
    length = k.shape[1]
    visible = jnp.tile(jnp.triu(jnp.ones((length, length), bool)), (1, q.shape[1] // length))
    scores = jnp.einsum("zkh,zqh->zkq", k, q).astype(jnp.float32) * scale
    raw = jnp.where(visible, jnp.exp(jnp.minimum(scores, _MAX_SCORE)), 0.0)
    weights = (raw * (1.0 / jnp.sum(raw, axis=1, keepdims=True))).astype(q.dtype)
    mixed = transposed(transposed(v) @ weights)
    return mixed, (q, k, v, weights)


def _attention_bwd(
    scale: float, saved: tuple[Array, Array, Array, Array], d_out: Array
) -> tuple[Array, Array, Array]:
    q, k, v, weights = saved
    dv = weights @ d_out
    d_weights = jnp.einsum("zkh,zqh->zkq", v, d_out).astype(jnp.float32)
    exact = weights.astype(jnp.float32)
    inner = jnp.sum(exact * d_weights, axis=1, keepdims=True)
    d_scores = (exact * (d_weights - inner) * scale).astype(q.dtype)
    dq = transposed(transposed(k) @ d_scores)
    return dq, d_scores @ q, dv


causal_attention.defvjp(_attention_fwd, _attention_bwd)


@jax.custom_vjp
def tied_cross_entropy(hidden: Array, embedding: Array, targets: Array) -> Array:
    """Mean cross-entropy of ``hidden [T, D] @ embedding.T [D, V]`` against ``targets [T]``."""
    return _entropy_fwd(hidden, embedding, targets)[0]


def _entropy_fwd(
    hidden: Array, embedding: Array, targets: Array
) -> tuple[Array, tuple[Array, Array, Array, Array, Array]]:
    logits = jnp.einsum("vd,td->vt", embedding, hidden)
    top = jnp.max(logits, axis=0).astype(jnp.float32)
    total = jnp.sum(jnp.exp(logits.astype(jnp.float32) - top), axis=0)
    log_z = top + jnp.log(total)
    right = jnp.sum(hidden.astype(jnp.float32) * embedding[targets].astype(jnp.float32), axis=-1)
    return jnp.mean(log_z - right), (hidden, embedding, targets, logits, log_z)


def _entropy_bwd(
    saved: tuple[Array, Array, Array, Array, Array], d_loss: Array
) -> tuple[Array, Array, None]:
    hidden, embedding, targets, logits, log_z = saved
    probability = jnp.exp(logits.astype(jnp.float32) - log_z)
    is_target = jax.lax.broadcasted_iota(jnp.int32, logits.shape, 0) == targets
    d_logits = (jnp.where(is_target, probability - 1.0, probability)).astype(hidden.dtype)
    factor = d_loss / targets.shape[0]
    d_hidden = transposed(transposed(embedding) @ d_logits)
    d_embedding = (d_logits @ hidden).astype(jnp.float32) * factor
    return (
        (d_hidden.astype(jnp.float32) * factor).astype(hidden.dtype),
        d_embedding.astype(embedding.dtype),
        None,
    )


tied_cross_entropy.defvjp(_entropy_fwd, _entropy_bwd)
