"""What a family's router does with its logits, apart from choosing and remapping.

A router keeps apart the scores it chooses by and the scores it weighs by, because families differ
in both; after remapping, weights are made again by the family's own rule at the final experts.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from lynx_jax.errors import InputError
from lynx_jax.pallas_kernels.topk import top_k

# A biased score is kept this far from 0 and 1 where it is taken for a probability.
_LEAST_CONFIDENCE = 1e-6

# Far below any sum of scores that counts, and enough to divide by where all of them underflow.
_LEAST_SUM = 1e-20


class RouterScores(NamedTuple):
    """What a router says of every expert in every row, all float32.

    Attributes:
      choice: ranks a row's experts; ``-inf`` where the row may not use an expert (padding, groups
        that the row did not keep).
      confidence: the same order on the scale of logits, which bins need; coarser than ``choice``
        only where a biased score lies outside 0 to 1.
      weight: what combine weights are made from; 0 to 1.
      probability: how much of the row's choice an expert has; 0 to 1.
    """

    choice: Float[Array, "rows experts"]
    confidence: Float[Array, "rows experts"]
    weight: Float[Array, "rows experts"]
    probability: Float[Array, "rows experts"]


@dataclass(frozen=True)
class Router:
    """A family's rule as data, static under ``jax.jit``.

    A selection bias (DeepSeek-V3's ``e_score_correction_bias``) is an array beside it: it is added
    to the scores that choose and never weighs.

    Attributes:
      score: softmax or sigmoid of the logits, over all experts; or "sparsemixer" (Phi-3.5-MoE,
        arXiv 2409.12136, section 2): softmax over those experts only that the row ranks no higher
        and that lie within the margin below, so that a row's choices are scored one after another,
        each without the experts before it.
      weights: how the k weights follow from their experts' scores. "renormalize": divided by their
        sum (Mixtral, Qwen3-MoE, DeepSeek-V3, gpt-oss). "keep_sum": scaled to the sum that plain
        top-k's scores have, so that remapping leaves the size of the layer's output as it was
        (Qwen2-MoE, OLMoE, DeepSeek-V2). "own": the expert's own score (Llama-4).
      scale: factor on all weights (``routed_scaling_factor``).
      groups: groups of neighbouring experts that the layer's experts are divided into.
      kept_groups: a row chooses only from so many groups, the best.
      group_score: a group is as good as its best expert ("max", DeepSeek-V2) or as its two best
        together ("top2", DeepSeek-V3).
      jitter: sparsemixer's margin is twice this, as a share of the logits' size.

    Raises:
      InputError: a scale or a number of groups that makes no sense.
    """

    score: Literal["softmax", "sigmoid", "sparsemixer"]
    weights: Literal["renormalize", "keep_sum", "own"]
    scale: float = 1.0
    groups: int = 1
    kept_groups: int = 1
    group_score: Literal["max", "top2"] = "max"
    jitter: float = 0.0

    def __post_init__(self) -> None:
        if not self.scale > 0:
            raise InputError(f"router: expected a scale above 0, got {self.scale}")
        if not 1 <= self.kept_groups <= self.groups:
            raise InputError(
                f"router: expected from 1 to groups={self.groups} kept groups, "
                f"got {self.kept_groups}"
            )

    def validate(self, k: int, num_experts: int) -> None:
        """Raise ``InputError`` if the groups do not divide, or do not hold, k of num_experts."""
        size, rest = divmod(num_experts, self.groups)
        if rest or size < (2 if self.group_score == "top2" else 1):
            raise InputError(
                f"router: expected a number of groups that divides the {num_experts} experts"
                f"{' into groups of at least 2' if self.group_score == 'top2' else ''}, "
                f"got {self.groups}"
            )
        if self.kept_groups * size < k:
            raise InputError(
                f"router: expected kept groups that hold k={k} experts, "
                f"got {self.kept_groups} of {size}"
            )

    def scores(
        self,
        logits: Float[Array, "rows experts"],
        bias: Float[Array, " experts"] | None = None,
    ) -> RouterScores:
        """Scores of all experts.

        Args:
          logits: float32 router logits; padded experts at ``-inf``.
          bias: float32 selection bias.
        """
        probability = jax.nn.sigmoid(logits) if self.score == "sigmoid" else jax.nn.softmax(logits)
        mixes = self.score == "sparsemixer"
        weight = _sparsemixer(logits, 2 * self.jitter) if mixes else probability
        choice = confidence = logits
        if bias is not None:
            choice = jnp.where(logits > -jnp.inf, weight + bias, -jnp.inf)
            confidence = _biased_confidence(choice, bias)
        if self.kept_groups < self.groups:
            summable = weight if bias is None else choice
            kept = self._kept(choice if self.group_score == "max" else summable)
            choice = jnp.where(kept, choice, -jnp.inf)
            confidence = jnp.where(kept, confidence, -jnp.inf)
        return RouterScores(choice, confidence, weight, probability)

    def weigh(
        self,
        weight: Float[Array, "rows experts"],
        ids: Int[Array, "rows k"],
        top_ids: Int[Array, "rows k"],
        damping: float = 0.0,
    ) -> Float[Array, "rows k"]:
        """Combine weights of the final ``ids``.

        Args:
          weight: weight scores of all experts.
          ids: the experts that each row uses.
          top_ids: those that plain top-k would have used.
          damping: how much less an expert weighs that the row did not choose itself, 0 to 1. Its
            score counts 1 - damping, and the weights' sum follows the scores' sum S by
            ``(S / S of plain top-k) ** damping``. At 0 the family's rule holds as it is; at 1 the
            row's own experts weigh what they weigh under plain top-k, the others nothing.
        """
        chosen = jnp.take_along_axis(weight, ids, axis=-1)
        if damping:
            own = jnp.any(ids[:, :, None] == top_ids[:, None, :], axis=-1)
            chosen = jnp.where(own, chosen, chosen * (1 - damping))
        if self.weights == "own":
            return chosen * self.scale
        total = jnp.sum(chosen, axis=-1, keepdims=True) + _LEAST_SUM
        if damping or self.weights == "keep_sum":
            top = jnp.take_along_axis(weight, top_ids, axis=-1)
            top_total = jnp.sum(top, axis=-1, keepdims=True) + _LEAST_SUM
        weights = chosen * (top_total / total) if self.weights == "keep_sum" else chosen / total
        if damping:
            weights *= (total / top_total) ** damping
        return weights * self.scale

    def _kept(self, ranked: Float[Array, "rows experts"]) -> Bool[Array, "rows experts"]:
        """Which experts lie in the row's best groups; the lower group wins a tie."""
        grouped = ranked.reshape(len(ranked), self.groups, -1)
        if self.group_score == "max":
            group_scores = jnp.max(grouped, axis=-1)
        else:
            group_scores = jnp.sum(jax.lax.top_k(grouped, 2)[0], axis=-1)
        best = top_k(group_scores, self.kept_groups)
        kept = jnp.any(best[:, :, None] == jnp.arange(self.groups), axis=1)
        return jnp.repeat(kept, grouped.shape[-1], axis=-1)


def _biased_confidence(
    choice: Float[Array, "rows experts"], bias: Float[Array, " experts"]
) -> Float[Array, "rows experts"]:
    """The logits of biased scores taken for probabilities.

    The middle of the biases is taken off first: a bias common to all experts says nothing.
    """
    middle = 0.5 * jnp.min(bias) + 0.5 * jnp.max(bias)
    p = jnp.clip(choice - middle, _LEAST_CONFIDENCE, 1 - _LEAST_CONFIDENCE)
    return jnp.log(p / (1 - p))


def _sparsemixer(
    logits: Float[Array, "rows experts"], margin: float
) -> Float[Array, "rows experts"]:
    """Each expert's softmax among those that the row ranks no higher and that are near it.

    Near is a distance of at most ``margin`` times the larger of the other's size and the expert's
    own logit. Of equal logits the lower index ranks higher.
    """
    index = jnp.arange(logits.shape[-1])
    own, other = logits[:, :, None], logits[:, None, :]
    follows = (other < own) | ((other == own) & (index >= index[:, None]))
    far = (own - other) / jnp.maximum(jnp.abs(other), own) > margin
    total = jnp.sum(jnp.where(follows & ~far, jnp.exp(other - own), 0.0), axis=-1)
    return jnp.where(logits > -jnp.inf, 1 / total, 0.0)
