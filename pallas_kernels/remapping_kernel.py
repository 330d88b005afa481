"""Remapping of any number of rows with Lynx in three launches: which experts each block's rows name
as critical, and the two of ``weighing_kernel``.
"""

import functools
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from lynx_jax.pallas_kernels.expert_ffn import combine_matrix
from lynx_jax.pallas_kernels.remapping import (
    compact,
    critical_set,
    expert_union,
    remap_if_it_saves,
)
from lynx_jax.pallas_kernels.routing_tiling import (
    pad_inputs,
    pad_rows,
    padded_experts,
    row_blocks,
)
from lynx_jax.pallas_kernels.row_blocks import RouterTile, block_index, block_rows, launch
from lynx_jax.pallas_kernels.row_tiles import (
    ROWS,
    critical_experts,
    load_tile,
    ordered,
    top_ranks,
)
from lynx_jax.pallas_kernels.selection import RoutedRows, RouterRule
from lynx_jax.pallas_kernels.topk import top_k
from lynx_jax.pallas_kernels.weighing_kernel import remap_into


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
    blocks = row_blocks(rows)
    tile = RouterTile(router, experts, bias is not None)
    (named,) = launch(
        functools.partial(_critical_body, tile=tile, k=k, floor=floor),
        blocks,
        [((blocks, padded_experts(experts)), jnp.int32)],
        name="critical",
        interpret=interpret,
    )(*pad_inputs(logits, live, bias, blocks * ROWS), pad_rows(scores, blocks * ROWS))
    return remap_into(
        logits,
        live,
        bias,
        named,
        top_sum,
        k=k,
        router=router,
        min_rows=min_rows,
        damping=damping,
        interpret=interpret,
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


def _critical_body(
    logits_ref: Any,  # [B, N] float32 or bfloat16
    live_ref: Any,  # [B] int32
    *refs: Any,  # [bias [N] float32,] scores [B, N] int32; output named [T, N] int32
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
