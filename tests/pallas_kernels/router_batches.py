"""Routers, and batches of router logits with all that a router may meet."""

import numpy as np

from lynx_jax.routers import Router

RENORMALIZED = Router("softmax", "renormalize")
SUM_KEPT = Router("softmax", "keep_sum")
DEEPSEEK_V2 = Router("softmax", "keep_sum", 16.0, groups=8, kept_groups=3)
LLAMA_4 = Router("sigmoid", "own")


def draw_rows(rng, rows, experts, *, live_share, grid, padded):
    """(logits, live): ties on a grid, experts at -inf at the end, NaN in rows that are not live.

    A live share of 0.5 stands for a single live row; a grid of 0 for none.
    """
    logits = rng.normal(size=(rows, experts)) + rng.normal(size=experts)
    if grid:
        logits = np.round(logits / grid) * grid
    logits[:, experts - padded :] = -np.inf
    live = rng.random(rows) < live_share
    if live_share == 0.5:
        live = np.arange(rows) == rng.integers(rows)
    logits[~live] = np.nan
    return logits, live
