"""The study's measurements: a grid to choose on, and a test of what was chosen."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from compare_policies import paired
from demo_recipe.study import name_of

from lynx_jax.errors import InputError
from study_recipe.choosing import COSTS, Router, best_shape, fitted_formula, floor_of
from study_recipe.comparing import at_experts
from study_recipe.measuring import Bench, Measured, summary
from study_recipe.settings import WIDTHS, lynx, rivals, shapes
from study_recipe.texts import groups

_FORMULAS = (
    ("one width, floor 1", "1", False),
    ("one width, floor k/4", "k/4", False),
    ("power of N/k, floor k/4", "k/4", True),
)
# Routers of the study that the authors list.
_LISTED = {Router(2, 8), Router(6, 64), Router(8, 64)}


@dataclass(frozen=True)
class Study:
    """The study's models and results.

    Attributes:
      work: folder of the training runs; its ``data`` holds the held-out text.
      results: folder of the results.
      routers: of all models.
    """

    work: Path
    results: Path
    routers: tuple[Router, ...]

    def grid(self, router: Router, batch: int, windows: int) -> None:
        """Measure Lynx's whole grid on the half for choosing."""
        names = [lynx(width, *shape) for shape in shapes(router.k) for width in WIDTHS]
        started = time.process_time()
        texts = groups(self.work / "data", "choose", batch, windows)
        plain, found = self._bench(router).measure(texts, names)
        self._write(router, f"grid_{batch}", summary(plain, found, batch), started)

    def test(self, router: Router, batch: int, windows: int) -> None:
        """Measure what was chosen on the half for reporting, and compare it with the rivals."""
        chosen = dict(self._chosen(router))
        others = rivals(router.k, router.num_experts)
        names = dict.fromkeys([*chosen.values(), *(name for m in others.values() for name in m)])
        started = time.process_time()
        texts = groups(self.work / "data", "report", batch, windows)
        plain, found = self._bench(router).measure(texts, list(names))
        results = summary(plain, found, batch)
        results["chosen"] = chosen
        results["less_than"] = {
            setting: _against(found[setting], self._families(router, chosen, plain, found), batch)
            for setting in dict.fromkeys(chosen.values())
        }
        self._write(router, f"test_{batch}", results, started)

    def _families(
        self,
        router: Router,
        chosen: Mapping[str, str],
        plain: Measured,
        found: Mapping[str, Measured],
    ) -> dict[str, list[Measured]]:
        """Plain top-k and the members of each rival family; ``tuned`` is Lynx's own best."""
        names = rivals(router.k, router.num_experts)
        names["tuned"] = [name for what, name in chosen.items() if what.startswith("tuned")]
        return {
            family: [plain, *(found[name] for name in members)] for family, members in names.items()
        }

    def read(self, router: Router, what: str) -> dict[str, Any]:
        """The results of a stage, such as ``grid_16``."""
        path = self._path(router, what)
        if not path.is_file():
            raise InputError(f"expected the results of an earlier stage in {path}; run that first")
        stored: dict[str, Any] = json.loads(path.read_text())
        return stored

    @cached_property
    def grids(self) -> dict[Router, Mapping[str, Any]]:
        """Every model's grid at B=16, which all constants are chosen on."""
        return {router: self.read(router, "grid_16") for router in self.routers}

    def _chosen(self, router: Router) -> Iterator[tuple[str, str]]:
        """(what it is, setting) of all that is tested."""
        yield "default", "lynx"
        if router in _LISTED:
            yield "authors", "lynx:preset=authors"
        others = {other: grid for other, grid in self.grids.items() if other != router}
        for cost in COSTS:
            best = best_shape(self.grids[router], router.k, cost)
            if best is not None:
                (_, floor), point = best
                yield f"tuned, {cost}", lynx(point.width, *best[0])
                yield f"beta 8, {cost}", lynx(point.width, 8, floor)
            for kind, floor, slope in _FORMULAS:
                formula = fitted_formula(others, cost, floor, slope=slope)
                if formula is not None:
                    beta, width = formula
                    yield f"{kind}, {cost}", lynx(width(router), beta, floor_of(floor, router))

    def _bench(self, router: Router) -> Bench:
        return Bench(self.work / "study" / _name(router) / "model")

    def _path(self, router: Router, what: str) -> Path:
        return self.results / f"constants_{_name(router)}_{what}.json"

    def _write(self, router: Router, what: str, results: dict[str, Any], started: float) -> None:
        spent = {"processor_seconds": round(time.process_time() - started, 1)}
        self.results.mkdir(parents=True, exist_ok=True)
        model = {"model": f"{router.k} of {router.num_experts}"}
        text = json.dumps(_rounded({**model, **results, **spent}), indent=1)
        self._path(router, what).write_text(text + "\n")


def _name(router: Router) -> str:
    return name_of(router.k, router.num_experts)


def _against(
    setting: Measured, families: Mapping[str, list[Measured]], batch: int
) -> dict[str, dict[str, float]]:
    """Loss of a setting less that of each family at as many experts, where it gets there."""
    compared = {}
    for name, members in families.items():
        losses = at_experts(members, setting.experts)
        if losses is not None:
            compared[name] = paired(setting.loss - losses, batch)
    return compared


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return round(value, 5) if isinstance(value, float) else value
