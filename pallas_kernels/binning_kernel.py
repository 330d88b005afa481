"""Bins of any number of rows in one launch."""

import functools
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Bool, Float, Int

from lynx_jax.pallas_kernels.binning import affinity_binning
from lynx_jax.pallas_kernels.router_tiles import bins_of
from lynx_jax.pallas_kernels.routing_tiling import pad_inputs, padded_experts, row_blocks
from lynx_jax.pallas_kernels.row_blocks import RouterTile, block_rows, launch, store_row_sums
from lynx_jax.pallas_kernels.row_tiles import ROWS, ordered, top_ranks
from lynx_jax.pallas_kernels.selection import RouterRule
from lynx_jax.pallas_kernels.topk import top_k


class BinnedRows(NamedTuple):
    """What binning finds in each row; arbitrary in rows that are not live.

    Attributes:
      bins: int32, from 0 down to ``-beta``.
      top_sum: float32 sum of the weight scores of the row's k best experts.
    """

    bins: Int[Array, "rows experts"]
    top_sum: Float[Array, " rows"]


def binning(
    logits: Float[Array, "rows experts"],
    live: Bool[Array, " rows"],
    bias: Float[Array, " experts"] | None = None,
    *,
    k: int,
    router: RouterRule,
    alpha: float,
    beta: int,
    interpret: Any = False,
) -> BinnedRows:
    """Confidence bins and the weight of plain top-k (AffinityBinning, arXiv 2411.08982).

    Args:
      logits: bfloat16 or float32 router logits; padded experts at ``-inf``.
      live: rows that count; the others may hold anything.
      bias: selection bias, for routers that have one.
      k: experts a row.
      router: the family's scores.
      alpha: bins per logit.
      beta: number of the last bin.
      interpret: ``plgpu.InterpretGPUParams`` to run on a CPU.

    Returns:
      As ``binning_reference``.
    """
    rows, experts = logits.shape
    blocks, width = row_blocks(rows), padded_experts(experts)
    tile = RouterTile(router, experts, bias is not None)
    kernel = launch(
        functools.partial(_binning_body, tile=tile, k=k, alpha=alpha, beta=beta),
        blocks,
        [((blocks * ROWS, width), jnp.int32), ((blocks * ROWS,), jnp.float32)],
        name="binning",
        scratch=[plgpu.SMEM((ROWS,), jnp.float32)],
        interpret=interpret,
    )
    bins, top_sum = kernel(*pad_inputs(logits, live, bias, blocks * ROWS))
    return BinnedRows(bins[:rows, :experts], top_sum[:rows])


def binning_reference(
    logits: Float[Array, "rows experts"],
    live: Bool[Array, " rows"],
    bias: Float[Array, " experts"] | None = None,
    *,
    k: int,
    router: RouterRule,
    alpha: float,
    beta: int,
) -> BinnedRows:
    """``binning`` in plain JAX."""
    clean = jnp.where(live[:, None], logits.astype(jnp.float32), 0.0)
    scores = router.scores(clean, bias)
    best = jnp.take_along_axis(scores.weight, top_k(scores.choice, k), axis=-1)
    return BinnedRows(affinity_binning(scores.confidence, alpha, beta), jnp.sum(best, axis=-1))


def _binning_body(
    logits_ref: Any,  # [B, N] float32 or bfloat16
    live_ref: Any,  # [B] int32
    *refs: Any,  # bias [N] float32 if there is one; outputs bins [B, N] int32, top_sum [B] float32;
    # shared sums [R] float32
    tile: RouterTile,
    k: int,
    alpha: float,
    beta: int,
) -> None:
    bias_ref, (bins_ref, top_sum_ref, sums_ref) = tile.split(refs)
    _, choice, confidence, weight = tile.scores(logits_ref, live_ref, bias_ref)
    bins_ref[block_rows()] = bins_of(confidence, alpha, beta)
    chosen = top_ranks(ordered(choice), k) < k
    store_row_sums(jnp.where(chosen, weight, 0.0), sums_ref, top_sum_ref)
