"""All of one decode batch's routing in one launch: B up to 64 rows, N up to 256 experts.

One thread block. Each row stays in one warp (``row_tiles``); keys, weights and ranks wait in shared
memory between the stages, so that registers do for any batch. The warpgroups meet where something
is added up over the rows: votes, survivors, experts in use, places in the active list.

The reference is ``lynx_jax.routing.route``.
"""

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Bool, Float

from lynx_jax.pallas_kernels.active_list import (
    USES_SLOT,
    list_active,
    packed_uses,
    unpacked_uses,
    write_count,
)
from lynx_jax.pallas_kernels.router_tiles import bins_of, combine_weights, router_scores
from lynx_jax.pallas_kernels.routing_tiling import (
    RowTiling,
    count_live,
    one_block,
    pad_inputs,
    padded_experts,
)
from lynx_jax.pallas_kernels.row_batch import Batch, Spec, Tile
from lynx_jax.pallas_kernels.row_tiles import (
    COMPILER_PARAMS,
    LANES,
    ROWS,
    Block,
    load_tile,
    ordered,
    rank_ids,
    remapped_ranks,
    row_count,
    row_sum,
    top_ranks,
    zeros,
)
from lynx_jax.pallas_kernels.selection import LynxSelection, RoutedRows, RouterRule, Selection
from lynx_jax.pallas_kernels.survivor_tiles import survivors

LARGEST_K = LANES  # experts a row: a lane writes each


@dataclass(frozen=True)
class FusedSpec(Spec):
    """What the kernel is compiled for.

    Attributes:
      router: the family's scores and weight rule.
      min_rows: fewer live rows than this keep plain top-k.
      damping: how much less a substitute weighs, 0 to 1.
      biased: whether there is a selection bias.
    """

    router: RouterRule
    min_rows: int
    damping: float
    biased: bool


def fused_routing(
    logits: Float[Array, "rows experts"],
    live: Bool[Array, " rows"],
    bias: Float[Array, " experts"] | None = None,
    *,
    k: int,
    router: RouterRule,
    selection: Selection,
    min_rows: int,
    damping: float,
    tiling: RowTiling | None = None,
    interpret: Any = False,
) -> RoutedRows:
    """Route a decode batch in one kernel launch.

    Args:
      logits: bfloat16 or float32 router logits of up to 64 rows and 256 experts; padded experts at
        ``-inf``. Rows that are not live may hold anything.
      live: rows that count.
      bias: selection bias, for routers that have one.
      k: experts a row.
      router: the family's scores and weight rule.
      selection: which experts of the batch survive.
      min_rows: fewer live rows than this keep plain top-k.
      damping: how much less a substitute weighs, 0 to 1.
      tiling: how the rows lie over the warpgroups; by default as ``one_block`` says.
      interpret: ``plgpu.InterpretGPUParams`` to run on a CPU.
    """
    rows, experts = logits.shape
    width = padded_experts(experts)
    tiling = tiling or one_block(rows, width)
    spec = FusedSpec(
        rows, experts, k, selection, tiling, router, min_rows, damping, biased=bias is not None
    )
    shape = (tiling.rows, width)
    kernel = plgpu.kernel(
        functools.partial(fused_routing_body, spec=spec),
        out_type=(
            _array((tiling.rows, LANES), jnp.int32),
            _array(shape, jnp.float32),
            _array((width,), jnp.int32),
            _array((1,), jnp.int32),
            _array((1,), jnp.int32),
        ),
        scratch_types=(
            plgpu.SMEM(shape, jnp.int32),
            plgpu.SMEM(shape, jnp.float32),
            plgpu.SMEM(shape, jnp.int32),
            plgpu.SMEM((ROWS * tiling.warpgroups, width), jnp.int32),
            plgpu.SMEM((3, width), jnp.int32),
            plgpu.SMEM((ROWS,), jnp.int32),
            plgpu.Barrier(num_arrivals=tiling.warpgroups),
        ),
        num_threads=tiling.warpgroups,
        thread_name="warpgroup",
        kernel_name="fused_routing",
        compiler_params=COMPILER_PARAMS,
        interpret=interpret,
    )
    padded_logits, padded_live, *rest = pad_inputs(logits, live, bias, tiling.rows)
    ids, combine, active, num_active, num_active_topk = kernel(
        padded_logits, padded_live, count_live(live), *rest
    )
    return RoutedRows(
        ids=ids[:rows, :k],
        combine=combine[:rows, :experts],
        active=active[:experts],
        num_active=num_active[0],
        num_active_topk=num_active_topk[0],
    )


