"""The routing kernels, interpreted on CPU, against routing in plain JAX."""

import functools
from dataclasses import dataclass

import hypothesis
import jax
import jax.numpy as jnp
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lynx_jax import kernel_routing
from lynx_jax.kernel_routing import route, why_not
from lynx_jax.pallas_kernels import fused_kernel
from lynx_jax.pallas_kernels.routing_tiling import RowTiling, one_block
from lynx_jax.policies import OEA, Demand, Lynx, TopK, XShare
from lynx_jax.routers import Router
from lynx_jax.routing import Phase
from lynx_jax.routing import route as route_in_jax
from tests.lynx_jax.kernel_batches import (
    DEEPSEEK_V3,
    TWO_WARPGROUPS,
    Case,
    assert_equal,
    cases,
    draw,
    is_clear,
    needs_two_threads,
    routed,
    run_with_many_threads,
)
from tests.pallas_kernels.router_batches import DEEPSEEK_V2, DRAWS, LLAMA_4, RENORMALIZED, SUM_KEPT

SPARSEMIXER = Router("sparsemixer", "own", jitter=0.01)

CASES = [
    Case(7, 60, 4, SUM_KEPT, Lynx(3.0, 4)),
    Case(8, 128, 8, RENORMALIZED, Lynx(3.0, 2, floor=2), dtype="bfloat16"),
    Case(3, 8, 2, RENORMALIZED, Lynx(0.7, 1, floor=0)),
    Case(4, 64, 8, DEEPSEEK_V3, Lynx(3.0, 4, damping=0.5), biased=True),
    Case(5, 160, 6, DEEPSEEK_V2, Lynx(1.125, 2)),
    Case(6, 16, 1, LLAMA_4, Lynx(1.0, 2)),
    Case(1, 72, 3, RENORMALIZED, Lynx(2.0, 2, min_rows=1)),
    Case(8, 64, 6, SUM_KEPT, TopK(), dtype="bfloat16"),
    Case(5, 64, 8, DEEPSEEK_V3, OEA(2), biased=True),
    Case(7, 16, 6, RENORMALIZED, OEA(1, min_rows=4, damping=1.0)),
    Case(7, 256, 8, LLAMA_4, XShare(24, k0=2, damping=0.25)),
    Case(4, 160, 6, DEEPSEEK_V2, XShare(12, k0=0)),
]
pytestmark = needs_two_threads


@pytest.mark.parametrize("case", CASES, ids=str)
@given(grid=st.sampled_from([0.0, 0.25, 1.0]), **DRAWS)
@example(seed=1, live_share=1.0, grid=1.0, padded=0)
@example(seed=2, live_share=0.8, grid=0.25, padded=1)
@settings(max_examples=1, deadline=None)
def test_the_kernel_routes_as_plain_jax_does(case, seed, live_share, grid, padded):
    kernel, plain = routed(case)
    rows = draw(case, seed, live_share, grid, padded)
    assert_equal(kernel(*rows), plain(*rows))


@pytest.mark.parametrize("case", [CASES[0], CASES[3], CASES[8], CASES[11]], ids=str)
@pytest.mark.parametrize("live_share", [0.0, 0.5], ids=["none", "one"])
def test_no_row_or_one_row_is_live(case, live_share):
    kernel, plain = routed(case)
    rows = draw(case, 0, live_share, 0.0, 0)
    assert_equal(kernel(*rows), plain(*rows))


@pytest.mark.parametrize(
    ("case", "seed", "live_share"),
    [
        (CASES[9], 4, 0.4),  # three live rows, where min_rows is four and remapping would save
        (CASES[3], 1, 0.6),  # rows that are not live would vote by their bias
        (CASES[4], 1, 0.6),  # or for the first groups
        (CASES[11], 1, 1.0),  # rows with fewer survivors in their groups than k
    ],
    ids=["min_rows", "dead_biased", "dead_grouped", "few_survivors"],
)
def test_batches_in_which_a_mask_matters(case, seed, live_share):
    kernel, plain = routed(case)
    rows = draw(case, seed, live_share, 0.0, 0)
    assert_equal(kernel(*rows), plain(*rows))


MANY = Case(65, 60, 4, SUM_KEPT, Lynx(3.0, 4, min_rows=14, damping=0.5))


@pytest.mark.parametrize("live_share", [0.8, 0.2], ids=["remapped", "one_row_short"])
def test_more_rows_than_a_block_holds(live_share):
    kernel, plain = routed(MANY)
    rows = draw(MANY, 0, live_share, grid=0.25, padded=1)
    want = plain(*rows)
    assert (int(want.num_active) < int(want.num_active_topk)) == (live_share == 0.8)
    assert_equal(kernel(*rows), want)


LARGE = [
    Case(15, 128, 8, RENORMALIZED, Lynx(3.0, 2)),
    Case(16, 64, 8, DEEPSEEK_V3, XShare(20), biased=True),
]


