"""Held-out text of the study: one half to choose constants on, the other to report on."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np

from lynx_jax.errors import InputError
from lynx_jax.evaluation.texts import Windows, batches

type Half = Literal["choose", "report"]

PROMPT, SCORED = 64, 128
LENGTH = PROMPT + SCORED


def half_of(tokens: np.ndarray, half: Half) -> slice:
    """The first half of a domain's tokens is for choosing, the second for reporting."""
    middle = len(tokens) // 2
    return slice(middle) if half == "choose" else slice(middle, None)


def windows(folder: Path, half: Half) -> Windows:
    """All windows of one half, side by side: ``LENGTH`` tokens and one target each.

    Args:
      folder: what ``scripts/train_demo.py data`` prepares; its ids are those of the study's models.
      half: which half of every domain.
    """
    rows: list[np.ndarray] = []
    domains: list[str] = []
    for path in sorted(folder.glob("held_out_*_tokens.npy")):
        tokens = np.load(path)
        tokens = tokens[half_of(tokens, half)].astype(np.int32)
        cut = tokens[: len(tokens) // (LENGTH + 1) * (LENGTH + 1)].reshape(-1, LENGTH + 1)
        rows.append(cut)
        domains += [path.stem.split("_")[2]] * len(cut)
    if not rows:
        raise InputError(
            f"expected held_out_*_tokens.npy in {folder}; run train_demo.py data first"
        )
    found = np.concatenate(rows)
    return Windows(found, np.arange(len(found)), tuple(domains))


def groups(folder: Path, half: Half, batch: int, count: int) -> list[Windows]:
    """``count`` windows as batches in which the domains take turns."""
    return batches(windows(folder, half), batch, "mixed", seed=0, most=count // batch)
