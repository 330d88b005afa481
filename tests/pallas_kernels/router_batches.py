"""Routers, and batches of router logits with all that a router may meet."""

from dataclasses import dataclass, field

import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

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


# How ``Batch.draw`` draws.
DRAWS = {
    "seed": st.integers(0, 2**32 - 1),
    "live_share": st.sampled_from([1.0, 0.8, 0.5, 0.0]),
    "padded": st.sampled_from([0, 1]),
}


@st.composite
def routers(draw, experts, k):
    """Any router that the kernels take for k of so many experts, a multiple of 4."""
    groups = draw(st.sampled_from([1, 4]))
    return Router(
        draw(st.sampled_from(["softmax", "sigmoid"])),
        draw(st.sampled_from(["renormalize", "keep_sum", "own"])),
        draw(st.sampled_from([1.0, 2.5])),
        groups,
        draw(st.integers(-(-k * groups // experts), groups)),
        draw(st.sampled_from(["max", "top2"])),
    )


@dataclass(frozen=True)
class Batch:
    """The shape of a batch that a router routes."""

    rows: int
    experts: int
    k: int
    router: Router
    biased: bool = field(default=False, kw_only=True)
    dtype: str = field(default="float32", kw_only=True)

    def draw(self, rng, live_share, grid, padded):
        """(logits, live, bias or None), rows as ``draw_rows`` draws them."""
        logits, live = draw_rows(
            rng, self.rows, self.experts, live_share=live_share, grid=grid, padded=padded
        )
        bias = 0.2 * rng.normal(size=self.experts) if self.biased else None
        return (
            jnp.asarray(logits, self.dtype),
            jnp.asarray(live),
            None if bias is None else jnp.asarray(bias, jnp.float32),
        )