def _array(shape: tuple[int, ...], dtype: Any) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype)  # type: ignore[no-untyped-call]


def fused_routing_body(*refs: Any, spec: FusedSpec) -> None:
    """The kernel.

    Args:
      refs: in this order
        logits [B, N] float32 or bfloat16, live [B] int32, num_live [1] int32,
        bias [N] float32 if the router has one;
        outputs ids [B, 32] int32, combine [B, N] float32, active [N] int32, num_active [1] int32,
        num_active_topk [1] int32;
        shared key [B, N] int32, weight [B, N] float32, state [B, N] int32, tiles [4 W, N] int32,
        totals [3, N] int32, count [4] int32, and a barrier of W arrivals.
      spec: static.
    """
    logits_ref, live_ref, num_live_ref = refs[:3]
    bias_ref = refs[3] if spec.biased else None
    outputs, scratch = refs[3 + spec.biased : 8 + spec.biased], refs[8 + spec.biased :]
    ids_ref, combine_ref, active_ref, num_active_ref, num_active_topk_ref = outputs
    key_ref, weight_ref, state_ref, tiles_ref, totals_ref, count_ref, barrier = scratch

    block = Block(spec.tiling.warpgroups, lax.axis_index("warpgroup"), tiles_ref, barrier)
    batch = Batch(
        spec, block, live_ref, key_ref, weight_ref, state_ref, num_live_ref[0], totals_ref
    )
    batch.each(lambda tile: _score_rows(tile, logits_ref, bias_ref, spec))
    used, top_used = _place_rows(batch, survivors(batch))
    saves = (row_count(used) < row_count(top_used)) & (batch.num_live >= spec.min_rows)
    batch.each(lambda tile: _weigh_rows(tile, saves, ids_ref, combine_ref, spec))
    list_active(block, totals_ref, saves, active_ref, num_active_ref)
    block.first_only(lambda: write_count(top_used, count_ref, num_active_topk_ref))


def _score_rows(tile: Tile, logits_ref: Any, bias_ref: Any | None, spec: FusedSpec) -> None:
    """Keys, weights, bins and top-k of a tile."""
    logits = load_tile(logits_ref.at[tile.slice]).astype(jnp.float32)
    logits = jnp.where(tile.live(), logits, 0.0)
    choice, confidence, weight = router_scores(logits, bias_ref, spec.router, spec.experts)
    key = ordered(choice)
    tile.key_ref[tile.slice] = key
    tile.weight_ref[tile.slice] = weight
    top_rank = top_ranks(key, spec.k)
    match spec.selection:
        case LynxSelection(alpha=alpha, beta=beta):
            tile.keep(bins_of(confidence, alpha, beta), top_rank)
        case _:
            tile.keep(top_rank, top_rank)


def _place_rows(batch: Batch, survives: Array | None) -> tuple[Array, Array]:
    """Each row's places in the remapped routing; bool [R, N] of what it and top-k would use."""
    k = batch.spec.k

    def place(tile: Tile, uses: Array) -> Array:
        top_rank, live = tile.top_rank(), tile.live()
        rank = top_rank if survives is None else remapped_ranks(tile.key(), survives, k)
        tile.keep(rank, top_rank)
        return uses + packed_uses(live & (rank < k), live & (top_rank < k))

    return unpacked_uses(batch.total(batch.fold(place, zeros(batch.width)), USES_SLOT))


def _weigh_rows(tile: Tile, saves: Array, ids_ref: Any, combine_ref: Any, spec: FusedSpec) -> None:
    """Final experts and weights of a tile: remapped where that saves, else plain top-k."""
    top_rank, weight = tile.top_rank(), tile.weight()
    rank = jnp.where(saves, tile.upper(), top_rank)
    top_sum = row_sum(jnp.where(top_rank < spec.k, weight, 0.0))
    own = top_rank < spec.k
    combine = combine_weights(rank < spec.k, own, weight, top_sum, spec.router, spec.damping)
    combine_ref[tile.slice] = jnp.where(tile.live(), combine, 0.0)
    ids_ref[tile.slice] = rank_ids(rank, spec.k)
