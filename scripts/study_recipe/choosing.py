"""Constants out of a grid: at a wanted cost, and by a formula of k/N."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from study_recipe.settings import BETAS, WIDTHS, lynx, shapes

# KL divergence from plain top-k, nats a token.
COSTS = (0.008, 0.012)

type Shape = tuple[int, int]  # beta, floor
# How formulas set the floor, by k.
FLOORS: dict[str, Callable[[int], int]] = {
    "1": lambda k: 1,
    "k/4": lambda k: max(1, k // 4),
}

type Grid = Mapping[str, Any]


@dataclass(frozen=True)
class Router:
    """k of N experts a token."""

    k: int
    num_experts: int

    @property
    def halvings(self) -> float:
        """log2(N / k)."""
        return math.log2(self.num_experts / self.k)


@dataclass(frozen=True)
class Point:
    """Lynx at a cost: the width that has it, and the share of top-k's experts that it reads."""

    width: float
    share: float


def curve(grid: Grid, shape: Shape) -> list[tuple[float, float, float]]:
    """(width, share, divergence) along the widths of a grid."""
    found = []
    for width in WIDTHS:
        setting = grid["settings"][lynx(width, *shape)]
        found.append((width, setting["share"], setting["divergence"]["mean"]))
    return found


def at_cost(points: Sequence[tuple[float, float, float]], cost: float) -> Point | None:
    """Where a curve has a divergence, by straight lines between logarithms; None if nowhere.

    Only up to the width that diverges least: in wider bins fewer of a row's own choices are told
    apart, and it diverges more again.
    """
    width, share, divergence = (np.array(column) for column in zip(*points, strict=True))
    order = np.arange(int(divergence.argmin()), -1, -1)
    logs = np.log(np.maximum(divergence[order], 1e-12))
    if not logs[0] <= math.log(cost) <= logs[-1]:
        return None
    at = np.interp(math.log(cost), logs, np.log(width)[order])
    return Point(float(np.exp(at)), float(np.interp(math.log(cost), logs, share[order])))


def best_shape(grid: Grid, k: int, cost: float) -> tuple[Shape, Point] | None:
    """The shape that reads the fewest experts at a cost."""
    points = {shape: at_cost(curve(grid, shape), cost) for shape in shapes(k)}
    reached = {shape: point for shape, point in points.items() if point is not None}
    if not reached:
        return None
    shape = min(reached, key=lambda shape: reached[shape].share)
    return shape, reached[shape]


def fit_width(widths: Mapping[Router, float], *, slope: bool) -> Callable[[Router], float]:
    """Width as a function of k/N: one value for all, or with a slope, a power of N/k.

    Least squares in log width.
    """
    logs = np.log(list(widths.values()))
    x = [router.halvings for router in widths]
    a, b = np.polyfit(x, logs, 1) if slope else (0.0, logs.mean())
    return lambda router: float(np.exp(a * router.halvings + b))


def fitted_formula(
    grids: Mapping[Router, Grid], cost: float, floor: str, *, slope: bool
) -> tuple[int, Callable[[Router], float]] | None:
    """Beta and width formula that do best at a cost on some routers.

    Beta is the one that reads the fewest experts on average. Routers that do not get to the cost
    have no say. None if there are too few of different k/N to fit.

    Args:
      grids: of the routers that the formula is fitted on.
      cost: divergence wanted, nats.
      floor: name of a rule in ``FLOORS``.
      slope: whether the width depends on N/k.
    """
    found = {}
    for beta in BETAS:
        points = {
            router: at_cost(curve(grid, (beta, floor_of(floor, router))), cost)
            for router, grid in grids.items()
        }
        found[beta] = {router: point for router, point in points.items() if point is not None}
    most = max(map(len, found.values()))
    full = {beta: points for beta, points in found.items() if len(points) == most}
    beta = min(full, key=lambda beta: sum(point.share for point in full[beta].values()))
    widths = {router: point.width for router, point in full[beta].items()}
    if len({router.halvings for router in widths}) < 1 + slope:
        return None
    return beta, fit_width(widths, slope=slope)


def floor_of(rule: str, router: Router) -> int:
    """The floor of a rule in ``FLOORS``, with which the router can still save."""
    return min(FLOORS[rule](router.k), router.k - 1)
