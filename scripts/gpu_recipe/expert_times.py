"""Section ``experts``: time of a layer's experts against how many of them are in use."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import jax
import numpy as np
from jaxtyping import Array

from gpu_recipe.cases import Deadline, Programs, Row, attempt
from gpu_recipe.layers import experts_step, routings, rows_of
from gpu_recipe.settings import Family, Settings
from lynx_jax.pallas_kernels.expert_form import ExpertWeights
from lynx_jax.pallas_kernels.measure import (
    chain,
    microseconds_a_step,
    random_experts,
    rotating_work,
)
from lynx_jax.routing import Routing

PUBLISHED = Path(__file__).with_name("published_h200.json")


def run(settings: Settings, seed: int, deadline: Deadline) -> Iterator[Row]:
    """Mosaic and loop on the same work: a sweep over experts in use at the first batch, a line
    through it, and every batch with as many experts as it can use, beside published times.
    """
    programs = Programs(settings, deadline)
    for name in settings.measured:
        for batch in settings.batches:
            _compile(settings, programs, name, batch)
    programs.wait()
    published = json.loads(PUBLISHED.read_text(encoding="utf-8"))["microseconds"]
    for name in settings.measured:
        family = settings.families[name]
        weights = random_experts(family.experts, seed)
        timed = partial(_times, settings, programs, name, weights, seed)
        points: list[Row] = []
        for active in _sweep(settings, family):
            case = {"case": f"{name}, {active} experts", "family": name, "active": active}
            row = attempt(case, partial(timed, settings.batches[0], active))
            points.append(row)
            yield row
        yield attempt({"case": f"{name}, line", "family": name}, partial(line, points))
        for batch in settings.batches:
            active = family.experts.slots(batch)
            case = {"case": f"{name}, B={batch}", "family": name, "active": active}
            row = attempt(case, partial(timed, batch, active))
            yield {
                **row,
                "published_us": published.get(name, {}).get("balanced", {}).get(str(batch)),
            }


def _sweep(settings: Settings, family: Family) -> list[int]:
    most = family.experts.slots(settings.batches[0])
    return [active for active in settings.active if active <= most]


def _compile(settings: Settings, programs: Programs, name: str, rows: int) -> None:
    family = settings.families[name]
    arguments = jax.eval_shape(partial(_arguments, settings, family, rows, 1, 0))
    weights = jax.eval_shape(partial(random_experts, family.experts, 0))
    for backend in (settings.mosaic, settings.loop):
        step = experts_step(backend, family.experts.form)
        programs.add((name, rows, backend.name), chain(step), *arguments, weights, donate=(0,))


def _times(
    settings: Settings,
    programs: Programs,
    name: str,
    weights: ExpertWeights,
    seed: int,
    rows: int,
    active: int,
) -> Row:
    shape = settings.families[name].experts
    arguments = _arguments(settings, settings.families[name], rows, active, seed)
    found = {
        backend: microseconds_a_step(
            programs.get((name, rows, backend)),
            *arguments,
            weights,
            steps=settings.steps,
            repeats=settings.repeats,
            seconds=settings.seconds,
        )
        for backend in ("mosaic", "loop")
    }
    read = active * shape.expert_bytes
    return {
        "mosaic_us": found["mosaic"],
        "mosaic_gb_s": read / found["mosaic"] / 1e3,
        "loop_us": found["loop"],
        "loop_gb_s": read / found["loop"] / 1e3,
    }


def _arguments(
    settings: Settings, family: Family, rows: int, active: int, seed: int
) -> tuple[Array, list[Routing]]:
    work = rotating_work(family.experts, rows, active, settings.steps)
    return rows_of(family, rows, seed), routings(work, family.experts.k)


def line(points: list[Row]) -> Row:
    """Least squares of the kernels' time over the experts in use: us = base + slope * experts."""
    measured = [(row["active"], row["mosaic_us"]) for row in points if "mosaic_us" in row]
    x, y = np.array(measured, float).T
    slope, base = np.polyfit(x, y, 1)
    residual = y - (slope * x + base)
    r2 = float(1 - np.var(residual) / np.var(y))
    return {"us_an_expert": float(slope), "us_without_experts": float(base), "r2": r2}
