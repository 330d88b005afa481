"""What was measured, as values that are printed, drawn and written as JSON."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from lynx_jax.evaluation.estimates import Estimate, clustered
from lynx_jax.evaluation.scoring import BatchScores
from lynx_jax.evaluation.texts import Composition, Windows


@dataclass(frozen=True)
class DomainResult:
    """One kind of text. Errors are over its documents.

    Attributes:
      cross_entropy: of plain top-k, nats.
      rise, relative_rise, divergence: as in ``PolicyResult``.
      windows: rows of this kind.
    """

    cross_entropy: float
    rise: Estimate
    relative_rise: Estimate
    divergence: Estimate
    windows: int


@dataclass(frozen=True)
class Difference:
    """One policy less another, on the same tokens. Errors are as in ``PolicyResult``.

    Attributes:
      experts: of the distinct experts a layer and step (*).
      rise: of the cross-entropy, nats.
      divergence: of KL(plain top-k || policy), nats.
    """

    experts: Estimate
    rise: Estimate
    divergence: Estimate


@dataclass(frozen=True)
class PolicyResult:
    """One policy at one batch size. Errors are over documents, or batches where marked (*).

    Attributes:
      policy: as text.
      experts: distinct experts a layer and step (*).
      saved: plain top-k's distinct experts less these, on the same tokens (*).
      share: experts over plain top-k's.
      rise: cross-entropy less plain top-k's on the same tokens, nats.
      relative_rise: rise and its error, both over plain top-k's cross-entropy on these tokens.
      divergence: KL(plain top-k || policy), nats.
      agreement: share of steps with the same likeliest token.
      retained: gate weight kept, of plain top-k's; mean of rows.
      worst_retained: the same of each step's worst row (*).
      experts_per_layer: distinct experts of each layer.
      domains: by kind of text.
      use: share of steps at which each expert of each layer is read.
      difference: from the policy that the result names in ``against``, if any.
    """

    policy: str
    experts: Estimate
    saved: Estimate
    share: float
    rise: Estimate
    relative_rise: Estimate
    divergence: Estimate
    agreement: Estimate
    retained: Estimate
    worst_retained: Estimate
    experts_per_layer: list[float]
    domains: dict[str, DomainResult]
    use: list[list[float]]
    difference: Difference | None


@dataclass(frozen=True)
class BatchSizeResult:
    """All policies at one batch size.

    Attributes:
      batch: rows that decode together.
      composition: "mixed" or "domain".
      scored_tokens: next tokens that were scored.
      documents: texts that they come from.
      cross_entropy: of plain top-k, nats.
      experts: distinct experts of plain top-k, a layer and step.
      experts_per_layer: of plain top-k.
      use: of plain top-k; as in ``PolicyResult``.
      against: the policy that the others are compared with, besides plain top-k.
      policies: in the order asked for.
    """

    batch: int
    composition: Composition
    scored_tokens: int
    documents: int
    cross_entropy: float
    experts: float
    experts_per_layer: list[float]
    use: list[list[float]]
    against: str | None
    policies: list[PolicyResult]


def summarise(
    policy: str,
    batches: Sequence[Windows],
    plain: Sequence[BatchScores],
    scores: Sequence[BatchScores],
    other: Sequence[BatchScores] | None = None,
) -> PolicyResult:
    """A policy's result from its scores of every batch, plain top-k's, and another policy's."""
    documents = np.concatenate([batch.documents for batch in batches])
    domains = np.concatenate([batch.domains for batch in batches])
    numbers = np.arange(len(batches))
    base = np.concatenate([score.loss for score in plain])
    rise = np.concatenate([score.loss for score in scores]) - base
    divergence = np.concatenate([score.divergence for score in scores])
    experts = np.array([score.experts.mean() for score in scores])
    topk = np.array([score.experts.mean() for score in plain])

    def over_documents(name: str) -> Estimate:
        return clustered(np.concatenate([getattr(score, name) for score in scores]), documents)

    mean_rise = clustered(rise, documents)
    return PolicyResult(
        policy=policy,
        experts=clustered(experts, numbers),
        saved=clustered(topk - experts, numbers),
        share=float(experts.mean() / topk.mean()),
        rise=mean_rise,
        relative_rise=mean_rise.over(float(base.mean())),
        divergence=clustered(divergence, documents),
        agreement=over_documents("agreement"),
        retained=over_documents("retained"),
        worst_retained=clustered(np.array([score.worst_retained for score in scores]), numbers),
        experts_per_layer=per_layer(scores),
        domains={
            str(domain): _domain(
                *(values[domains == domain] for values in (base, rise, divergence, documents))
            )
            for domain in np.unique(domains)
        },
        use=mean_use(scores),
        difference=None if other is None else _difference(batches, scores, other),
    )


def _domain(
    base: Float[np.ndarray, " rows"],
    rise: Float[np.ndarray, " rows"],
    divergence: Float[np.ndarray, " rows"],
    documents: Int[np.ndarray, " rows"],
) -> DomainResult:
    """One kind of text from its rows."""
    cross_entropy, mean_rise = float(base.mean()), clustered(rise, documents)
    return DomainResult(
        cross_entropy=cross_entropy,
        rise=mean_rise,
        relative_rise=mean_rise.over(cross_entropy),
        divergence=clustered(divergence, documents),
        windows=len(base),
    )


def _difference(
    batches: Sequence[Windows], scores: Sequence[BatchScores], other: Sequence[BatchScores]
) -> Difference:
    documents = np.concatenate([batch.documents for batch in batches])

    def over_documents(name: str) -> Estimate:
        here, there = (
            np.concatenate([getattr(score, name) for score in s]) for s in (scores, other)
        )
        return clustered(here - there, documents)

    experts = [a.experts.mean() - b.experts.mean() for a, b in zip(scores, other, strict=True)]
    return Difference(
        experts=clustered(np.array(experts), np.arange(len(batches))),
        rise=over_documents("loss"),
        divergence=over_documents("divergence"),
    )


def per_layer(scores: Sequence[BatchScores]) -> list[float]:
    """Distinct experts of each layer."""
    mean: list[float] = np.mean([score.experts for score in scores], axis=0).tolist()
    return mean


def mean_use(scores: Sequence[BatchScores]) -> list[list[float]]:
    """How often each expert of each layer is read, to four digits."""
    mean: list[list[float]] = np.mean([s.use for s in scores], axis=0).round(4).tolist()
    return mean
