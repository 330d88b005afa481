"""What routing asks of a policy, and the policy that changes nothing."""

from dataclasses import dataclass
from typing import Protocol

import jax.numpy as jnp
from jaxtyping import Array, Bool

from lynx_jax.errors import InputError
from lynx_jax.routers import RouterScores


class Policy(Protocol):
    """What routing asks of a policy. Values are frozen, hashable and compare by content."""

    @property
    def min_rows(self) -> int:
        """Batches with fewer live rows than this keep plain top-k."""
        ...

    @property
    def damping(self) -> float:
        """How much less an expert weighs that a row took for one of its own, 0 to 1."""
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

    @property
    def damping(self) -> float:
        return 0.0

    def survivors(
        self,
        scores: RouterScores,
        live: Bool[Array, " rows"],
        k: int,
    ) -> Bool[Array, " experts"]:
        return jnp.ones(scores.choice.shape[-1], bool)

    def validate(self, k: int, num_experts: int) -> None:
        pass


def check_shared(policy: str, min_rows: int, damping: float) -> None:
    """Raise ``InputError``, naming the policy, for settings of all policies that make no sense."""
    if not 1 <= min_rows < 2**31:
        raise InputError(f"{policy}: expected min_rows from 1 to 2147483647, got {min_rows}")
    if not 0 <= damping <= 1:
        raise InputError(f"{policy}: expected a damping from 0 to 1, got {damping}")
