"""Remapping of any number of rows in three launches: which experts each block's rows name as
critical, where each row goes among all that are named, and the weights and the active list.
"""

import functools
from collections.abc import Callable
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
from lynx_jax.pallas_kernels.expert_ffn import combine_matrix
from lynx_jax.pallas_kernels.remapping import (
    compact,
    critical_set,
    expert_union,
    remap_if_it_saves,
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
    critical_experts,
    load_per_row,
    load_tile,
    ordered,
    rank_ids,
    remapped_ranks,
    row_count,
    top_ranks,
)
from lynx_jax.pallas_kernels.selection import RoutedRows, RouterRule
from lynx_jax.pallas_kernels.topk import top_k


def remapping(
    logits: Float[Array, "rows experts"],
    live: Bool[Array, " rows"],
    bias: Float[Array, " experts"] | None,
    scores: Int[Array, "rows experts"],
    top_sum: Float[Array, " rows"],
    *,
    k: int,
    router: RouterRule,
    floor: int,
    min_rows: int,
    damping: float,
    interpret: Any = False,
) -> RoutedRows:
    """Each row's k best experts of the critical set, by its own choice (arXiv 2411.08982).

    Args:
      logits: bfloat16 or float32 router logits of up to 2**15 - 1 rows; padded experts at
        ``-inf``.
      live: rows that count; the others may hold anything.
      bias: selection bias, for routers that have one.
      scores: int32 scores from ``scoring``.
      top_sum: float32 sums of the weights that plain top-k has, from ``binning``.
      k: experts a row, up to 32.
      router: the family's scores and weight rule.
      floor: each row's first ``floor`` experts survive in any case.
      min_rows: fewer live rows than this keep plain top-k, as do rows where remapping saves no
        expert.
      damping: how much less a substitute weighs, 0 to 1.
      interpret: ``plgpu.InterpretGPUParams`` to run on a CPU.

    Returns:
      As ``remapping_reference``.
    """
    rows, experts = logits.shape
    blocks, width = row_blocks(rows), padded_experts(experts)
    shape, parts = (blocks * ROWS, width), (blocks, width)
    tile = RouterTile(router, experts, bias is not None)

    def run(
        body: Callable[..., None], name: str, outputs: Any, *inputs: Array, scratch: Any = ()
    ) -> list[Array]:
        kernel = launch(body, blocks, outputs, name=name, scratch=scratch, interpret=interpret)
        return kernel(*routed_inputs, *inputs)

    routed_inputs = pad_inputs(logits, live, bias, shape[0])
    (named,) = run(
        functools.partial(_critical_body, tile=tile, k=k, floor=floor),
        "critical",
        [(parts, jnp.int32)],
        pad_rows(scores, shape[0]),
    )
    state, uses = run(
        functools.partial(_remap_body, tile=tile, k=k),
        "remap",
        [(shape, jnp.int32), (parts, jnp.int32)],
        named,
    )
    ids, combine, active, num_active, num_active_topk = run(
        functools.partial(_weigh_body, tile=tile, k=k, min_rows=min_rows, damping=damping),
        "weigh",
        [
            ((shape[0], LANES), jnp.int32),
            (shape, jnp.float32),
            ((width,), jnp.int32),
            ((1,), jnp.int32),
            ((1,), jnp.int32),
        ],
        state,
        uses,
        pad_rows(top_sum, shape[0]),
        count_live(live),
        scratch=[
            plgpu.SMEM((ROWS, width), jnp.int32),
            plgpu.SMEM((3, width), jnp.int32),
            plgpu.SMEM((ROWS,), jnp.int32),
            plgpu.Barrier(),
        ],
    )
    return RoutedRows(
        ids[:rows, :k],
        combine[:rows, :experts],
        active[:experts],
        num_active[0],
        num_active_topk[0],
    )


def remapping_reference(
    logits: Float[Array, "rows experts"],
    live: Bool[Array, " rows"],
    bias: Float[Array, " experts"] | None,
    scores: Int[Array, "rows experts"],
    top_sum: Float[Array, " rows"],
    *,
    k: int,
    router: RouterRule,
    floor: int,
    min_rows: int,
    damping: float,
) -> RoutedRows:
    """``remapping`` in plain JAX; ``top_sum`` is not looked at, it follows from the logits."""
    del top_sum
    num_experts = logits.shape[1]
    clean = jnp.where(live[:, None], logits.astype(jnp.float32), 0.0)
    choice, weight = (found := router.scores(clean, bias)).choice, found.weight
    top_ids = top_k(choice, k)
    top_used = expert_union(top_ids, live, num_experts)
    survivors = critical_set(scores, choice, live, k, floor)
    ids, used = remap_if_it_saves(choice, survivors, live, top_ids, top_used, k, min_rows)
    combine = combine_matrix(ids, router.weigh(weight, ids, top_ids, damping), live, num_experts)
    return RoutedRows(ids, combine, *compact(used), jnp.sum(top_used, dtype=jnp.int32))


# The kernels' references begin with logits [B, N] float32 or bfloat16, live [B] int32, and bias [N]
# float32 if the router has one; `refs` goes on with what is named below.


def _critical_body(
    logits_ref: Any,
    live_ref: Any,
    *refs: Any,  # [bias,] scores [B, N] int32; output named [T, N] int32
    tile: RouterTile,
    k: int,
    floor: int,
) -> None:
    bias_ref, (scores_ref, named_ref) = tile.split(refs)
    live, choice, _, _ = tile.scores(logits_ref, live_ref, bias_ref)
    key = ordered(choice)
    named = critical_experts(load_tile(scores_ref.at[block_rows()]), key, k)
    named = named | (top_ranks(key, floor) < floor)
    named_ref[block_index()] = jnp.sum(jnp.where(named & live, 1, 0), axis=0)


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
