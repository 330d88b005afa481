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


def check_min_rows(policy: str, min_rows: int) -> None:
    """Raise ``InputError``, naming the policy, unless min_rows is a number of rows."""
    if not 1 <= min_rows < 2**31:
        raise InputError(f"{policy}: expected min_rows from 1 to 2147483647, got {min_rows}")
