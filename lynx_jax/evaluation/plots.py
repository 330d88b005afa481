"""Results as small PNG pictures; needs matplotlib (the extra ``plot``)."""

import importlib.util
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from lynx_jax.errors import InputError
from lynx_jax.evaluation.report import BatchSizeResult, PolicyResult


def require_matplotlib() -> None:
    """Raise ``InputError`` if plots cannot be drawn."""
    if importlib.util.find_spec("matplotlib") is None:
        raise InputError(
            "plots need matplotlib: install lynx-jax with the extra 'plot', or add --no-plots"
        )


def draw(result: BatchSizeResult, folder: Path) -> list[Path]:
    """Write one batch size's pictures into a folder; returns their paths."""
    paths = []
    for name, figure in pictures(result).items():
        paths.append(folder / f"{name}_{result.batch}.png")
        figure.savefig(paths[-1], dpi=80)
    return paths


def pictures(result: BatchSizeResult) -> dict[str, Any]:
    """One batch size's four pictures by name, as figures of matplotlib."""
    from matplotlib.figure import Figure

    figures = {}
    for name, picture in {
        "frontier": _frontier,
        "experts_per_layer": _experts_per_layer,
        "loss_per_domain": _loss_per_domain,
        "expert_use": _expert_use,
    }.items():
        figures[name] = Figure(figsize=(6.4, 4.2), layout="constrained")
        picture(figures[name], result)
        figures[name].suptitle(f"B={result.batch}, {result.composition}", fontsize=9)
    return figures


def _frontier(figure: Any, result: BatchSizeResult) -> None:
    axes = figure.subplots()
    families: dict[str, list[PolicyResult]] = defaultdict(list)
    for policy in result.policies:
        families[policy.policy.split(":")[0]].append(policy)
    for family, members in families.items():
        members.sort(key=lambda member: member.experts.value)
        axes.errorbar(
            [member.experts.value for member in members],
            [100 * member.relative_rise.value for member in members],
            yerr=[100 * (member.relative_rise.error or 0) for member in members],
            marker="o",
            markersize=4,
            linewidth=1,
            capsize=2,
            label=family,
        )
    axes.set_xlabel(f"distinct experts a layer and step (top-k: {result.experts:.1f})")
    axes.set_ylabel("rise of cross-entropy, %")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)


def _axes(figure: Any, colours: int) -> Any:
    """Axes on which so many policies have a colour each."""
    from matplotlib import colormaps

    axes = figure.subplots()
    if colours > 10:  # more than matplotlib tells apart by itself
        axes.set_prop_cycle(color=colormaps["turbo"](np.linspace(0.05, 0.95, colours)))
    return axes


def _experts_per_layer(figure: Any, result: BatchSizeResult) -> None:
    axes = _axes(figure, len(result.policies))
    layers = np.arange(len(result.experts_per_layer))
    axes.plot(layers, result.experts_per_layer, "k--", label="top-k")
    for policy in result.policies:
        axes.plot(layers, policy.experts_per_layer, marker=".", label=policy.policy)
    axes.set_xlabel("MoE layer")
    axes.set_xticks(layers)
    axes.set_ylabel("distinct experts a step")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=5, ncols=3)


def _loss_per_domain(figure: Any, result: BatchSizeResult) -> None:
    changed = [policy for policy in result.policies if policy.rise.value]
    axes = _axes(figure, len(changed))
    width = 0.8 / max(1, len(changed))
    for i, policy in enumerate(changed):
        domains = list(policy.domains.values())
        axes.bar(
            np.arange(len(domains)) + (i - (len(changed) - 1) / 2) * width,
            [100 * domain.relative_rise.value for domain in domains],
            width,
            yerr=[100 * (domain.relative_rise.error or 0) for domain in domains],
            error_kw={"elinewidth": 0.7},
            label=policy.policy,
        )
    names = list(result.policies[0].domains)
    axes.set_xticks(np.arange(len(names)), names)
    axes.set_ylabel("rise of cross-entropy, %")
    axes.legend(fontsize=5, ncols=3)


def _expert_use(figure: Any, result: BatchSizeResult) -> None:
    """How often each expert is read: plain top-k, and the policy that reads the fewest experts
    among those that cost less than 1 %."""
    mild = [policy for policy in result.policies if policy.relative_rise.value < 0.01]
    shown = min(mild or result.policies, key=lambda policy: policy.experts.value)
    upper, lower = figure.subplots(2, 1, sharex=True)
    for axes, use, name in ((upper, result.use, "top-k"), (lower, shown.use, shown.policy)):
        image = axes.imshow(use, aspect="auto", vmin=0, vmax=1, interpolation="nearest")
        axes.set_title(name, fontsize=8)
        axes.set_ylabel("MoE layer")
    lower.set_xlabel("expert")
    figure.colorbar(image, ax=[upper, lower], label="share of steps that read it")
