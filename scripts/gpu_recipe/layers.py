"""Routing, experts and whole MoE layers as steps of a chain; inputs for their checks."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from compile_recipe.routing_cases import route
from jaxtyping import Array

from gpu_recipe.settings import Family
from lynx_jax.backends import ExpertBackend
from lynx_jax.pallas_kernels.dense import linear
from lynx_jax.pallas_kernels.expert_form import ExpertForm, ExpertWeights
from lynx_jax.pallas_kernels.measure import Work, noise, residual
from lynx_jax.pallas_kernels.topk import top_k
from lynx_jax.policies import Policy
from lynx_jax.routing import Phase, Routing

type Logits = tuple[Array, Array, Array | None]  # logits, live rows, selection bias


def draw_logits(family: Family, rows: int, seed: int, *, ties: bool) -> Logits:
    """Random router logits; some rows are not live and hold NaN, the last expert is padding.

    Args:
      family: gives N and whether there is a selection bias.
      rows: B.
      seed: of the numbers.
      ties: whether logits lie on a grid, so that many are equal.
    """
    rng = np.random.default_rng(seed)
    experts = family.router.experts
    logits = rng.normal(size=(rows, experts)) + rng.normal(size=experts)
    if ties:
        logits = np.round(logits * 4) / 4
    if experts > 4 * family.router.k:  # enough others
        logits[:, -1] = -np.inf
    live = rng.random(rows) < 0.8
    live[rng.integers(rows)] = True
    logits[~live] = np.nan
    bias = 0.2 * rng.normal(size=experts) if family.router.biased else None
    return (
        jnp.asarray(logits, jnp.float32),
        jnp.asarray(live),
        None if bias is None else jnp.asarray(bias, jnp.float32),
    )


def routing_step(backend: ExpertBackend, family: Family, policy: Policy) -> Any:
    """A step that takes the last one's combine weights for its logits.

    That needs no operation between two launches; what a launch takes does not depend on numbers.
    """

    def step(logits: Array, own: None, shared: tuple[Array, Any]) -> Array:
        live, bias = shared
        routing = route(family.router, policy, logits, live, bias, by=backend.route)
        return routing.combine_matrix()

    return step


def layer_step(backend: ExpertBackend, family: Family, policy: Policy) -> Any:
    """A step that runs router, routing and experts; every step has a router of its own."""

    def step(x: Array, gate: Array, rest: tuple[Array, Any, ExpertWeights]) -> Array:
        live, bias, weights = rest
        logits = linear(x, gate)
        routing = route(family.router, policy, logits, live, bias, by=backend.route)
        form = family.experts.form
        return residual(x, backend(x, routing, weights, form=form, phase=Phase.DECODE))

    return step


def experts_step(backend: ExpertBackend, form: ExpertForm) -> Any:
    """A step that runs the experts of a routing."""

    def step(x: Array, routing: Routing, weights: ExpertWeights) -> Array:
        return residual(x, backend(x, routing, weights, form=form, phase=Phase.DECODE))

    return step


def routings(work: Sequence[Work], k: int) -> list[Routing]:
    """Each step's work as a backend takes it; experts beyond those in use weigh 0."""
    return [_routing(step, k) for step in work]


def _routing(work: Work, k: int) -> Routing:
    ids = top_k(work.combine, k)
    return Routing(
        ids=ids,
        weights=jnp.take_along_axis(work.combine, ids, axis=-1),
        live=jnp.ones(ids.shape[0], bool),
        active=work.active,
        num_active=work.num_active,
        num_active_topk=work.num_active,
        combine=work.combine,
    )


def rows_of(family: Family, rows: int, seed: int) -> Array:
    """Random activations [B, D] in bfloat16."""
    return noise(seed, (rows, family.experts.width), jnp.bfloat16, 1.0)