@pytest.mark.parametrize("case", LARGE, ids=str)
def test_many_tiles_a_warpgroup_without_races(case, monkeypatch, capsys):
    monkeypatch.setattr(fused_kernel, "one_block", lambda rows, experts: TWO_WARPGROUPS)
    kernel, plain = routed(case, races=True)
    rows = draw(case, 0, 0.8, 0.25, 0)
    want = plain(*rows)
    assert int(want.num_active) < int(want.num_active_topk)
    assert_equal(kernel(*rows), want)
    assert "RACE DETECTED" not in capsys.readouterr().out


THIS_TEST = "from tests.lynx_jax.test_kernel_routing import *\n"


# Without a search for smaller ones, which compiles for minutes.
@given(case=cases(), seed=DRAWS["seed"], grid=st.sampled_from([0.0, 0.25, 1.0]))
@settings(max_examples=6, deadline=None, phases=[hypothesis.Phase.generate])
def assert_any_layer_is_routed(case, seed, grid):
    kernel, plain = routed(case)
    for batch, (live_share, padded) in enumerate([(1.0, 0), (0.8, 1), (0.5, 0)]):
        rows = draw(case, seed + batch, live_share, grid, padded)
        if is_clear(case, *rows):
            assert_equal(kernel(*rows), plain(*rows))


def test_the_kernel_routes_any_layer_as_plain_jax_does():
    run_with_many_threads(THIS_TEST + "assert_any_layer_is_routed()\n")


FULL = [
    Case(64, 128, 8, RENORMALIZED, Lynx.for_model(8, 128)),
    Case(64, 128, 8, RENORMALIZED, Demand.for_model(8, 128)),
    Case(64, 256, 8, DEEPSEEK_V3, Lynx.for_model(8, 256), biased=True),
    Case(64, 256, 8, DEEPSEEK_V3, Demand.for_model(8, 256), biased=True),
]


def assert_full_blocks_route():
    for case in FULL:
        rows = draw(case, 0, 0.8, 0.0, 0)
        assert is_clear(case, *rows)
        kernel, plain = routed(case)
        want = plain(*rows)
        assert int(want.num_active) < int(want.num_active_topk)
        assert_equal(kernel(*rows), want)


def test_full_blocks_in_their_own_tiling():
    assert one_block(64, 128) == RowTiling(warpgroups=8, tiles=2)
    assert one_block(64, 256) == RowTiling(warpgroups=4, tiles=4)
    run_with_many_threads(THIS_TEST + "assert_full_blocks_route()\n")


@dataclass(frozen=True)
class Unknown:
    """A policy of somebody else."""

    min_rows: int = 1
    damping: float = 0.0

    def survivors(self, scores, live, k):
        return jnp.arange(scores.choice.shape[-1]) < k

    def validate(self, k, num_experts):
        pass


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        ((Lynx(3.0, 2), RENORMALIZED, 8, 128, 64), None),
        ((Lynx(3.0, 2), RENORMALIZED, 8, 128, 65), None),
        ((OEA(4), RENORMALIZED, 8, 128, 65), None),
        ((Lynx(3.0, 2), RENORMALIZED, 8, 128, 2**15), "take 32767 rows, the batch has 32768"),
        ((TopK(), RENORMALIZED, 8, 512, 1), "take 256 experts, the layer has 512"),
        ((TopK(), RENORMALIZED, 40, 128, 1), "up to 32 experts a row"),
        ((TopK(), SPARSEMIXER, 2, 16, 1), "sparsemixer"),
        ((Unknown(), RENORMALIZED, 8, 128, 1), "have no mode for Unknown"),
    ],
)
def test_why_a_layer_is_routed_in_plain_jax(layer, reason):
    found = why_not(*layer)
    assert found is None if reason is None else reason in found


def test_routing_in_plain_jax_is_said_once(caplog):
    kernel_routing._say_once.cache_clear()
    settings = {"k": 2, "router": RENORMALIZED, "policy": Unknown()}
    for phase in (Phase.PREFILL, Phase.DECODE, Phase.DECODE):
        route(jnp.zeros((2, 8)), jnp.ones(2, bool), phase=phase, **settings)
    assert len(caplog.messages) == 1
    assert "routed in plain JAX: the routing kernels have no mode for Unknown" in caplog.text


@pytest.mark.parametrize(
    ("rows", "experts", "phase", "router"),
    [
        (2**15, 8, Phase.DECODE, RENORMALIZED),
        (2, 264, Phase.DECODE, RENORMALIZED),
        (2, 8, Phase.PREFILL, RENORMALIZED),
        (2, 8, Phase.DECODE, SPARSEMIXER),
    ],
)
def test_beyond_the_kernel_no_kernel_is_launched(rows, experts, phase, router):
    arguments = {"k": 2, "router": router, "policy": TopK(), "phase": phase}
    traced = jax.make_jaxpr(functools.partial(route, **arguments))(
        jnp.zeros((rows, experts)), jnp.ones(rows, bool)
    )
    plain = jax.make_jaxpr(functools.partial(route_in_jax, **arguments))(
        jnp.zeros((rows, experts)), jnp.ones(rows, bool)
    )
    assert str(traced) == str(plain)
