"""The policy Demand in the routing kernel, interpreted on CPU, against plain JAX."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from lynx_jax.pallas_kernels import fused_kernel
from lynx_jax.policies import Demand
from tests.lynx_jax.kernel_batches import (
    DEEPSEEK_V3,
    TWO_WARPGROUPS,
    Case,
    assert_equal,
    draw,
    is_clear,
    needs_two_threads,
    routed,
)
from tests.pallas_kernels.router_batches import DEEPSEEK_V2, DRAWS, RENORMALIZED, SUM_KEPT

STRICT = Case(4, 8, 3, RENORMALIZED, Demand(5.0, power=8.0))
CASES = [
    STRICT,
    Case(7, 60, 4, SUM_KEPT, Demand(0.157, row_power=0.0, damping=0.0), dtype="bfloat16"),
    Case(5, 160, 6, DEEPSEEK_V2, Demand(0.105, power=2.5, damping=0.3)),
    Case(6, 64, 8, DEEPSEEK_V3, Demand(0.083), biased=True),
]
pytestmark = needs_two_threads


@pytest.mark.parametrize("case", CASES, ids=str)
@given(grid=st.sampled_from([0.0, 0.25]), **DRAWS)
@example(seed=1, live_share=1.0, grid=0.0, padded=0)
@example(seed=2, live_share=0.8, grid=0.0, padded=1)
@settings(max_examples=4, deadline=None)
def test_demand_routes_as_in_plain_jax(case, seed, live_share, grid, padded):
    kernel, plain = routed(case)
    rows = draw(case, seed, live_share, grid, padded)
    assume(is_clear(case, *rows))
    assert_equal(kernel(*rows), plain(*rows))


def test_demands_of_vanishing_shares_are_equal_and_go_to_the_lower_index():
    """Expert 7 is everybody's, 6 two rows', the others one row's at most."""
    order = [[7, 6, 5], [7, 4, 3], [7, 2, 1], [7, 6, 0]]
    logits = np.full((4, 8), -4e3, np.float32)
    np.put_along_axis(logits, np.array(order), np.array([[0, -1e3, -2e3]], np.float32), axis=1)
    kernel, plain = routed(STRICT)
    want = plain(logits, jnp.ones(4, bool), None)
    assert want.active[: int(want.num_active)].tolist() == [0, 6, 7]
    assert_equal(kernel(logits, jnp.ones(4, bool), None), want)


def test_many_tiles_a_warpgroup_without_races(monkeypatch, capsys):
    monkeypatch.setattr(fused_kernel, "one_block", lambda rows, experts: TWO_WARPGROUPS)
    case = Case(16, 64, 8, DEEPSEEK_V3, Demand(0.031, 1.0), biased=True)
    kernel, plain = routed(case, races=True)
    rows = draw(case, 0, 0.8, 0.0, 0)
    assert is_clear(case, *rows)
    want = plain(*rows)
    assert int(want.num_active) < int(want.num_active_topk)
    assert_equal(kernel(*rows), want)
    assert "RACE DETECTED" not in capsys.readouterr().out
