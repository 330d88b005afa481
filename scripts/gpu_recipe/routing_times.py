"""Section ``routing``: time of the routing kernel, and its share of an MoE layer's time."""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from compile_recipe.routing_cases import policies
from jaxtyping import Array

from gpu_recipe.cases import Deadline, Programs, Row, attempt
from gpu_recipe.layers import layer_step, routing_step, rows_of
from gpu_recipe.settings import Family, Settings
from lynx_jax.pallas_kernels.expert_form import ExpertWeights
from lynx_jax.pallas_kernels.measure import chain, microseconds_a_step, noise, random_experts


def run(settings: Settings, seed: int, deadline: Deadline) -> Iterator[Row]:
    """Microseconds with Lynx for every family and batch, and those of the layer around it.

    Layers are timed for every family at the first batch, and for the first family at all. With
    Demand, which costs more, the first family is timed; with the other modes, its routing at the
    first batch.
    """
    programs = Programs(settings, deadline)
    names, first = list(settings.families), settings.batches[0]
    cases = [_Case(name, first, "lynx", True) for name in names]
    cases += [_Case(names[0], batch, "lynx", True) for batch in settings.batches[1:]]
    cases += [_Case(names[0], batch, "demand", True) for batch in settings.batches]
    cases += [_Case(names[0], first, mode) for mode in ("off", "oea", "xshare")]
    cases += [_Case(name, batch) for name in names[1:] for batch in settings.batches[1:]]
    for case in cases:
        _compile(settings, programs, case)
    programs.wait()
    for case in cases:
        name, rows, mode, _ = case
        row = {"case": f"{name}, B={rows}, {mode}", "family": name, "rows": rows, "mode": mode}
        yield attempt(row, partial(_times, settings, programs, case, seed))


class _Case(NamedTuple):
    """What is timed: a family's routing of so many rows, and the layer around it or not."""

    name: str
    rows: int
    mode: str = "lynx"
    with_layer: bool = False


def _compile(settings: Settings, programs: Programs, case: _Case) -> None:
    family, rows = settings.families[case.name], case.rows
    policy = policies(family.router.k, family.router.experts)[case.mode]
    key = _router_key(family, case)
    if not programs.has(key):
        step = routing_step(settings.mosaic, family, policy)
        shapes = jax.eval_shape(partial(_routing, settings, family, rows, 0))
        programs.add(key, chain(step), *shapes, donate=(0,))
    if case.with_layer:
        step = layer_step(settings.mosaic, family, policy)
        shapes = jax.eval_shape(partial(_layer, settings, family, rows, 0))
        programs.add(case, chain(step), *shapes, donate=(0,))


def _times(settings: Settings, programs: Programs, case: _Case, seed: int) -> Row:
    family, rows = settings.families[case.name], case.rows
    timed = partial(
        microseconds_a_step,
        steps=settings.steps,
        repeats=settings.repeats,
        seconds=settings.seconds,
    )
    arguments = _routing(settings, family, rows, seed)
    routing = timed(programs.get(_router_key(family, case)), *arguments)
    if not case.with_layer:
        return {"routing_us": routing}
    layer = timed(programs.get(case), *_layer(settings, family, rows, seed))
    return {"routing_us": routing, "layer_us": layer, "share_of_layer": routing / layer}


def _router_key(family: Family, case: _Case) -> Any:
    """Families of equal routers share a program."""
    return family.router, case.rows, case.mode


def _bias(family: Family, seed: int) -> Array | None:
    if not family.router.biased:
        return None
    return noise(seed, (family.router.experts,), jnp.float32, 0.2)


def _routing(
    settings: Settings, family: Family, rows: int, seed: int
) -> tuple[Array, list[None], tuple[Array, Array | None]]:
    """Logits, nothing for a step alone, and live rows and the selection bias for all."""
    logits = noise(seed, (rows, family.router.experts), jnp.float32, 1.0)
    return logits, [None] * settings.steps, (jnp.ones(rows, bool), _bias(family, seed))


def _layer(
    settings: Settings, family: Family, rows: int, seed: int
) -> tuple[Array, list[Array], tuple[Array, Array | None, ExpertWeights]]:
    """Rows, a router for every step (so that experts change), and what all steps share."""
    width = family.experts.width
    gates = [
        noise(seed + step, (family.router.experts, width), jnp.bfloat16, width**-0.5)
        for step in range(settings.steps)
    ]
    rest = jnp.ones(rows, bool), _bias(family, seed), random_experts(family.experts, seed)
    return rows_of(family, rows, seed), gates, rest
