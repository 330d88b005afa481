"""Survivors of any number of rows for the policies that only add up over them: a launch that ranks
each block's rows, and one thread block that goes over all of them (``survivor_tiles``).
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Bool, Float, Int

from lynx_jax.pallas_kernels.routing_tiling import (
    count_live,
    one_block,
    pad_inputs,
    pad_rows,
    padded_experts,
)
from lynx_jax.pallas_kernels.row_batch import Batch, Spec, packed_state
from lynx_jax.pallas_kernels.row_blocks import RouterTile, block_rows, launch, store_row_sums
from lynx_jax.pallas_kernels.row_tiles import (
    COMPILER_PARAMS,
    ROWS,
    Block,
    ordered,
    replace,
    top_ranks,
    zeros,
)
from lynx_jax.pallas_kernels.selection import RouterRule, Selection
from lynx_jax.pallas_kernels.survivor_tiles import survivors


class BatchSurvivors(NamedTuple):
    """What a batch keeps.

    Attributes:
      named: int32, the same 4 times, 1 where an expert survives; N padded to a multiple of 32.
      top_sum: float32 sums of the weights that plain top-k has.
    """

    named: Int[Array, "4 width"]
    top_sum: Float[Array, " rows"]


def batch_survivors(
    logits: Float[Array, "rows experts"],
    live: Bool[Array, " rows"],
    bias: Float[Array, " experts"] | None,
    *,
    k: int,
    router: RouterRule,
    selection: Selection,
    interpret: Any = False,
) -> BatchSurvivors:
    """Experts that survive for the batch by any selection but Lynx's, and sums for the weights.

    Args:
      logits, live, bias, k, router, interpret: as of ``separate_routing``.
      selection: which experts survive.
    """
    rows, experts = logits.shape
    width = padded_experts(experts)
    tiling = one_block(rows, width)
    spec = Spec(rows, experts, k, selection, tiling)
    shape = (tiling.rows, width)
    key, weight, state, top_sum = launch(
        functools.partial(_rank_body, tile=RouterTile(router, experts, bias is not None), k=k),
        tiling.rows // ROWS,
        [(shape, jnp.int32), (shape, jnp.float32), (shape, jnp.int32), (shape[:1], jnp.float32)],
        name="rank",
        scratch=[plgpu.SMEM((ROWS,), jnp.float32)],
        interpret=interpret,
    )(*pad_inputs(logits, live, bias, tiling.rows))
    kernel = plgpu.kernel(
        functools.partial(_survivors_body, spec=spec),
        out_type=jax.ShapeDtypeStruct((ROWS, width), jnp.int32),  # type: ignore[no-untyped-call]
        scratch_types=(
            plgpu.SMEM((ROWS * tiling.warpgroups, width), jnp.int32),
            plgpu.SMEM((3, width), jnp.int32),
            plgpu.Barrier(num_arrivals=tiling.warpgroups),
        ),
        num_threads=tiling.warpgroups,
        thread_name="warpgroup",
        kernel_name="survivors",
        compiler_params=COMPILER_PARAMS,
        interpret=interpret,
    )
    padded_live = pad_rows(live.astype(jnp.int32), tiling.rows)
    return BatchSurvivors(kernel(padded_live, count_live(live), key, weight, state), top_sum[:rows])


def _rank_body(
    logits_ref: Any,  # [B, N] float32 or bfloat16
    live_ref: Any,  # [B] int32
    *refs: Any,  # bias [N] float32 if there is one; outputs key [B, N] int32,
    # weight [B, N] float32, state [B, N] int32, top_sum [B] float32; shared sums [R] float32
    tile: RouterTile,
    k: int,
) -> None:
    bias_ref, (key_ref, weight_ref, state_ref, top_sum_ref, sums_ref) = tile.split(refs)
    _, choice, _, weight = tile.scores(logits_ref, live_ref, bias_ref)
    key = ordered(choice)
    top_rank = top_ranks(key, k)
    key_ref[block_rows()] = key
    weight_ref[block_rows()] = weight
    state_ref[block_rows()] = packed_state(top_rank, top_rank)
    store_row_sums(jnp.where(top_rank < k, weight, 0.0), sums_ref, top_sum_ref)


def _survivors_body(
    live_ref: Any,  # [B] int32
    num_live_ref: Any,  # [1] int32
    key_ref: Any,  # [B, N] int32
    weight_ref: Any,  # [B, N] float32
    state_ref: Any,  # [B, N] int32
    named_ref: Any,  # [R, N] int32
    tiles_ref: Any,  # shared [R * W, N] int32
    totals_ref: Any,  # shared [3, N] int32
    barrier: Any,  # of W arrivals
    *,
    spec: Spec,
) -> None:
    block = Block(spec.tiling.warpgroups, lax.axis_index("warpgroup"), tiles_ref, barrier)
    batch = Batch(
        spec, block, live_ref, key_ref, weight_ref, state_ref, num_live_ref[0], totals_ref
    )
    survives = survivors(batch)
    none = zeros(batch.width)

    def write() -> None:
        named_ref[...] = none + 1 if survives is None else replace(none, survives, 1)

    block.first_only(write)
