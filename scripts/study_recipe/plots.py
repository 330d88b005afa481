"""Pictures of the study; needs matplotlib (the extra ``plot``)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from study_recipe.choosing import Router, curve
from study_recipe.settings import family, shapes

_NAMES = {"lynx": "Lynx", "oea": "OEA", "xshare": "XShare", "demand": "Demand",
          "topk0": "plain top-k0"}  # fmt: skip


def frontiers(tests: Mapping[Router, Mapping[str, Any]], path: Path) -> None:
    """Rise of cross-entropy against share of experts, a panel a model."""
    figure, panels = _panels(len(tests))
    for axes, (router, test) in zip(panels, tests.items(), strict=True):
        for name, label in _NAMES.items():
            found = (value for text, value in test["settings"].items() if family(text) == name)
            members = sorted(found, key=_share)
            axes.errorbar(
                [member["share"] for member in members],
                [100 * member["rise"]["mean"] / test["cross_entropy"] for member in members],
                yerr=[100 * m["rise"]["batches"] / test["cross_entropy"] for m in members],
                marker="o",
                markersize=3,
                linewidth=0 if name == "lynx" else 1,
                elinewidth=1,
                label=label,
            )
        axes.set_ylabel("rise of cross-entropy, %")
        axes.set_yscale("log")
        axes.set_ylim(0.02, 20)
        _finish(axes, router)
    figure.savefig(path, dpi=80)


def constants(grids: Mapping[Router, Mapping[str, Any]], path: Path) -> None:
    """Lynx's divergence against share of experts along alpha, a curve a (beta, floor)."""
    figure, panels = _panels(len(grids))
    for axes, (router, grid) in zip(panels, grids.items(), strict=True):
        for beta, floor in shapes(router.k):
            _, shares, divergences = zip(*curve(grid, (beta, floor)), strict=True)
            axes.plot(
                shares,
                divergences,
                "o" + {0: ":", 1: "--", 2: "-"}[floor],
                color=f"C{beta}",
                markersize=3,
                linewidth=1,
                label=f"beta {beta}, floor {floor}",
            )
        axes.set_ylabel("KL from plain top-k, nats")
        axes.set_yscale("log")
        _finish(axes, router)
    figure.savefig(path, dpi=80)


def _panels(count: int) -> tuple[Figure, list[Any]]:
    figure = Figure(figsize=(8, 6.4), layout="constrained")
    return figure, list(figure.subplots(2, 2).flat)[:count]


def _finish(axes: Any, router: Router) -> None:
    axes.set_title(f"{router.k} of {router.num_experts}", fontsize=9)
    axes.set_xlabel("share of top-k's experts")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=6)


def _share(member: Mapping[str, Any]) -> float:
    share: float = member["share"]
    return share
