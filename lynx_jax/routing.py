"""Routing of one MoE layer: which experts each row uses, with which weights."""

import enum
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from lynx_jax.pallas_kernels.expert_ffn import combine_matrix
from lynx_jax.pallas_kernels.remapping import compact, expert_union, remap_if_it_saves
from lynx_jax.pallas_kernels.topk import top_k
from lynx_jax.policies import Policy, TopK
from lynx_jax.routers import Router


class Phase(enum.Enum):
    """Which of the two programs is being traced; a static value, never an array."""

    PREFILL = "prefill"
    DECODE = "decode"


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Routing:
    """The experts of one MoE layer for one batch of rows.

    Attributes:
      ids: k distinct experts a row, best first. Arbitrary for rows that are not live.
      weights: float32 combine weights of ``ids``.
      live: rows that count; the others contribute nothing and activate nothing.
      active: int32 ids of the distinct experts that live rows use, ascending, padded with 0.
      num_active: int32, how many entries of ``active`` hold.
      num_active_topk: int32, how many experts plain top-k would have used on the same logits.
      combine: float32 weight of every expert in every row where the routing was made with it.
    """

    ids: Int[Array, "rows k"]
    weights: Float[Array, "rows k"]
    live: Bool[Array, " rows"]
    active: Int[Array, " experts"]
    num_active: Int[Array, ""]
    num_active_topk: Int[Array, ""]
    combine: Float[Array, "rows experts"] | None = None

    def combine_matrix(self) -> Float[Array, "rows experts"]:
        """float32 weight of every expert in every row; 0 where not chosen or not live."""
        if self.combine is not None:
            return self.combine
        return combine_matrix(self.ids, self.weights, self.live, self.active.shape[0])


def route(
    logits: Float[Array, "rows experts"],
    live: Bool[Array, " rows"],
    *,
    k: int,
    router: Router,
    bias: Float[Array, " experts"] | None = None,
    policy: Policy,
    phase: Phase,
) -> Routing:
    """Choose k experts a row and weigh them.

    In prefill the policy is not looked at, so that the program holds no trace of it.

    Args:
      logits: router logits; computed with in float32. Rows that are not live may hold anything.
      live: rows that count.
      k: experts a row.
      router: the family's scores and weight rule.
      bias: float32 selection bias, for routers that have one.
      policy: which experts of the batch survive, in decode.
      phase: prefill or decode.
    """
    num_experts = logits.shape[-1]
    logits = jnp.where(live[:, None], logits.astype(jnp.float32), 0.0)
    scores = router.scores(logits, bias)
    top_ids = ids = top_k(scores.choice, k)
    top_used = used = expert_union(top_ids, live, num_experts)
    damping = 0.0
    if phase is Phase.DECODE and not isinstance(policy, TopK):
        damping = policy.damping
        survivors = policy.survivors(scores, live, k)
        ids, used = remap_if_it_saves(
            scores.choice, survivors, live, top_ids, top_used, k, policy.min_rows
        )
    active, num_active = compact(used)
    return Routing(
        ids=ids,
        weights=router.weigh(scores.weight, ids, top_ids, damping),
        live=live,
        active=active,
        num_active=num_active,
        num_active_topk=jnp.sum(top_used, dtype=jnp.int32),
    )
