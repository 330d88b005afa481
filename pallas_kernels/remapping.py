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
    choice: Float[Array, "rows experts"],
    live: Bool[Array, " rows"],
    k: int,
    floor: int,
) -> Bool[Array, " experts"]:
    """Experts that survive: the union of the live rows' best k by score.

    Equal scores are ordered by the original choice, then by the lower index. Experts that a row may
    not use (choice ``-inf``) do not survive by it.

    Args:
      scores: int32 scores from ``adaptive_expert_scores``.
      choice: float32 scores that the router chooses by.
      live: rows that take part.
      k: experts a row.
      floor: each live row's first ``floor`` experts by choice survive whatever their score.
    """
    num_experts = scores.shape[-1]
    scores = jnp.where(choice == -jnp.inf, np.iinfo(np.int32).min, scores)
    survivors = expert_union(top_k_lexicographic(scores, choice, k), live, num_experts)
    if floor:
        survivors |= expert_union(top_k(choice, floor), live, num_experts)
    return survivors


def remap(
    choice: Float[Array, "rows experts"], survivors: Bool[Array, " experts"], k: int
) -> Int[Array, "rows k"]:
    """Each row's k best surviving experts by its own ``choice`` scores, best first.

    A row that may use fewer than k survivors takes its best others after them, so that the ids of
    a row are distinct and none is at ``-inf``, if k experts are not.
    """
    usable = jnp.where(survivors, choice, -jnp.inf)
    count = jnp.sum(usable > -jnp.inf, axis=-1, keepdims=True)
    others = top_k(jnp.where(survivors, -jnp.inf, choice), k)
    place = jnp.arange(k)
    filled = jnp.take_along_axis(others, jnp.maximum(place - count, 0), axis=-1)
    return jnp.where(place < count, top_k(usable, k), filled)


def remap_if_it_saves(
    choice: Float[Array, "rows experts"],
    survivors: Bool[Array, " experts"],
    live: Bool[Array, " rows"],
    top_ids: Int[Array, "rows k"],
    top_used: Bool[Array, " experts"],
    k: int,
    min_rows: int,
) -> tuple[Int[Array, "rows k"], Bool[Array, " experts"]]:
    """Remapped ids and the experts they use, or plain top-k's where remapping saves no expert.

    No policy can promise by itself to read fewer experts than top-k does; changing the routing for
    nothing would cost quality at no gain.
    """
    ids = remap(choice, survivors, k)
    used = expert_union(ids, live, choice.shape[-1])
    saves = (jnp.sum(used) < jnp.sum(top_used)) & (jnp.sum(live) >= min_rows)
    return jnp.where(saves, ids, top_ids), jnp.where(saves, used, top_used)


def compact(members: Bool[Array, " experts"]) -> tuple[Int[Array, " experts"], Int[Array, ""]]:
    """List of the members' ids, ascending and padded with 0, and how many there are (int32)."""
    (ids,) = jnp.nonzero(members, size=members.shape[0], fill_value=0)
    return ids.astype(jnp.int32), jnp.sum(members, dtype=jnp.int32)
