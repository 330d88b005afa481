"""Critical set, remapper and compaction of Lynx (arXiv 2411.08982)."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from lynx_jax.pallas_kernels.topk import top_k, top_k_lexicographic


def expert_union(
    ids: Int[Array, "rows k"], live: Bool[Array, " rows"], num_experts: int
) -> Bool[Array, " experts"]:
    """Which experts at least one live row names in ``ids``."""
    chosen = ids[:, :, None] == jnp.arange(num_experts)
    return jnp.any(chosen & live[:, None, None], axis=(0, 1))


def critical_set(
    scores: Int[Array, "rows experts"],
    logits: Float[Array, "rows experts"],
    live: Bool[Array, " rows"],
    k: int,
    floor: int,
) -> Bool[Array, " experts"]:
    """Experts that survive: the union of the live rows' best k by score.

    Equal scores are ordered by the original logit, then by the lower index. Padded experts
    (logit ``-inf``) never survive.

    Args:
      scores: int32 scores from ``adaptive_expert_scores``.
      logits: float32 router logits.
      live: rows that take part.
      k: experts a row.
      floor: each live row's first ``floor`` experts by logit survive whatever their score.
    """
    num_experts = scores.shape[-1]
    scores = jnp.where(logits == -jnp.inf, np.iinfo(np.int32).min, scores)
    survivors = expert_union(top_k_lexicographic(scores, logits, k), live, num_experts)
    if floor:
        survivors |= expert_union(top_k(logits, floor), live, num_experts)
    return survivors


def remap(
    choice: Float[Array, "rows experts"], survivors: Bool[Array, " experts"], k: int
) -> Int[Array, "rows k"]:
    """Each row's k best surviving experts by its own ``choice`` scores, best first.

    The ids of a row are distinct, and all survive if at least k experts do.
    """
    return top_k(jnp.where(survivors, choice, -jnp.inf), k)


def compact(members: Bool[Array, " experts"]) -> tuple[Int[Array, " experts"], Int[Array, ""]]:
    """List of the members' ids, ascending and padded with 0, and how many there are (int32)."""
    (ids,) = jnp.nonzero(members, size=members.shape[0], fill_value=0)
    return ids.astype(jnp.int32), jnp.sum(members, dtype=jnp.int32)
