"""Batches that no thread block holds, routed by the separate kernels with other policies than Lynx,
interpreted on CPU, against plain JAX.
"""

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from lynx_jax import kernel_routing
from lynx_jax.pallas_kernels import survivor_kernel
from lynx_jax.pallas_kernels.routing_tiling import RowTiling
from lynx_jax.policies import OEA, Demand, TopK, XShare
from tests.lynx_jax.kernel_batches import (
    DEEPSEEK_V3,
    Case,
    assert_equal,
    draw,
    is_clear,
    routed,
    run_with_many_threads,
)
from tests.pallas_kernels.router_batches import DEEPSEEK_V2, DRAWS, RENORMALIZED, SUM_KEPT

CASES = [
    Case(18, 60, 4, SUM_KEPT, TopK(), dtype="bfloat16"),
    Case(18, 60, 4, SUM_KEPT, OEA(1, damping=0.5)),
    Case(18, 16, 6, RENORMALIZED, OEA(2, min_rows=10, damping=1.0)),
    Case(18, 160, 6, DEEPSEEK_V2, XShare(24, damping=0.25)),
    Case(18, 64, 8, DEEPSEEK_V3, Demand(0.094, power=2.5, row_power=0.0, damping=0.3), biased=True),
    Case(18, 64, 8, DEEPSEEK_V3, Demand(0.114), biased=True),
]
ONE_WARPGROUP = RowTiling(warpgroups=1, tiles=5)


@pytest.fixture
def one_warpgroup(monkeypatch):
    """Routes 18 rows by the separate kernels, each of whose blocks is of one warpgroup."""
    monkeypatch.setattr(kernel_routing, "MOST_ROWS", 0)
    monkeypatch.setattr(survivor_kernel, "one_block", lambda rows, experts: ONE_WARPGROUP)


@pytest.mark.usefixtures("one_warpgroup")
@pytest.mark.parametrize("case", CASES, ids=str)
@given(grid=st.sampled_from([0.0, 0.25]), **DRAWS)
@example(seed=1, live_share=1.0, grid=0.0, padded=0)
@example(seed=2, live_share=0.4, grid=0.0, padded=1)
@example(seed=3, live_share=0.0, grid=0.0, padded=0)
@settings(max_examples=2, deadline=None)
def test_separate_kernels_route_as_plain_jax_does(case, seed, live_share, grid, padded):
    kernel, plain = routed(case)
    rows = draw(case, seed, live_share, grid, padded)
    assume(is_clear(case, *rows))
    assert_equal(kernel(*rows), plain(*rows))


LARGE = [
    Case(65, 60, 4, SUM_KEPT, OEA(1, damping=0.5)),
    Case(65, 160, 6, DEEPSEEK_V2, XShare(48)),
    Case(65, 64, 8, DEEPSEEK_V3, Demand(0.0077, 1.0), biased=True),
]


def assert_remaps_as_plain_jax_does(case):
    kernel, plain = routed(case, races=True)
    rows = draw(case, 0, 0.8, 0.0, 0)
    assert is_clear(case, *rows)
    want = plain(*rows)
    assert int(want.num_active) < int(want.num_active_topk)
    assert_equal(kernel(*rows), want)


@pytest.mark.parametrize("index", range(len(LARGE)), ids=[str(case) for case in LARGE])
def test_many_warpgroups_do_not_race(index):
    printed = run_with_many_threads(
        "from tests.lynx_jax.test_separate_kernels import *\n"
        f"assert_remaps_as_plain_jax_does(LARGE[{index}])\n"
    )
    assert "RACE DETECTED" not in printed
