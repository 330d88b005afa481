"""XShare (arXiv 2602.07265)."""

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Bool

from lynx_jax.errors import InputError
from lynx_jax.pallas_kernels.remapping import expert_union
from lynx_jax.pallas_kernels.topk import top_k
from lynx_jax.policies.policy import check_shared
from lynx_jax.routers import RouterScores


@dataclass(frozen=True)
class XShare:
    """A hard budget of experts a layer (XShare, arXiv 2602.07265).

    Each row's first k0 experts come first, then the others by router probability summed over the
    rows, until ``budget`` experts are kept.

    Attributes:
      budget: experts kept, at least k.
      k0: experts a row that go before all others.
      min_rows: fewer live rows than this keep plain top-k.
      damping: how much less a substitute weighs, 0 to 1 (``Router.weigh``).
    """

    budget: int
    k0: int = 1
    min_rows: int = 2
    damping: float = 0.0

    def __post_init__(self) -> None:
        if self.budget < 1:
            raise InputError(f"xshare: expected a budget of at least 1, got {self.budget}")
        if self.k0 < 0:
            raise InputError(f"xshare: expected k0 of at least 0, got {self.k0}")
        check_shared("xshare", self.min_rows, self.damping)

    def survivors(
        self,
        scores: RouterScores,
        live: Bool[Array, " rows"],
        k: int,
    ) -> Bool[Array, " experts"]:
        rows, num_experts = scores.choice.shape
        asks = live[:, None] & (scores.choice > -jnp.inf)
        demand = jnp.sum(jnp.where(asks, scores.probability, 0.0), axis=0)
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
