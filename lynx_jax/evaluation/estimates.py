"""Means with the standard errors that their data allow."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int


@dataclass(frozen=True)
class Estimate:
    """A mean and its standard error; None where there is but one independent part."""

    value: float
    error: float | None

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
