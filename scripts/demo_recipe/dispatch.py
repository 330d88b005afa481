"""Capacity dispatch: the rows of each expert gathered into one batched matrix product.

Each expert has room for C rows. Rows beyond it are dropped for that expert, later rows first; the
share dropped is reported. With room for all, the result is that of the plain formula.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from demo_recipe.fast_ops import transposed


class Plan(NamedTuple):
    """Where each of a row's k choices is computed; T rows, N experts, C places an expert.

    Attributes:
      token: int32 [N, C], the row at each place (any row where none is).
      choice: int32 [N, C], the index into the flat [T * k] choices of the same place.
      filled: bool [N, C], whether the place holds a row.
      place: int32 [T, k], the flat place of each choice (0 where it was dropped).
      kept: bool [T, k], whether the choice has a place.
    """

    token: Array
    choice: Array
    filled: Array
    place: Array
    kept: Array


def capacity_of(rows: int, k: int, num_experts: int, factor: float) -> int:
    """Places an expert, ``factor`` times its even share, rounded up to a multiple of 64."""
    return min(rows, -(-int(rows * k * factor / num_experts) // 64) * 64)


def plan(ids: Array, num_experts: int, capacity: int) -> Plan:
    """Give every choice of ``ids`` [T, k] a place with its expert, in the order of rows."""
    rows, k = ids.shape
    flat = ids.reshape(-1)
    order = jnp.argsort(flat, stable=True).astype(jnp.int32)
    count = jnp.zeros(num_experts, jnp.int32).at[flat].add(1)
    start = jnp.cumsum(count) - count
    column = jnp.arange(capacity, dtype=jnp.int32)
    filled = column < count[:, None]
    choice = order[jnp.minimum(start[:, None] + column, rows * k - 1)]
    rank = jnp.zeros(rows * k, jnp.int32).at[order].set(jnp.arange(rows * k, dtype=jnp.int32))
    rank = rank - start[flat]
    kept = rank < capacity
    place = jnp.where(kept, flat * capacity + rank, 0)
    return Plan(choice // k, choice, filled, place.reshape(rows, k), kept.reshape(rows, k))


def _gather_sum(places: Array, values: Array, weights: Array) -> Array:
    """Float32 [T, D]: the weighted sum of each row's k places of ``values`` [N * C, D]."""
    total = jnp.zeros((places.shape[0], values.shape[1]), jnp.float32)
    for column in range(places.shape[1]):
        picked = values[places[:, column]].astype(jnp.float32)
        total = total + picked * weights[:, column : column + 1]
    return total


def _gate(hidden: Array) -> tuple[Array, Array, Array]:
    gate, up = jnp.split(hidden.astype(jnp.float32), 2, axis=-1)
    return gate, up, jax.nn.sigmoid(gate)


def _activation(hidden: Array) -> Array:
    gate, up, sigmoid = _gate(hidden)
    return (gate * sigmoid * up).astype(hidden.dtype)


@jax.custom_vjp
def expert_ffn(x: Array, weights: Array, gate_up: Array, down: Array, where: Plan) -> Array:
    """Weighted sum over each row's experts of their SwiGLU layers.

    Args:
      x: [T, D].
      weights: float32 [T, k].
      gate_up: [N, 2F, D], gate half first.
      down: [N, F, D].
      where: the plan of the rows' choices.
    """
    return _ffn_fwd(x, weights, gate_up, down, where)[0]


def _ffn_fwd(
    x: Array, weights: Array, gate_up: Array, down: Array, where: Plan
) -> tuple[Array, tuple[Array, ...]]:
    rows = x[where.token]  # [N, C, D]
    hidden = jnp.einsum("ncd,nfd->ncf", rows, gate_up)
    out = (_activation(hidden) @ down).reshape(-1, x.shape[-1])
    kept = jnp.where(where.kept, weights, 0.0)
    y = _gather_sum(where.place, out, kept).astype(x.dtype)
    return y, (rows, hidden, out, kept, gate_up, down, *where)


def _ffn_bwd(saved: tuple[Array, ...], dy: Array) -> tuple[Array, Array, Array, Array, None]:
    rows, hidden, out, kept, gate_up, down, *plan_fields = saved
    where = Plan(*plan_fields)
    dy32 = dy.astype(jnp.float32)
    d_weights = jnp.stack(
        [
            jnp.sum(out[where.place[:, column]].astype(jnp.float32) * dy32, axis=-1)
            for column in range(kept.shape[1])
        ],
        axis=1,
    )
    at_place = jnp.where(where.filled, kept.reshape(-1)[where.choice], 0.0)
    d_out = (dy[where.token].astype(jnp.float32) * at_place[..., None]).astype(dy.dtype)
    d_activation = jnp.einsum("ncd,nfd->ncf", d_out, down).astype(jnp.float32)
    d_down = transposed(_activation(hidden)) @ d_out
    gate, up, sigmoid = _gate(hidden)
    d_gate = d_activation * up * sigmoid * (1.0 + gate * (1.0 - sigmoid))
    d_hidden = jnp.concatenate([d_gate, d_activation * gate * sigmoid], -1).astype(dy.dtype)
    d_gate_up = transposed(d_hidden) @ rows
    d_rows = (d_hidden @ gate_up).reshape(-1, dy.shape[-1])
    dx = _gather_sum(where.place, d_rows, where.kept.astype(jnp.float32)).astype(dy.dtype)
    return dx, jnp.where(where.kept, d_weights, 0.0), d_gate_up, d_down, None


expert_ffn.defvjp(_ffn_fwd, _ffn_bwd)
