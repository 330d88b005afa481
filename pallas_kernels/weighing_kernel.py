"""The last two launches of routing any number of rows: where each row goes among the survivors, and
the weights and the active list.
"""

import functools
from typing import Any

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Bool, Float, Int

from lynx_jax.pallas_kernels.active_list import (
    USES_SLOT,
    list_active,
    packed_uses,
    unpacked_uses,
    write_count,
)
from lynx_jax.pallas_kernels.router_tiles import combine_weights
from lynx_jax.pallas_kernels.routing_tiling import (
    count_live,
    pad_inputs,
    pad_rows,
    padded_experts,
    row_blocks,
)
from lynx_jax.pallas_kernels.row_batch import packed_state, unpacked_state
from lynx_jax.pallas_kernels.row_blocks import (
    RouterTile,
    block_index,
    block_rows,
    launch,
    sum_of_parts,
)
from lynx_jax.pallas_kernels.row_tiles import (
    LANES,
    ROWS,
    Block,
    along_experts,
    along_rows,
    load_per_row,
    load_tile,
    ordered,
    rank_ids,
    remapped_ranks,
    row_count,
    top_ranks,
)
from lynx_jax.pallas_kernels.selection import RoutedRows, RouterRule


def remap_into(
    logits: Float[Array, "rows experts"],
    live: Bool[Array, " rows"],
    bias: Float[Array, " experts"] | None,
    named: Int[Array, "parts width"],
    top_sum: Float[Array, " rows"],
    *,
    k: int,
    router: RouterRule,
    min_rows: int,
    damping: float,
    interpret: Any = False,
) -> RoutedRows:
    """Each row's k best experts among the survivors, by its own choice.

    Args:
      named: int32 parts, a multiple of 4; an expert survives where their sum is above 0. N is
        padded to a multiple of 32.
      logits, live, bias, top_sum, k, router, min_rows, damping, interpret: as of ``remapping``.
    """
    rows, experts = logits.shape
    blocks, width = row_blocks(rows), padded_experts(experts)
    shape, parts = (blocks * ROWS, width), (blocks, width)
    tile = RouterTile(router, experts, bias is not None)
    inputs = pad_inputs(logits, live, bias, shape[0])
    state, uses = launch(
        functools.partial(_remap_body, tile=tile, k=k),
        blocks,
        [(shape, jnp.int32), (parts, jnp.int32)],
        name="remap",
        interpret=interpret,
    )(*inputs, named)
    ids, combine, active, num_active, num_active_topk = launch(
        functools.partial(_weigh_body, tile=tile, k=k, min_rows=min_rows, damping=damping),
        blocks,
        [
            ((shape[0], LANES), jnp.int32),
            (shape, jnp.float32),
            ((width,), jnp.int32),
            ((1,), jnp.int32),
            ((1,), jnp.int32),
        ],
        name="weigh",
        scratch=[
            plgpu.SMEM((ROWS, width), jnp.int32),
            plgpu.SMEM((3, width), jnp.int32),
            plgpu.SMEM((ROWS,), jnp.int32),
            plgpu.Barrier(),
        ],
        interpret=interpret,
    )(*inputs, state, uses, pad_rows(top_sum, shape[0]), count_live(live))
    return RoutedRows(
        ids[:rows, :k],
        combine[:rows, :experts],
        active[:experts],
        num_active[0],
        num_active_topk[0],
    )


# The kernels' references begin with logits [B, N] float32 or bfloat16, live [B] int32, and bias [N]
# float32 if the router has one; `refs` goes on with what is named below.


def _remap_body(
    logits_ref: Any,
    live_ref: Any,
    *refs: Any,  # [bias,] named [T, N] int32; outputs state [B, N] int32, uses [T, N] int32
    tile: RouterTile,
    k: int,
) -> None:
    bias_ref, (named_ref, state_ref, uses_ref) = tile.split(refs)
    live, choice, _, _ = tile.scores(logits_ref, live_ref, bias_ref)
    key = ordered(choice)
    top_rank = top_ranks(key, k)
    rank = remapped_ranks(key, along_rows(sum_of_parts(named_ref)) > 0, k)
    state_ref[block_rows()] = packed_state(rank, top_rank)
    uses_ref[block_index()] = jnp.sum(packed_uses(live & (rank < k), live & (top_rank < k)), axis=0)


def _weigh_body(
    logits_ref: Any,
    live_ref: Any,
    *refs: Any,  # [bias,] state [B, N] int32, uses [T, N] int32, top_sum [B] float32,
    # num_live [1] int32; outputs ids [B, 32] int32, combine [B, N] float32, active [N] int32,
    # num_active [1] int32, num_active_topk [1] int32; shared tiles [R, N] int32,
    # totals [3, N] int32, count [R] int32, and a barrier
    tile: RouterTile,
    k: int,
    min_rows: int,
    damping: float,
) -> None:
    bias_ref, refs = tile.split(refs)
    state_ref, uses_ref, top_sum_ref, num_live_ref, ids_ref, combine_ref = refs[:6]
    active_ref, num_active_ref, num_active_topk_ref = refs[6:9]
    tiles_ref, totals_ref, count_ref, barrier = refs[9:]
    rows, width = block_rows(), logits_ref.shape[1]

    uses = sum_of_parts(uses_ref)
    used, top_used = unpacked_uses(along_rows(uses))
    saves = (row_count(used) < row_count(top_used)) & (num_live_ref[0] >= min_rows)

    live, _, _, weight = tile.scores(logits_ref, live_ref, bias_ref)
    remapped_rank, top_rank = unpacked_state(load_tile(state_ref.at[rows]))
    rank = jnp.where(saves, remapped_rank, top_rank)
    top_sum = along_experts(load_per_row(top_sum_ref.at[rows]), width)
    combine = combine_weights(rank < k, top_rank < k, weight, top_sum, tile.router, damping)
    combine_ref[rows] = jnp.where(live, combine, 0.0)
    ids_ref[rows] = rank_ids(rank, k)

    @pl.when(block_index() == 0)  # type: ignore[untyped-decorator]
    def write_active() -> None:
        totals_ref[USES_SLOT] = uses
        block = Block(1, jnp.int32(0), tiles_ref, barrier)
        list_active(block, totals_ref, saves, active_ref, num_active_ref)
        write_count(top_used, count_ref, num_active_topk_ref)
