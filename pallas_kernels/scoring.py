"""The adaptive expert scorer of Lynx (arXiv 2411.08982), in whole numbers."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


def vote_levels(rows: int, beta: int) -> int:
    """Lowest bin whose votes still count, as a positive number; at most ``beta``.

    The largest that keeps every score within int32. It is below beta only where a vote further out
    would be worth less than float32 could tell beside a bin: beta=4 keeps all four levels up to
    B=53, three up to B=143.
    """
    levels = beta
    while levels and (beta + 1) * max(rows, 2) ** (levels + 1) >= 2**31:
        levels -= 1
    return levels


def adaptive_expert_scores(
    bins: Int[Array, "rows experts"], live: Bool[Array, " rows"], beta: int
) -> Int[Array, "rows experts"]:
    """Score of every expert for every row: its bin, plus its popularity among the other rows.

    In the paper's terms ``m = q + (sum over rows of h - h) / B`` with votes ``h = B ** q``: scores
    order by bin first and, since the bonus stays below 1, by batch popularity within a bin. Here
    ``m`` comes multiplied by the power of B that makes it a whole number: equal popularity is then
    exactly equal, whatever the order of summation. Rows that are not live do not vote and do not
    count in ``B``; what they are given is of no meaning.

    Args:
      bins: int32 bins from 0 down to ``-beta``, from ``affinity_binning``.
      live: which rows hold a token of a running sequence.
      beta: number of the last bin.

    Returns:
      int32 scores, comparable within a row.
    """
    levels = vote_levels(bins.shape[0], beta)
    batch = jnp.maximum(jnp.sum(live, dtype=jnp.int32), 1)
    powers = batch ** jnp.arange(levels + 2)
    votes = jnp.where(bins >= -levels, powers[jnp.maximum(bins + levels, 0)], 0)
    votes = jnp.where(live[:, None], votes, 0)
    return bins * powers[levels + 1] + jnp.sum(votes, axis=0, keepdims=True) - votes
