"""Scores of any number of rows: a launch that adds up the votes of each block's rows, and one that
scores by their sum.

The reference is ``scoring.adaptive_expert_scores``.
"""

import functools
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from lynx_jax.pallas_kernels.router_tiles import adaptive_scores, votes_of
from lynx_jax.pallas_kernels.routing_tiling import count_live, pad_rows, padded_experts, row_blocks
from lynx_jax.pallas_kernels.row_blocks import (
    block_index,
    block_rows,
    launch,
    load_live,
    sum_of_parts,
)
from lynx_jax.pallas_kernels.row_tiles import ROWS, along_rows, load_tile
from lynx_jax.pallas_kernels.scoring import vote_levels


def scoring(
    bins: Int[Array, "rows experts"],
    live: Bool[Array, " rows"],
    beta: int,
    *,
    interpret: Any = False,
) -> Int[Array, "rows experts"]:
    """Bins, then popularity among the other live rows (arXiv 2411.08982).

    Args:
      bins: int32, from 0 down to ``-beta``.
      live: rows that vote.
      beta: number of the last bin.
      interpret: ``plgpu.InterpretGPUParams`` to run on a CPU.

    Returns:
      As ``adaptive_expert_scores``.
    """
    rows, experts = bins.shape
    blocks, width = row_blocks(rows), padded_experts(experts)
    levels = vote_levels(rows, beta)
    inputs = pad_rows(bins, blocks * ROWS), pad_rows(live.astype(jnp.int32), blocks * ROWS)
    count = count_live(live)
    (parts,) = launch(
        functools.partial(_votes_body, levels=levels),
        blocks,
        [((blocks, width), jnp.int32)],
        name="votes",
        interpret=interpret,
    )(*inputs, count)
    (scores,) = launch(
        functools.partial(_scores_body, levels=levels),
        blocks,
        [((blocks * ROWS, width), jnp.int32)],
        name="scores",
        interpret=interpret,
    )(*inputs, count, parts)
    return scores[:rows, :experts]


def _own_votes(
    bins_ref: Any, live_ref: Any, num_live_ref: Any, levels: int
) -> tuple[Array, Array, Array]:
    """(bins, votes) of this block's rows, [R, N] each, and the size of the batch, all int32."""
    bins, batch = load_tile(bins_ref.at[block_rows()]), jnp.maximum(num_live_ref[0], 1)
    live = load_live(live_ref, bins_ref.shape[1])
    return bins, votes_of(bins, live, batch, levels), batch


def _votes_body(
    bins_ref: Any,  # [B, N] int32
    live_ref: Any,  # [B] int32
    num_live_ref: Any,  # [1] int32
    parts_ref: Any,  # [T, N] int32
    *,
    levels: int,
) -> None:
    _, votes, _ = _own_votes(bins_ref, live_ref, num_live_ref, levels)
    parts_ref[block_index()] = jnp.sum(votes, axis=0)


def _scores_body(
    bins_ref: Any,  # [B, N] int32
    live_ref: Any,  # [B] int32
    num_live_ref: Any,  # [1] int32
    parts_ref: Any,  # [T, N] int32
    scores_ref: Any,  # [B, N] int32
    *,
    levels: int,
) -> None:
    bins, votes, batch = _own_votes(bins_ref, live_ref, num_live_ref, levels)
    popularity = along_rows(sum_of_parts(parts_ref))
    scores_ref[block_rows()] = adaptive_scores(bins, votes, popularity, batch, levels)
