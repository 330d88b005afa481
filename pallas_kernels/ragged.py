"""Experts of many rows: rows sorted by expert, two grouped matrix products."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from lynx_jax.pallas_kernels.expert_form import ExpertForm, ExpertWeights

# [rows, inputs] with [experts, outputs, inputs], the layout that weights have here.
_BY_EXPERT = jax.lax.RaggedDotDimensionNumbers(  # type: ignore[no-untyped-call]
    dot_dimension_numbers=(([1], [2]), ([], [])),
    lhs_ragged_dimensions=[0],
    rhs_group_dimensions=[0],
)


# ``jax.lax.ragged_dot_general``, or a kernel that takes the same arguments.
type RaggedDot = Callable[..., Array]


def ragged_by_expert(
    x: Float[Array, "rows width"],
    ids: Int[Array, "rows k"],
    weights: Float[Array, "rows k"],
    live: Bool[Array, " rows"],
    experts: ExpertWeights,
    form: ExpertForm,
    *,
    ragged_dot: RaggedDot,
) -> Float[Array, "rows width"]:
    """Each row for the experts that it chose; a row's k outputs are summed in the order of ``ids``.

    Args:
      x: rows; those that are not live may hold anything and yield zeros.
      ids: k distinct experts a row.
      weights: float32 weights of ``ids``.
      live: rows that count.
      experts: stacked arrays.
      form: what one expert computes.
      ragged_dot: multiplies.
    """
    gate_up, down = jnp.asarray(experts.gate_up), jnp.asarray(experts.down)
    num_experts, k = len(gate_up), ids.shape[1]
    expert_of = jnp.where(live[:, None], ids, num_experts).reshape(-1)
    order = jnp.argsort(expert_of)  # pairs of a row and an expert, by expert; dead ones last
    expert, weight = expert_of[order], weights.reshape(-1)[order][:, None]
    sizes = jnp.sum(expert[:, None] == jnp.arange(num_experts), axis=0, dtype=jnp.int32)
    row = order // k
    inputs = jnp.where(live[row][:, None], x[row], 0)
    if form.scale_input:
        inputs = (weight * inputs.astype(jnp.float32)).astype(x.dtype)

    def product(inputs: Array, matrices: Array, bias: Array | None) -> Array:
        y = ragged_dot(inputs, matrices, sizes, _BY_EXPERT, preferred_element_type=jnp.float32)
        return y if bias is None else y + bias[expert].astype(jnp.float32)

    h = product(inputs, gate_up, experts.gate_up_bias)
    y = product(form.activate(*jnp.split(h, 2, axis=1)).astype(x.dtype), down, experts.down_bias)
    if not form.scale_input:
        y = weight * y
    y = jnp.where((expert < num_experts)[:, None], y, 0.0)
    return jnp.sum(y[jnp.argsort(order)].reshape(*ids.shape, -1), axis=1).astype(x.dtype)
