"""Batch-aware expert selection policies: which experts of a decode batch survive.

A policy is a small frozen value, static under ``jax.jit``. Given the scores of all rows it names
the surviving experts; ``lynx_jax.routing`` remaps every row into them.
"""

import math
from dataclasses import dataclass
from typing import Protocol, Self

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from lynx_jax.errors import InputError
from lynx_jax.pallas_kernels.binning import affinity_binning
from lynx_jax.pallas_kernels.remapping import critical_set, expert_union
from lynx_jax.pallas_kernels.scoring import adaptive_expert_scores
from lynx_jax.pallas_kernels.topk import top_k
from lynx_jax.routers import RouterScores


class Policy(Protocol):
    """What routing asks of a policy. Values are frozen, hashable and compare by content."""

    @property
    def min_rows(self) -> int:
        """Batches with fewer live rows than this keep plain top-k."""
        ...

    def survivors(
        self,
        scores: RouterScores,
        live: Bool[Array, " rows"],
        k: int,
    ) -> Bool[Array, " experts"]:
        """The surviving experts: at least k, and none that only a row not live asked for.

        Args:
          scores: what the router says of every expert in every row.
          live: rows that take part; the others have no say.
          k: experts a row.
        """
        ...

    def validate(self, k: int, num_experts: int) -> None:
        """Raise ``InputError`` if the policy cannot work on a top-k of num_experts router."""
        ...


@dataclass(frozen=True)
class TopK:
    """Plain top-k: every expert survives. The router as it was trained."""

    @property
    def min_rows(self) -> int:
        return 1

    def survivors(
        self,
        scores: RouterScores,
        live: Bool[Array, " rows"],
        k: int,
    ) -> Bool[Array, " experts"]:
        return jnp.ones(scores.choice.shape[-1], bool)

    def validate(self, k: int, num_experts: int) -> None:
        pass


# (k, N) -> (alpha, beta), as the authors of arXiv 2411.08982 ship them with their plugin.
_AUTHORS_CONSTANTS: dict[tuple[int, int], tuple[float, int]] = {
    (2, 8): (0.7, 1),  # Mixtral-8x7B
    (4, 128): (3.0, 2),  # gpt-oss-120b
    (6, 64): (1.0, 1),  # DeepSeek-V2-Lite
    (6, 160): (1.125, 2),  # DeepSeek-Coder-V2
    (8, 64): (3.0, 4),  # Qwen2-57B-A14B
    (8, 128): (3.0, 2),  # Qwen3-30B-A3B
}

# Beyond any use; up to here alpha times a logit is finite in float32 and scores fit into int32.
_LARGEST_ALPHA, _LARGEST_BETA = 1e6, 1000


@dataclass(frozen=True)
class Lynx:
    """Batch-aware selection by binned router confidence (Lynx, arXiv 2411.08982).

    Every row bins its logits by distance to its favourite; within a bin the experts that other rows
    are confident in come first; the union of the rows' best k survives.

    Attributes:
      alpha: bins per logit. Larger keeps nearer to the row's own order.
      beta: number of the last bin. ``beta / alpha`` logits below the favourite, popularity in the
        batch alone decides.
      floor: each row's first ``floor`` experts survive in any case. None: 1, or 0 where k is 1.
      min_rows: fewer live rows than this keep plain top-k.
    """

    alpha: float
    beta: int
    floor: int | None = None
    min_rows: int = 2

    def __post_init__(self) -> None:
        if not 0 < self.alpha <= _LARGEST_ALPHA:
            raise InputError(
                f"lynx: expected an alpha above 0 and up to {_LARGEST_ALPHA:g}, got {self.alpha}"
            )
        if not 1 <= self.beta <= _LARGEST_BETA:
            raise InputError(
                f"lynx: expected a whole beta from 1 to {_LARGEST_BETA}, got {self.beta}"
            )
        if self.floor is not None and self.floor < 0:
            raise InputError(f"lynx: expected a floor of at least 0, got {self.floor}")
        _check_min_rows("lynx", self.min_rows)

    @classmethod
    def for_model(cls, k: int, num_experts: int) -> Self:
        """The authors' constants for a router that they list, else those of ``from_ratio``.

        Where they list several models of one shape (Qwen3-30B and 235B), the smaller one's.
        """
        authors = _AUTHORS_CONSTANTS.get((k, num_experts))
        return cls(*authors) if authors else cls.from_ratio(k, num_experts)

    @classmethod
    def from_ratio(cls, k: int, num_experts: int) -> Self:
        """Constants from k/N alone; docs/policies.md derives the rule and says how it fares.

        One bin for each halving that leads from all N experts to k of them, and bins so wide that
        together they span 4/3 logits: an expert further out weighs less than
        ``exp(-4/3)``, about a quarter, of the row's favourite.
        """
        beta = max(1, math.ceil(math.log2(num_experts / k)))
        return cls(alpha=0.75 * beta, beta=beta)

    def survivors(
        self,
        scores: RouterScores,
        live: Bool[Array, " rows"],
        k: int,
    ) -> Bool[Array, " experts"]:
        bins = affinity_binning(scores.confidence, self.alpha, self.beta)
        adaptive = adaptive_expert_scores(bins, live, self.beta)
        return critical_set(adaptive, scores.choice, live, k, self._floor(k))

    def validate(self, k: int, num_experts: int) -> None:
        if self._floor(k) > k:
            raise InputError(
                f"lynx: expected a floor of at most k={k}, the experts a token uses, "
                f"got {self.floor}"
            )

    def _floor(self, k: int) -> int:
        return min(1, k - 1) if self.floor is None else self.floor


