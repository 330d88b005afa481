"""The experts of one layer: all of them (the oracle), those in use one by one, or rows by expert.

Each function gives ``sum over e of combine[row, e] * down_e(activate(gate_e(x), up_e(x)))``, or,
where ``ExpertForm.scale_input`` says so, takes ``combine[row, e] * x`` for x and sums the outputs
as they are. Axes in comments: T rows, k experts a row, N experts, D model width, F expert width, R
rows of a block.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from lynx_jax.pallas_kernels.dense import from_columns, times_columns, to_columns
from lynx_jax.pallas_kernels.expert_form import ExpertForm, ExpertWeights, Matrices
from lynx_jax.pallas_kernels.grouping import blocks_of_groups, pairs_by_expert


def combine_matrix(
    ids: Int[Array, "rows k"],
    weights: Float[Array, "rows k"],
    live: Bool[Array, " rows"],
    num_experts: int,
) -> Float[Array, "rows {num_experts}"]:
    """float32 weight of every expert in every row; 0 where not chosen or not live."""
    chosen = (ids[..., None] == jnp.arange(num_experts)) & live[:, None, None]
    return jnp.sum(jnp.where(chosen, weights[..., None], 0.0), axis=1)


def expert_ffn_reference(
    x: Float[Array, "rows width"],
    combine: Float[Array, "rows experts"],
    weights: ExpertWeights,
    form: ExpertForm,
) -> Float[Array, "rows width"]:
    """All experts for all rows, in float32 at the highest precision; rounds to x's dtype as the
    other forms do: scaled inputs, the hidden activations and the result.

    Args:
      x: rows; one without a weight in ``combine`` may hold anything and yields zeros.
      combine: float32 weight of each expert in each row.
      weights: stacked arrays.
      form: what one expert computes.
    """
    used = combine != 0
    clean = jnp.where(jnp.any(used, axis=1, keepdims=True), x, 0)
    highest = jax.lax.Precision.HIGHEST
    gate_up, down = _f32(jnp.asarray(weights.gate_up)), _f32(jnp.asarray(weights.down))
    if form.scale_input:
        scaled = (combine.T[:, :, None] * _f32(clean)).astype(x.dtype)  # [N, T, D]
        h = jnp.einsum("ntd,nfd->ntf", _f32(scaled), gate_up, precision=highest)
    else:
        h = jnp.einsum("td,nfd->ntf", _f32(clean), gate_up, precision=highest)
    if weights.gate_up_bias is not None:
        h = h + _f32(weights.gate_up_bias)[:, None]
    a = _f32(form.activate(*jnp.split(h, 2, axis=-1)).astype(x.dtype))
    y = jnp.einsum("ntf,ndf->tnd", a, down, precision=highest)
    if weights.down_bias is not None:
        y = y + _f32(weights.down_bias)
    if not form.scale_input:
        y = combine[..., None] * y
    return jnp.sum(jnp.where(used[..., None], y, 0.0), axis=1).astype(x.dtype)


def dense_over_active(
    x: Float[Array, "rows width"],
    combine: Float[Array, "rows experts"],
    active: Int[Array, " experts"],
    num_active: Int[Array, ""],
    weights: ExpertWeights,
    form: ExpertForm,
) -> Float[Array, "rows width"]:
    """All rows for each expert in use; reads no other expert, and each of these once.

    Args:
      x: rows; one without a weight in ``combine`` may hold anything and yields zeros.
      combine: float32 weight of each expert in each row.
      active: the experts in use come first.
      num_active: how many they are.
      weights: stacked arrays or an array an expert.
      form: what one expert computes.
    """
    clean = jnp.where(jnp.any(combine != 0, axis=1, keepdims=True), x, 0)
    columns = to_columns(clean)  # [D, T]
    by_expert = jnp.pad(combine.T, ((0, 0), (0, columns.shape[1] - x.shape[0])))  # [N, T]
    expert_columns = _expert_columns(weights, form)

    def add_expert(i: Array, total: Array) -> Array:
        expert = active[i]
        weight = by_expert[expert]
        return total + jnp.where(weight != 0, expert_columns(expert, columns, weight), 0.0)

    total: Array = jax.lax.fori_loop(
        0, num_active, add_expert, jnp.zeros(columns.shape, jnp.float32)
    )
    return from_columns(total, x.shape[0]).astype(x.dtype)


def grouped_by_expert(
    x: Float[Array, "rows width"],
    ids: Int[Array, "rows k"],
    weights: Float[Array, "rows k"],
    live: Bool[Array, " rows"],
    experts: ExpertWeights,
    form: ExpertForm,
    *,
    block: int,
) -> Float[Array, "rows width"]:
    """Only the rows that chose an expert, ``block`` of them at a time; reads no other expert.

    Args:
      x: rows; those that are not live may hold anything and yield zeros.
      ids: k distinct experts a row.
      weights: float32 weights of ``ids``.
      live: rows that count.
      experts: stacked arrays or an array an expert.
      form: what one expert computes.
      block: rows R of one step; a step reads its expert once.
    """
    k = ids.shape[1]
    pairs = pairs_by_expert(ids, live, len(experts.gate_up))
    blocks, ends = blocks_of_groups(pairs.sizes, ids.size, block), jnp.cumsum(pairs.sizes)
    order = jnp.pad(pairs.order, (0, block))  # the last block may reach so far
    flat_weights = weights.reshape(-1)
    expert_columns = _expert_columns(experts, form)

    def add_block(b: Array, total: Array) -> Array:
        expert, start = blocks.group[b], blocks.first[b]
        chosen = jax.lax.dynamic_slice(order, (start,), (block,))
        valid = start + jnp.arange(block) < ends[expert]
        rows = jnp.where(valid, chosen // k, x.shape[0])  # one past the end: read as 0, not written
        columns = to_columns(x.at[rows].get(mode="fill", fill_value=0))
        weight = jnp.pad(flat_weights[chosen], (0, columns.shape[1] - block))
        y = from_columns(expert_columns(expert, columns, weight), block)
        return total.at[rows].add(y, mode="drop")

    total: Array = jax.lax.fori_loop(0, blocks.in_use, add_block, jnp.zeros(x.shape, jnp.float32))
    return total.astype(x.dtype)


type _Product = Callable[[Array, Array], Array]


def _product(matrices: Matrices, bias: Array | None) -> _Product:
    """A function of (expert, columns): the expert's matrix times the columns, plus its bias."""
    if isinstance(matrices, Sequence):
        branches = [lambda columns, m=m: times_columns(m, columns) for m in matrices]

        def times(expert: Array, columns: Array) -> Array:
            product: Array = jax.lax.switch(expert, branches, columns)
            return product
    else:

        def times(expert: Array, columns: Array) -> Array:
            return times_columns(matrices[expert], columns)

    if bias is None:
        return times
    return lambda expert, columns: times(expert, columns) + _f32(bias[expert])[:, None]


def _expert_columns(
    weights: ExpertWeights, form: ExpertForm
) -> Callable[[Array, Array, Array], Array]:
    """A function of (expert, columns, weight [columns]): what the expert adds to each column's
    result, float32 [D, columns]."""
    gate_up_of = _product(weights.gate_up, weights.gate_up_bias)
    down_of = _product(weights.down, weights.down_bias)

    def compute(expert: Array, columns: Array, weight: Array) -> Array:
        inputs = (weight * _f32(columns)).astype(columns.dtype) if form.scale_input else columns
        gate, up = jnp.split(gate_up_of(expert, inputs), 2)
        y: Array = down_of(expert, form.activate(gate, up).astype(columns.dtype))
        return y if form.scale_input else weight * y

    return compute


def _f32(x: Array) -> Array:
    return x.astype(jnp.float32)
