"""The adaptive expert scorer of Lynx (arXiv 2411.08982)."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


def adaptive_expert_scores(
    bins: Int[Array, "rows experts"], live: Bool[Array, " rows"]
) -> Float[Array, "rows experts"]:
    """Score of every expert for every row: its bin, plus its popularity among the other rows.

    With ``B`` live rows and votes ``h = B ** bin``, a row adds ``(sum over rows of h - h) / B``,
    which stays below 1: scores order by bin first, and by batch popularity within a bin. Rows that
    are not live do not vote and do not count in ``B``; what they are given is of no meaning.

    Args:
      bins: int32 bins <= 0 from ``affinity_binning``.
      live: which rows hold a token of a running sequence.

    Returns:
      float32 scores.
    """
    batch = jnp.maximum(jnp.sum(live), 1).astype(jnp.float32)
    bin_values = bins.astype(jnp.float32)
    votes = jnp.where(live[:, None], jnp.power(batch, bin_values), 0.0)
    return bin_values + (jnp.sum(votes, axis=0, keepdims=True) - votes) / batch