@dataclass(frozen=True)
class OEA:
    """Opportunistic Expert Activation (arXiv 2511.02237).

    The rows' first k0 experts survive, and every row fills up to k from them. Where they are fewer
    than k in all, k0 rises until they are not, so that each row still uses k experts.

    Attributes:
      k0: experts that each row is sure of.
      min_rows: fewer live rows than this keep plain top-k.
    """

    k0: int
    min_rows: int = 2

    def __post_init__(self) -> None:
        if self.k0 < 1:
            raise InputError(f"oea: expected k0 of at least 1, got {self.k0}")
        _check_min_rows("oea", self.min_rows)

    def survivors(
        self,
        scores: RouterScores,
        live: Bool[Array, " rows"],
        k: int,
    ) -> Bool[Array, " experts"]:
        best_rank = _best_rank(scores.choice, live, k)
        sizes = jnp.sum(best_rank[:, None] < jnp.arange(self.k0, k), axis=0)
        return best_rank < self.k0 + jnp.sum(sizes < k)

    def validate(self, k: int, num_experts: int) -> None:
        if self.k0 > k:
            raise InputError(
                f"oea: expected k0 of at most k={k}, the experts a token uses, got {self.k0}"
            )


@dataclass(frozen=True)
class XShare:
    """A hard budget of experts a layer (XShare, arXiv 2602.07265).

    Each row's first k0 experts come first, then the others by router probability summed over the
    rows, until ``budget`` experts are kept.

    Attributes:
      budget: experts kept, at least k.
      k0: experts a row that go before all others.
      min_rows: fewer live rows than this keep plain top-k.
    """

    budget: int
    k0: int = 1
    min_rows: int = 2

    def __post_init__(self) -> None:
        if self.budget < 1:
            raise InputError(f"xshare: expected a budget of at least 1, got {self.budget}")
        if self.k0 < 0:
            raise InputError(f"xshare: expected k0 of at least 0, got {self.k0}")
        _check_min_rows("xshare", self.min_rows)

    def survivors(
        self,
        scores: RouterScores,
        live: Bool[Array, " rows"],
        k: int,
    ) -> Bool[Array, " experts"]:
        rows, num_experts = scores.choice.shape
        asks = live[:, None] & (scores.choice > -jnp.inf)
        demand = jnp.sum(jnp.where(asks, scores.weight, 0.0), axis=0)
        # No score is above 1, so this lifts the rows' favourites above all others.
        if self.k0:
            favourites = expert_union(top_k(scores.choice, self.k0), live, num_experts)
            demand = jnp.where(favourites, demand + rows + 1.0, demand)
        kept = top_k(demand[None], self.budget)
        return expert_union(kept, jnp.ones(1, bool), num_experts)

    def validate(self, k: int, num_experts: int) -> None:
        if not k <= self.budget <= num_experts:
            raise InputError(
                f"xshare: expected a budget from k={k}, the experts a token uses, "
                f"to the layer's {num_experts}, got {self.budget}"
            )
        if self.k0 > k:
            raise InputError(f"xshare: expected k0 of at most k={k}, got {self.k0}")


def _best_rank(choice: Float[Array, "rows experts"], live: Bool[Array, " rows"], k: int) -> Array:
    """Best place (int32, from 0) that any live row's top-k gives each expert; k if none does."""
    ids = top_k(choice, k)
    named = (ids[:, :, None] == jnp.arange(choice.shape[-1])) & live[:, None, None]
    ranks = jnp.where(named, jnp.arange(k)[None, :, None], k)
    return jnp.min(ranks, axis=(0, 1))


def _check_min_rows(policy: str, min_rows: int) -> None:
    if not 1 <= min_rows < 2**31:
        raise InputError(f"{policy}: expected min_rows from 1 to 2147483647, got {min_rows}")
