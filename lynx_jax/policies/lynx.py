"""Lynx (arXiv 2411.08982)."""

from dataclasses import dataclass
from typing import Self

from jaxtyping import Array, Bool

from lynx_jax.errors import InputError
from lynx_jax.pallas_kernels.binning import affinity_binning
from lynx_jax.pallas_kernels.remapping import critical_set
from lynx_jax.pallas_kernels.scoring import adaptive_expert_scores
from lynx_jax.policies.policy import check_shared
from lynx_jax.routers import RouterScores

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
      damping: how much less a substitute weighs, 0 to 1 (``Router.weigh``).
    """

    alpha: float
    beta: int
    floor: int | None = None
    min_rows: int = 2
    damping: float = 0.0

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
        check_shared("lynx", self.min_rows, self.damping)

    @classmethod
    def for_model(cls, k: int, num_experts: int) -> Self:
        """This project's constants: four bins over the first logit below a row's favourite.

        Small trained routers of four ratios k/N ask for the same width (docs/study.md), so N does
        not matter. Each row's first two experts survive, its first where k is below 4.
        """
        del num_experts
        return cls(alpha=4.0, beta=4, floor=min(2, k // 2))

    @classmethod
    def authors(cls, k: int, num_experts: int) -> Self:
        """The constants that the authors of arXiv 2411.08982 ship for a router of this shape.

        Where they list several models of one shape (Qwen3-30B and 235B), the smaller one's.

        Raises:
          InputError: they list no such router.
        """
        constants = _AUTHORS_CONSTANTS.get((k, num_experts))
        if constants is None:
            listed = ", ".join(f"{k} of {experts}" for k, experts in _AUTHORS_CONSTANTS)
            raise InputError(
                f"lynx: expected a router that the authors list ({listed}), got {k} of "
                f"{num_experts}; give alpha and beta, or neither for this project's"
            )
        return cls(*constants)

    def survivors(
        self,
        scores: RouterScores,
        live: Bool[Array, " rows"],
        k: int,
    ) -> Bool[Array, " experts"]:
        bins = affinity_binning(scores.confidence, self.alpha, self.beta)
        adaptive = adaptive_expert_scores(bins, live, self.beta)
        return critical_set(adaptive, scores.choice, live, k, self.floor_for(k))

    def validate(self, k: int, num_experts: int) -> None:
        if self.floor_for(k) > k:
            raise InputError(
                f"lynx: expected a floor of at most k={k}, the experts a token uses, "
                f"got {self.floor}"
            )

    def floor_for(self, k: int) -> int:
        """The floor that holds for a router that uses k experts."""
        return min(1, k - 1) if self.floor is None else self.floor
