"""Means with the errors that their data allow."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

_RESAMPLES, _AT_ONCE = 10_000, 500


@dataclass(frozen=True)
class Estimate:
    """A mean and its standard error; None where there is but one independent part."""

    value: float
    error: float | None

    def over(self, whole: float) -> "Estimate":
        """The mean as a share of a number that is taken as exact."""
        return Estimate(self.value / whole, None if self.error is None else self.error / whole)

    def __str__(self) -> str:
        error = "" if self.error is None else f" ± {self.error:.4f}"
        return f"{self.value:.4f}{error}"


def clustered(values: Float[np.ndarray, " parts"], clusters: Int[np.ndarray, " parts"]) -> Estimate:
    """The mean of values that depend on one another within a cluster.

    The sums of deviations in each cluster are taken as independent (the sandwich estimator with
    C/(C - 1)); with a cluster a value it is the ordinary standard error.
    """
    mean = float(values.mean())
    _, index = np.unique(clusters, return_inverse=True)
    sums = np.bincount(index, values - mean)
    count = len(sums)
    if count < 2:
        return Estimate(mean, None)
    variance = float(np.sum(sums**2)) * count / (count - 1)
    return Estimate(mean, variance**0.5 / len(values))


@dataclass(frozen=True)
class Interval:
    """A mean and the ends of its 95 % bootstrap interval."""

    value: float
    low: float
    high: float


def bootstrap(
    values: Float[np.ndarray, " parts"], clusters: Sequence[Hashable], seed: int
) -> Interval:
    """The mean of values, with the percentile interval over resampled clusters.

    Equal seeds and clusters draw the same samples, whatever the values are.
    """
    names = {name: number for number, name in enumerate(dict.fromkeys(clusters))}
    index = np.array([names[cluster] for cluster in clusters])
    sums, sizes = np.bincount(index, values), np.bincount(index)
    rng = np.random.default_rng(seed)
    means: list[Float[np.ndarray, " samples"]] = []
    for _ in range(0, _RESAMPLES, _AT_ONCE):
        drawn = rng.integers(len(names), size=(_AT_ONCE, len(names)))
        means.append(sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1))
    low, high = np.quantile(np.concatenate(means), [0.025, 0.975])
    return Interval(float(values.mean()), float(low), float(high))
