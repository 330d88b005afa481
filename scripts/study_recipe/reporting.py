"""Tables of the study in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_RIVALS = ("tuned", "oea", "xshare", "demand", "topk0")


def tables(name: str, test: Mapping[str, Any]) -> str:
    """One model's tables: what was chosen against the rivals, and every setting."""
    head = (
        f"{name}, B={test['batch']}: {test['windows']} windows, plain top-k "
        f"{test['cross_entropy']:.4f} nats, {test['experts']:.2f} experts"
    )
    return "\n".join([head, "", *_chosen(test), "", *_settings(test), ""])


def _chosen(test: Mapping[str, Any]) -> Iterator[str]:
    yield "| what | setting | share | relative rise | KL | rise less that of " + (
        " | of ".join(_RIVALS) + " |"
    )
    yield "|---" * (5 + len(_RIVALS)) + "|"
    for what, setting in test["chosen"].items():
        against = test["less_than"][setting]
        cells = [_signed(against[rival]) if rival in against else "" for rival in _RIVALS]
        yield f"| {what} | `{setting}` | {_short(test, setting)} | {' | '.join(cells)} |"


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


def _signed(difference: Mapping[str, float]) -> str:
    return f"{difference['mean']:+.4f} ± {difference['batches']:.4f}"
