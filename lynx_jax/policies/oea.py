"""Opportunistic Expert Activation (arXiv 2511.02237)."""

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from lynx_jax.errors import InputError
from lynx_jax.pallas_kernels.topk import top_k
from lynx_jax.policies.policy import check_shared
from lynx_jax.routers import RouterScores


@dataclass(frozen=True)
class OEA:
    """Opportunistic Expert Activation (arXiv 2511.02237).

    The rows' first k0 experts survive, and every row fills up to k from them. Where they are fewer
    than k in all, k0 rises until they are not, so that each row still uses k experts.

    Attributes:
      k0: experts that each row is sure of.
      min_rows: fewer live rows than this keep plain top-k.
      damping: how much less a substitute weighs, 0 to 1 (``Router.weigh``).
    """

    k0: int
    min_rows: int = 2
    damping: float = 0.0

    def __post_init__(self) -> None:
        if self.k0 < 1:
            raise InputError(f"oea: expected k0 of at least 1, got {self.k0}")
        check_shared("oea", self.min_rows, self.damping)

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


def _best_rank(choice: Float[Array, "rows experts"], live: Bool[Array, " rows"], k: int) -> Array:
    """Best place (int32, from 0) that any live row's top-k gives each expert; k if none does."""
    ids = top_k(choice, k)
    named = (ids[:, :, None] == jnp.arange(choice.shape[-1])) & live[:, None, None]
    ranks = jnp.where(named, jnp.arange(k)[None, :, None], k)
    return jnp.min(ranks, axis=(0, 1))
