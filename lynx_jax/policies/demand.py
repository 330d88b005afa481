"""Experts kept by how much the batch's rows demand of them."""

from dataclasses import dataclass
from typing import Self

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from lynx_jax.errors import InputError
from lynx_jax.pallas_kernels.remapping import expert_union
from lynx_jax.pallas_kernels.selection import LEAST_SHARE
from lynx_jax.pallas_kernels.topk import top_k
from lynx_jax.policies.policy import check_shared
from lynx_jax.routers import RouterScores

# Thresholds within these bounds have powers that float32 can hold, as shares have.
_LEAST, _LARGEST, _LARGEST_POWER = LEAST_SHARE, 1e4, 8.0


@dataclass(frozen=True)
class Demand:
    """Experts survive by the power mean of the gate weights that the rows give them.

    A row's demand for an expert of its top-k is the expert's share of the row's top-k gate weights,
    and 0 elsewhere; rows whose top-k holds much of the router's score count more (``row_power``).
    An expert's demand is the power mean over the rows, between their mean (p = 1) and their largest
    (p without end): several rows that want an expert a little count together, one that wants it
    much counts more. Each row's first expert survives in any case, and so do the k experts most in
    demand, so that every row still uses k.

    Attributes:
      threshold: least demand that survives; the larger, the fewer. An expert that every row uses
        at the even share has a demand of 1/k.
      power: p.
      row_power: each row's demands are multiplied by the sum of its top-k scores, over the mean of
        that sum in the batch, to this power. 0: all rows count alike.
      min_rows: fewer live rows than this keep plain top-k.
      damping: how much less a substitute weighs, 0 to 1 (``Router.weigh``).
    """

    threshold: float
    power: float = 3.0
    row_power: float = 0.5
    min_rows: int = 2
    damping: float = 0.5

    def __post_init__(self) -> None:
        if not _LEAST <= self.threshold <= _LARGEST:
            raise InputError(
                f"demand: expected a threshold from {_LEAST:g} to {_LARGEST:g}, "
                f"got {self.threshold}"
            )
        if not 1 <= self.power <= _LARGEST_POWER:
            raise InputError(
                f"demand: expected a power from 1 to {_LARGEST_POWER:g}, got {self.power}"
            )
        if not 0 <= self.row_power <= 1:
            raise InputError(f"demand: expected a row_power from 0 to 1, got {self.row_power}")
        check_shared("demand", self.min_rows, self.damping)

    @classmethod
    def for_model(cls, k: int, num_experts: int) -> Self:
        """A threshold of 0.36 times the even share, 1/k; chosen on an 8 of 64 router."""
        return cls(0.36 / k)

    def survivors(
        self,
        scores: RouterScores,
        live: Bool[Array, " rows"],
        k: int,
    ) -> Bool[Array, " experts"]:
        num_experts = scores.choice.shape[-1]
        top_ids = top_k(scores.choice, k)
        demands = _demands(scores.weight, top_ids, live, self.row_power)
        demand = jnp.sum(demands**self.power, axis=0)
        kept: Array = demand >= self.threshold**self.power * jnp.maximum(jnp.sum(live), 1)
        kept |= expert_union(top_ids[:, :1], live, num_experts)
        most = top_k(demand[None], k)
        return kept | expert_union(most, jnp.ones(1, bool), num_experts)

    def validate(self, k: int, num_experts: int) -> None:
        pass


def _demands(
    weight: Float[Array, "rows experts"],
    top_ids: Array,
    live: Bool[Array, " rows"],
    row_power: float,
) -> Float[Array, "rows experts"]:
    """Each expert's share of its row's top-k weights, times what the row counts; 0 where not used.

    It never vanishes where a row does use the expert, so that no other one is as much in demand.
    """
    asked = jnp.any(top_ids[:, :, None] == jnp.arange(weight.shape[-1]), axis=1) & live[:, None]
    used = jnp.where(asked, weight, 0.0)
    total = jnp.sum(used, axis=-1, keepdims=True) + 1e-20
    demands = used / total
    if row_power:
        mean = jnp.sum(jnp.where(live[:, None], total, 0.0)) / jnp.maximum(jnp.sum(live), 1)
        demands *= (total / (mean + 1e-20)) ** row_power
    return jnp.where(asked, jnp.maximum(demands, LEAST_SHARE), 0.0)
