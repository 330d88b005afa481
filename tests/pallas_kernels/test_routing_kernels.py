"""Binning, scoring and remapping kernels, interpreted on CPU, against their references."""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jax.experimental.pallas import mosaic_gpu as plgpu

from lynx_jax.pallas_kernels.binning_kernel import binning, binning_reference
from lynx_jax.pallas_kernels.remapping_kernel import remapping, remapping_reference
from lynx_jax.pallas_kernels.scoring import adaptive_expert_scores
from lynx_jax.pallas_kernels.scoring_kernel import scoring
from lynx_jax.routers import Router
from tests.pallas_kernels.router_batches import (
    DEEPSEEK_V2,
    DRAWS,
    LLAMA_4,
    RENORMALIZED,
    SUM_KEPT,
    Batch,
)

DEEPSEEK_V3 = Router("sigmoid", "renormalize", 2.5, groups=8, kept_groups=4, group_score="top2")


@dataclass(frozen=True)
class Case(Batch):
    alpha: float
    beta: int
    floor: int = 1
    min_rows: int = 2
    damping: float = 0.0
    races: bool = False


CASES = [
    Case(130, 8, 2, RENORMALIZED, 0.7, 1, floor=0),
    Case(17, 64, 8, DEEPSEEK_V3, 3.0, 4, damping=0.5, biased=True, races=True),
    Case(1, 72, 3, SUM_KEPT, 2.0, 2, min_rows=1),
    Case(64, 128, 8, RENORMALIZED, 3.0, 2, floor=2, dtype="bfloat16"),
    Case(20, 160, 6, DEEPSEEK_V2, 1.125, 2, damping=0.3),
    Case(6, 16, 1, LLAMA_4, 1.0, 2, floor=0),
    Case(9, 256, 8, DEEPSEEK_V3, 3.0, 4, biased=True, dtype="bfloat16"),
]


def draw(case: Case, seed: int, live_share: float, grid: float, padded: int):
    """Rows of logits; whole scores with ties, whatever the logits are."""
    rng = np.random.default_rng(seed)
    logits, live, bias = case.draw(rng, live_share, grid, padded)
    # Favourites of the batch, so that there is something to save.
    scores = rng.integers(-3, 3, logits.shape) + rng.integers(-6, 6, case.experts)
    return logits, live, bias, jnp.asarray(scores, jnp.int32)


@functools.cache
def kernels_and_references(case: Case):
    """Two functions of the same inputs, each of (binned rows, scores by the bins, routed rows)."""
    binned = {"k": case.k, "router": case.router, "alpha": case.alpha, "beta": case.beta}
    routed = {n: getattr(case, n) for n in ("k", "router", "floor", "min_rows", "damping")}

    def kernels(logits, live, bias, scores, bins, top_sum):
        run = {"interpret": plgpu.InterpretGPUParams(detect_races=case.races)}
        return (
            binning(logits, live, bias, **binned, **run),
            scoring(bins, live, case.beta, **run),
            remapping(logits, live, bias, scores, top_sum, **routed, **run),
        )

    def references(logits, live, bias, scores):
        rows = binning_reference(logits, live, bias, **binned)
        return (
            rows,
            adaptive_expert_scores(rows.bins, live, case.beta),
            remapping_reference(logits, live, bias, scores, rows.top_sum, **routed),
        )

    return jax.jit(kernels), jax.jit(references)


assert_close = functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-6)


def check(case: Case, inputs):
    """Compares each kernel with its reference on the same inputs; the references' results."""
    kernels, references = kernels_and_references(case)
    wanted = references(*inputs)
    rows, scores, routed = kernels(*inputs, wanted[0].bins, wanted[0].top_sum)
    live = np.asarray(inputs[1])
    pairs = [
        (rows.bins, wanted[0].bins),
        (rows.top_sum, wanted[0].top_sum),
        (scores, wanted[1]),
        (routed.ids, wanted[2].ids),
        (routed.combine, wanted[2].combine),
    ]
    for got, want in pairs:
        compare = np.testing.assert_array_equal if want.dtype == jnp.int32 else assert_close
        compare(np.asarray(got)[live], np.asarray(want)[live])
    assert not np.asarray(routed.combine)[~live].any()
    for name in ("active", "num_active", "num_active_topk"):
        np.testing.assert_array_equal(getattr(routed, name), getattr(wanted[2], name))
    return wanted


@pytest.mark.parametrize("case", CASES, ids=str)
@given(grid=st.sampled_from([0.0, 0.25, 1.0]), **DRAWS)
@example(seed=2, live_share=0.8, grid=0.25, padded=1)
@settings(max_examples=1, deadline=None)
def test_kernels_equal_their_references(case, seed, live_share, grid, padded):
    check(case, draw(case, seed, live_share, grid, padded))


SMALL = [case for case in CASES if case.rows < 20]


@pytest.mark.parametrize("case", SMALL, ids=str)
@pytest.mark.parametrize("live_share", [0.0, 0.5], ids=["none", "one"])
def test_no_row_or_one_row_is_live(case, live_share):
    check(case, draw(case, 0, live_share, 0.0, 0))


@pytest.mark.parametrize("case", [case for case in CASES if case.races], ids=str)
def test_blocks_do_not_race(case, capsys):
    wanted = check(case, draw(case, 3, 0.8, 0.0, 0))  # some survivors suit only rows not live
    assert 0 < int(wanted[2].num_active) < int(wanted[2].num_active_topk)
    assert "RACE DETECTED" not in capsys.readouterr().out
