"""Teacher-forced decode: routing of given texts as decoding them step by step would route them.

Which experts a decode step uses depends on nothing but its batch: the rows' tokens of that step. So
one pass over whole sequences, in which each column of tokens is routed as one decode batch, gives
the logits that decoding these texts would give.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from lynx_jax.pallas_kernels.remapping import compact, expert_union
from lynx_jax.pallas_kernels.topk import top_k
from lynx_jax.policies import Policy, TopK
from lynx_jax.routers import Router
from lynx_jax.routing import Phase, Routing, route

# Far below any mass that counts, and enough to divide by where all scores underflow.
_LEAST_MASS = 1e-20


@dataclass(frozen=True)
class TeacherForced:
    """The phase of a pass over whole sequences as if they were decoded; static.

    Rows stand so that their prompts end together: column ``prompt_tokens`` holds the first token
    that each row feeds to a decode step. Shorter prompts are padded in front.

    Attributes:
      prompt_tokens: columns before this one are routed by plain top-k, as prefill does; each one
        from there on as a decode batch under the policy.
    """

    prompt_tokens: int


def pass_phase(phase: Phase | TeacherForced) -> Phase:
    """The phase of all that does not route: teacher-forced tokens are one pass, as a prompt is."""
    return Phase.PREFILL if isinstance(phase, TeacherForced) else phase


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class StepRouting:
    """What was decided in each column of a teacher-forced pass.

    Attributes:
      active: the experts that the column's live rows use.
      num_active_topk: int32, how many plain top-k would have used on the same logits.
      retained: float32, the scores of each row's experts together, over those of its plain top-k;
        1 in rows that are not live.
    """

    active: Bool[Array, "tokens experts"]
    num_active_topk: Int[Array, " tokens"]
    retained: Float[Array, "rows tokens"]


def route_teacher_forced(
    logits: Float[Array, "rows tokens experts"],
    live: Bool[Array, "rows tokens"],
    *,
    k: int,
    router: Router,
    bias: Float[Array, " experts"] | None = None,
    policy: Policy,
    prompt_tokens: int,
) -> tuple[Routing, StepRouting]:
    """Choose and weigh experts, column by column.

    Always in plain JAX: what it decides is what every backend's routing must decide.

    Args:
      logits: router logits. Rows that are not live may hold anything.
      live: rows that count, in each column.
      k: experts a row.
      router: the family's scores and weight rule.
      bias: float32 selection bias, for routers that have one.
      policy: which experts of each column's batch survive, from column ``prompt_tokens`` on.
      prompt_tokens: as in ``TeacherForced``.

    Returns:
      The routing of all rows and columns flattened into one axis, and each column's own facts.
    """
    columns, live_columns = logits.swapaxes(0, 1), live.swapaxes(0, 1)

    def routed(part: slice, policy: Policy, phase: Phase) -> Routing:
        def column(logits: Array, live: Array) -> Routing:
            return route(logits, live, k=k, router=router, bias=bias, policy=policy, phase=phase)

        return jax.vmap(column)(columns[part], live_columns[part])

    parts = (
        routed(slice(prompt_tokens), TopK(), Phase.PREFILL),
        routed(slice(prompt_tokens, None), policy, Phase.DECODE),
    )
    by_column = jax.tree.map(lambda *arrays: jnp.concatenate(arrays), *parts)
    ids, weights = (
        array.swapaxes(0, 1).reshape(-1, k) for array in (by_column.ids, by_column.weights)
    )
    flat_live, num_experts = live.reshape(-1), logits.shape[-1]
    flat_logits = jnp.where(live[..., None], logits, 0.0).reshape(-1, num_experts)
    scores = router.scores(flat_logits.astype(jnp.float32), bias)
    top_ids = top_k(scores.choice, k)
    active, num_active = compact(expert_union(ids, flat_live, num_experts))
    top_used = expert_union(top_ids, flat_live, num_experts)
    kept = _mass(scores.probability, ids) / (_mass(scores.probability, top_ids) + _LEAST_MASS)
    return (
        Routing(ids, weights, flat_live, active, num_active, jnp.sum(top_used, dtype=jnp.int32)),
        StepRouting(
            active=jax.vmap(expert_union, (0, 0, None))(by_column.ids, live_columns, num_experts),
            num_active_topk=by_column.num_active_topk,
            retained=jnp.where(live, kept.reshape(live.shape), 1.0),
        ),
    )


def _mass(weight: Float[Array, "rows experts"], ids: Int[Array, "rows k"]) -> Float[Array, " rows"]:
    return jnp.sum(jnp.take_along_axis(weight, ids, axis=-1), axis=-1)
