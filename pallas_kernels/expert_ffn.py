"""The experts of one layer: all of them (the oracle), those in use one by one, or rows by expert.

Each form gives ``sum over e of combine[row, e] * down_e(silu(gate_e(x)) * up_e(x))``. Axes in
comments: T rows, k experts a row, N experts, D model width, F expert width, R rows of a block.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from lynx_jax.pallas_kernels.dense import from_columns, times_columns, to_columns

# One array [N, outputs, inputs], or N arrays [outputs, inputs]. XLA on CPU copies an expert out of
# a stacked array before it multiplies; a switch over arrays of their own reads them where they lie.
type ExpertWeights = Float[Array, "_ _ _"] | Sequence[Float[Array, "_ _"]]


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
    gate_up: Float[Array, "experts hidden2 width"],
    down: Float[Array, "experts width hidden"],
) -> Float[Array, "rows width"]:
    """All experts for all rows, in float32 at the highest precision; rounds to x's dtype as the
    other forms do: the hidden activations and the result.

    Args:
      x: rows; one without a weight in ``combine`` may hold anything and yields zeros.
      combine: float32 weight of each expert in each row.
      gate_up: gate's F output rows, then up's F.
      down: down projections.
    """
    used = combine != 0
    clean = jnp.where(jnp.any(used, axis=1, keepdims=True), x, 0)
    highest = jax.lax.Precision.HIGHEST
    h = jnp.einsum("td,nfd->ntf", _f32(clean), _f32(gate_up), precision=highest)
    gate, up = jnp.split(h, 2, axis=-1)
    a = _f32((jax.nn.silu(gate) * up).astype(x.dtype))
    y = jnp.einsum("ntf,ndf->tnd", a, _f32(down), precision=highest)
    return jnp.sum(jnp.where(used[..., None], combine[..., None] * y, 0.0), axis=1).astype(x.dtype)


def dense_over_active(
    x: Float[Array, "rows width"],
    combine: Float[Array, "rows experts"],
    active: Int[Array, " experts"],
    num_active: Int[Array, ""],
    gate_up: ExpertWeights,
    down: ExpertWeights,
) -> Float[Array, "rows width"]:
    """All rows for each expert in use; reads no other expert, and each of these once.

    Args:
      x: rows; one without a weight in ``combine`` may hold anything and yields zeros.
      combine: float32 weight of each expert in each row.
      active: the experts in use come first.
      num_active: how many they are.
      gate_up: for each expert [2F, D], gate first.
      down: for each expert [D, F].
    """
    clean = jnp.where(jnp.any(combine != 0, axis=1, keepdims=True), x, 0)
    columns = to_columns(clean)  # [D, T]
    by_expert = jnp.pad(combine.T, ((0, 0), (0, columns.shape[1] - x.shape[0])))  # [N, T]
    gate_up_of, down_of = _selector(gate_up), _selector(down)

    def add_expert(i: Array, total: Array) -> Array:
        expert = active[i]
        y = _ffn_columns(columns, expert, gate_up_of, down_of)
        weight = by_expert[expert]
        return total + jnp.where(weight != 0, weight * y, 0.0)

    total: Array = jax.lax.fori_loop(
        0, num_active, add_expert, jnp.zeros(columns.shape, jnp.float32)
    )
    return from_columns(total, x.shape[0]).astype(x.dtype)


def grouped_by_expert(
    x: Float[Array, "rows width"],
    ids: Int[Array, "rows k"],
    weights: Float[Array, "rows k"],
    live: Bool[Array, " rows"],
    gate_up: ExpertWeights,
    down: ExpertWeights,
    *,
    block: int,
) -> Float[Array, "rows width"]:
    """Only the rows that chose an expert, ``block`` of them at a time; reads no other expert.

    Args:
      x: rows; those that are not live may hold anything and yield zeros.
      ids: k distinct experts a row.
      weights: float32 weights of ``ids``.
      live: rows that count.
      gate_up: for each expert [2F, D], gate first.
      down: for each expert [D, F].
      block: rows R of one step; a step reads its expert once.
    """
    num_experts, k = len(gate_up), ids.shape[1]
    order, block_expert, block_start, ends, num_blocks = _blocks(ids, live, num_experts, block)
    flat_weights = weights.reshape(-1)
    gate_up_of, down_of = _selector(gate_up), _selector(down)

    def add_block(b: Array, total: Array) -> Array:
        expert, start = block_expert[b], block_start[b]
        pairs = jax.lax.dynamic_slice(order, (start,), (block,))
        valid = start + jnp.arange(block) < ends[expert]
        rows = jnp.where(valid, pairs // k, x.shape[0])  # one past the end: read as 0, not written
        columns = to_columns(x.at[rows].get(mode="fill", fill_value=0))
        y = from_columns(_ffn_columns(columns, expert, gate_up_of, down_of), block)
        return total.at[rows].add(flat_weights[pairs][:, None] * y, mode="drop")

    total: Array = jax.lax.fori_loop(0, num_blocks, add_block, jnp.zeros(x.shape, jnp.float32))
    return total.astype(x.dtype)


def _blocks(
    ids: Int[Array, "rows k"], live: Bool[Array, " rows"], num_experts: int, block: int
) -> tuple[Array, Array, Array, Array, Array]:
    """The (row, expert) pairs of live rows, sorted by expert and cut into blocks of one expert.

    Returns:
      order: pair indices into flattened ``ids``, by expert; ``block`` zeros follow the last.
      block_expert, block_start: a block's expert and its first place in ``order``.
      ends: where each expert's pairs end in ``order``.
      num_blocks: how many blocks count.
    """
    pairs = ids.size
    expert_of = jnp.where(live[:, None], ids, num_experts).reshape(-1)
    order = jnp.pad(jnp.argsort(expert_of), (0, block))
    sizes = jnp.sum(expert_of[:, None] == jnp.arange(num_experts), axis=0, dtype=jnp.int32)
    ends = jnp.cumsum(sizes)
    blocks = -(-sizes // block)
    last_block = jnp.cumsum(blocks)
    most = min(pairs, pairs // block + num_experts)
    index = jnp.arange(most, dtype=jnp.int32)
    block_expert = jnp.searchsorted(last_block, index, side="right", method="compare_all")
    block_expert = jnp.minimum(block_expert, num_experts - 1)
    within = index - (last_block - blocks)[block_expert]
    return order, block_expert, (ends - sizes)[block_expert] + within * block, ends, last_block[-1]


type _Selector = Callable[[Array, Array], Array]


def _selector(weights: ExpertWeights) -> _Selector:
    """A function of (expert, columns) that multiplies the expert's weight by the columns."""
    if isinstance(weights, Sequence):
        branches = [lambda columns, w=w: times_columns(w, columns) for w in weights]
        return lambda expert, columns: jax.lax.switch(expert, branches, columns)
    return lambda expert, columns: times_columns(weights[expert], columns)


def _ffn_columns(columns: Array, expert: Array, gate_up_of: _Selector, down_of: _Selector) -> Array:
    """The expert's output of each column, float32 [D, columns]."""
    gate, up = jnp.split(gate_up_of(expert, columns), 2)
    return down_of(expert, (jax.nn.silu(gate) * up).astype(columns.dtype))


def _f32(x: Array) -> Array:
    return x.astype(jnp.float32)
