"""The list of the experts in use, inside a kernel."""

from typing import Any

import jax.numpy as jnp
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array

from lynx_jax.pallas_kernels.row_tiles import (
    PER_EXPERT,
    Block,
    along_experts,
    load_per_expert,
    load_per_row,
)

# How many rows use an expert, and how many would by plain top-k, go in one number.
_TOP_K_BIT = 16
USES_SLOT = 2  # of the totals, where that number lies


def packed_uses(used: Array, top_used: Array) -> Array:
    """int32 [R, N] of two masks; sums of it hold both counts, up to 2**15 - 1 each."""
    return jnp.where(used, 1, 0) + jnp.where(top_used, 1 << _TOP_K_BIT, 0)


def unpacked_uses(uses: Array) -> tuple[Array, Array]:
    """Which experts are used, and which would be by plain top-k, from summed ``packed_uses``."""
    return (uses & ((1 << _TOP_K_BIT) - 1)) > 0, (uses >> _TOP_K_BIT) > 0


def list_active(
    block: Block, totals_ref: Any, saves: Array, active_ref: Any, num_active_ref: Any
) -> None:
    """Writes the experts in use, ascending: the p-th is preceded by those with at most p up to it.

    Args:
      block: its warpgroups share the work.
      totals_ref: int32 [3, N] in shared memory, summed ``packed_uses`` in ``USES_SLOT``; the other
        two are overwritten.
      saves: bool [R, N], all equal: whether the rows are remapped.
      active_ref: int32 [N], padded with 0.
      num_active_ref: int32 [1].
    """
    width = totals_ref.shape[1]

    def is_used_up_to(experts: Any, expert: Array, column: Array) -> Array:
        uses = along_experts(load_per_row(totals_ref.at[USES_SLOT].at[experts]), width)
        used, top_used = unpacked_uses(uses)
        return ((saves & used) | (~saves & top_used)) & (expert <= column)

    def precedes(experts: Any, expert: Array, column: Array) -> Array:
        del expert
        return along_experts(load_per_row(totals_ref.at[0].at[experts]), width) <= column

    block.total(block.count_experts(width, is_used_up_to), totals_ref.at[0])
    block.total(block.count_experts(width, precedes), totals_ref.at[1])

    def write() -> None:
        num_active = totals_ref[0, width - 1]
        place = plgpu.broadcasted_iota(jnp.int32, (width,), 0, layout=PER_EXPERT)
        expert = load_per_expert(totals_ref.at[1])
        active_ref[...] = jnp.where(place < num_active, expert, 0)
        num_active_ref[0] = num_active

    block.first_only(write)


def write_count(mask: Array, rows_ref: Any, count_ref: Any) -> None:
    """Writes how many experts a mask [R, N] holds, which is the same in all rows.

    Args:
      rows_ref: int32 [R] in shared memory.
      count_ref: int32 [1].
    """
    rows_ref[...] = jnp.sum(jnp.where(mask, 1, 0), axis=1)
    count_ref[0] = rows_ref[0]
