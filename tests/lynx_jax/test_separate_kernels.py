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
    needs_two_threads,
    routed,
)
from tests.pallas_kernels.router_batches import DEEPSEEK_V2, SUM_KEPT

CASES = [
    Case(18, 60, 4, SUM_KEPT, OEA(1)),
    Case(18, 60, 4, SUM_KEPT, TopK(), dtype="bfloat16"),
    Case(18, 160, 6, DEEPSEEK_V2, XShare(24)),
    Case(18, 64, 8, DEEPSEEK_V3, Demand(0.3), biased=True),
]
pytestmark = needs_two_threads


@pytest.fixture(autouse=True)
def no_block_holds_a_batch(monkeypatch):
    """And the one that goes over all rows is of two warpgroups, as many as there are threads."""
    monkeypatch.setattr(kernel_routing, "MOST_ROWS", 0)
    monkeypatch.setattr(survivor_kernel, "one_block", lambda rows, _: RowTiling(2, -(-rows // 8)))


@pytest.mark.parametrize("case", CASES, ids=str)
@given(
    seed=st.integers(0, 2**32 - 1),
    live_share=st.sampled_from([1.0, 0.8, 0.5, 0.0]),
    grid=st.sampled_from([0.0, 0.25]),
    padded=st.sampled_from([0, 1]),
)
@example(seed=1, live_share=1.0, grid=0.0, padded=0)
@example(seed=2, live_share=0.4, grid=0.0, padded=1)
@settings(max_examples=3, deadline=None)
def test_separate_kernels_route_as_plain_jax_does(case, seed, live_share, grid, padded):
    kernel, plain = routed(case)
    rows = draw(case, seed, live_share, grid, padded)
    assume(is_clear(case, *rows))
    assert_equal(kernel(*rows), plain(*rows))


def test_launches_do_not_race(capsys):
    case = CASES[3]
    kernel, plain = routed(case, races=True)
    rows = draw(case, 0, 0.8, 0.0, 0)
    assert is_clear(case, *rows)
    want = plain(*rows)
    assert int(want.num_active) < int(want.num_active_topk)
    assert_equal(kernel(*rows), want)
    assert "RACE DETECTED" not in capsys.readouterr().out
