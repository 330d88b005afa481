"""A router's scores, bins, votes and weights of one tile of rows, inside a kernel.

The same formulas as ``lynx_jax.routers``, ``binning`` and ``scoring``, for tiles [R, N] of
``row_tiles``; what is chosen by is computed in the same order of operations as there.
"""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from lynx_jax.pallas_kernels.row_tiles import (
    along_rows,
    expert_index,
    first,
    load_per_expert,
    replace,
    row_max,
    row_sum,
    zeros,
)
from lynx_jax.pallas_kernels.selection import RouterRule

LEAST_CONFIDENCE = 1e-6
SMALLEST_SUM = 1e-20


def router_scores(
    logits: Array, bias_ref: Any | None, router: RouterRule, experts: int
) -> tuple[Array, Array, Array]:
    """(choice, confidence, weight), float32 [R, N] each.

    Args:
      logits: float32 [R, N], ``-inf`` from the layer's last expert on.
      bias_ref: float32 [N] selection bias, or None.
      router: the rule.
      experts: how many the layer has.
    """
    weight = _softmax(logits) if router.score == "softmax" else 1.0 / (1.0 + jnp.exp(-logits))
    choice = confidence = logits
    if bias_ref is not None:
        bias = along_rows(load_per_expert(bias_ref))
        choice = jnp.where(logits > -jnp.inf, weight + bias, -jnp.inf)
        confidence = _biased_confidence(choice, bias)
    if router.kept_groups < router.groups:
        summable = weight if bias_ref is None else choice
        kept = _kept(choice if router.group_score == "max" else summable, router, experts)
        choice = jnp.where(kept, choice, -jnp.inf)
        confidence = jnp.where(kept, confidence, -jnp.inf)
    return choice, confidence, weight


def bins_of(confidence: Array, alpha: float, beta: int) -> Array:
    """int32 [R, N]: bins from 0 down to ``-beta``."""
    distance = alpha * (confidence - row_max(confidence))
    return jnp.maximum(distance, -float(beta)).astype(jnp.int32)


def votes_of(bins: Array, live: Array, batch: Array, levels: int) -> Array:
    """int32 [R, N]: ``batch ** (bin + levels)`` of live rows, 0 for bins further out."""
    exponent = jnp.maximum(bins + levels, 0)
    vote, power = zeros(bins.shape[1]) + 1, batch
    for bit in range(levels.bit_length()):
        vote = jnp.where((exponent >> bit) & 1 == 1, vote * power, vote)
        power = power * power
    return jnp.where((bins >= -levels) & live, vote, 0)


def adaptive_scores(
    bins: Array, votes: Array, popularity: Array, batch: Array, levels: int
) -> Array:
    """int32 [R, N]: bins, then popularity among the other rows.

    Args:
      popularity: int32 [R, N], the sum of all rows' votes.
      batch: int32, live rows.
    """
    unit = batch
    for _ in range(levels):
        unit = unit * batch
    return bins * unit + popularity - votes


def combine_weights(
    chosen: Array, own: Array, weight: Array, top_sum: Array, router: RouterRule, damping: float
) -> Array:
    """float32 [R, N]: weights of the chosen experts by the router's rule, 0 elsewhere.

    Args:
      chosen: bool [R, N], the experts that each row uses.
      own: bool [R, N], those that plain top-k would have used.
      weight: float32 [R, N], weight scores.
      top_sum: float32 [R, N], the sum of the weight scores of ``own``.
      router: the family's rule.
      damping: as in ``Router.weigh``.
    """
    counted = jnp.where(chosen, weight, 0.0)
    if damping:
        counted = jnp.where(own, counted, counted * (1 - damping))
    if router.weights == "own":
        return counted * router.scale
    total = row_sum(counted) + SMALLEST_SUM
    keeps_sum = router.weights == "keep_sum"
    weights = counted * (top_sum / total) if keeps_sum else counted / total
    if damping:
        weights = weights * power_of(total / (top_sum + SMALLEST_SUM), damping)
    return weights * router.scale


def power_of(x: Array, power: float) -> Array:
    """``x ** power`` for x above 0; by products where the power is a whole number."""
    whole = int(power)
    raised: Array = x**whole if whole == power >= 1 else jnp.exp(power * jnp.log(x))
    return raised


def _softmax(logits: Array) -> Array:
    shifted = jnp.exp(logits - row_max(logits))
    return shifted / row_sum(shifted)


def _biased_confidence(choice: Array, bias: Array) -> Array:
    middle = 0.5 * -row_max(-bias) + 0.5 * row_max(bias)
    p = jnp.minimum(jnp.maximum(choice - middle, LEAST_CONFIDENCE), 1 - LEAST_CONFIDENCE)
    return jnp.log(p / (1 - p))


def _kept(ranked: Array, router: RouterRule, experts: int) -> Array:
    """bool [R, N]: experts in the row's best groups; the lower group wins a tie."""
    size = experts // router.groups
    expert = expert_index(ranked.shape[1])
    members = [
        (expert >= group * size) & (expert < (group + 1) * size) for group in range(router.groups)
    ]
    scores = [_group_score(jnp.where(m, ranked, -jnp.inf), router) for m in members]
    kept = zeros(ranked.shape[1])
    for group, (member, score) in enumerate(zip(members, scores, strict=True)):
        better = zeros(ranked.shape[1])
        for other, other_score in enumerate(scores):
            ahead = other_score >= score if other < group else other_score > score
            better = better + jnp.where(ahead, 1, 0)
        kept = replace(kept, member & (better < router.kept_groups), 1)
    return kept == 1


def _group_score(inside: Array, router: RouterRule) -> Array:
    """float32 [R, N] of each row's score of one group; others' experts are at ``-inf``."""
    best = row_max(inside)
    if router.group_score == "max":
        return best
    return best + row_max(jnp.where(first(inside == best), -jnp.inf, inside))
