"""Tables of the study in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_RIVALS = ("tuned", "oea", "xshare", "demand", "topk0")


# Rivals of ``lynx`` in docs/study.md; ``tuned`` has too few settings to draw a line between.
_OTHERS = {"oea": "OEA", "xshare": "XShare", "demand": "Demand", "topk0": "plain top-k0"}
_NAMED = {"default": "`lynx`", "authors": "`lynx:preset=authors`"}


def rule_table(tests: Iterable[Mapping[str, Any]]) -> str:
    """Lynx's constants that have a name, on every model, and their rise less each rival's."""
    return "\n".join(_rule_lines(tests))


def _rule_lines(tests: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    others = " | ".join(f"less {name}" for name in _OTHERS.values())
    yield f"| model | policy | share | relative rise | KL | {others} |"
    yield "|---" * (5 + len(_OTHERS)) + "|"
    for test in tests:
        for what in _NAMED:
            if what in test["chosen"]:
                setting = test["chosen"][what]
                cells = _differences(test, setting, _OTHERS)
                yield f"| {test['model']} | {_NAMED[what]} | {_short(test, setting)} | {cells} |"


def tables(test: Mapping[str, Any]) -> str:
    """One model's tables: what was chosen against the rivals, and every setting."""
    head = (
        f"{test['model']}, B={test['batch']}: {test['windows']} windows, plain top-k "
        f"{test['cross_entropy']:.4f} nats, {test['experts']:.2f} experts"
    )
    return "\n".join([head, "", *_chosen(test), "", *_settings(test), ""])


def _chosen(test: Mapping[str, Any]) -> Iterator[str]:
    yield "| what | setting | share | relative rise | KL | rise less that of " + (
        " | of ".join(_RIVALS) + " |"
    )
    yield "|---" * (5 + len(_RIVALS)) + "|"
    for what, setting in test["chosen"].items():
        cells = _differences(test, setting, _RIVALS)
        yield f"| {what} | `{setting}` | {_short(test, setting)} | {cells} |"


def _settings(test: Mapping[str, Any]) -> Iterator[str]:
    yield "| setting | share | relative rise | KL |"
    yield "|---|---|---|---|"
    for setting in sorted(test["settings"], key=lambda name: -test["settings"][name]["share"]):
        yield f"| `{setting}` | {_short(test, setting)} |"


def _short(test: Mapping[str, Any], setting: str) -> str:
    found = test["settings"][setting]
    rise, whole = found["rise"], test["cross_entropy"]
    return (
        f"{found['share']:.3f} | {rise['mean'] / whole:.2%} ± {rise['batches'] / whole:.2%} | "
        f"{found['divergence']['mean']:.4f}"
    )


def _differences(test: Mapping[str, Any], setting: str, rivals: Iterable[str]) -> str:
    """A cell for every rival, empty where it does not read as many experts."""
    against = test["less_than"][setting]
    cells = (against.get(rival) for rival in rivals)
    return " | ".join(
        "" if cell is None else f"{cell['mean']:+.4f} ± {cell['batches']:.4f}" for cell in cells
    )
