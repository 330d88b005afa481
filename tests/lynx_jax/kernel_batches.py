"""Batches that are routed by the kernels, interpreted on CPU, and in plain JAX."""

import functools
import os
import subprocess
import sys
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from jax.experimental.pallas import mosaic_gpu as plgpu

from lynx_jax.kernel_routing import route
from lynx_jax.pallas_kernels.routing_tiling import RowTiling
from lynx_jax.policies import OEA, Demand, Lynx, TopK, XShare
from lynx_jax.routers import Router
from lynx_jax.routing import Phase
from lynx_jax.routing import route as route_in_jax
from tests.pallas_kernels.router_batches import Batch, routers

DEEPSEEK_V3 = Router("sigmoid", "renormalize", 2.5, groups=4, kept_groups=2, group_score="top2")


@dataclass(frozen=True)
class Case(Batch):
    policy: TopK | Lynx | OEA | XShare | Demand


TWO_WARPGROUPS = RowTiling(warpgroups=2, tiles=2)
needs_two_threads = pytest.mark.skipif(
    (os.cpu_count() or 1) < 2, reason="the interpreter runs a warpgroup a thread of XLA's pool"
)


def policies(experts: int, k: int):
    """Any policy for a router that chooses k of so many experts."""
    shared = {"min_rows": st.integers(1, 3), "damping": st.sampled_from([0.0, 0.5, 1.0])}
    threshold = st.floats(0.1, 1.5).map(lambda shares: shares / k)
    return st.one_of(
        st.just(TopK()),
        st.builds(Lynx, st.floats(0.5, 4.0), st.integers(1, 4), st.integers(0, k), **shared),
        st.builds(OEA, st.integers(1, k), **shared),
        st.builds(XShare, st.integers(k, experts), st.integers(0, k), **shared),
        st.builds(Demand, threshold, st.floats(1.0, 4.0), st.floats(0.0, 1.0), **shared),
    )


@st.composite
def cases(draw):
    """Any shape of a batch of up to 16 rows, with any router and policy."""
    experts = draw(st.sampled_from([8, 16, 60, 64, 72, 128, 160, 256]))
    k = draw(st.integers(1, min(experts, 8)))
    router = draw(routers(experts, k))
    return Case(
        draw(st.integers(1, 16)),
        experts,
        k,
        router,
        draw(policies(experts, k)),
        biased=router.score == "sigmoid" and draw(st.booleans()),
        dtype=draw(st.sampled_from(["float32", "bfloat16"])),
    )


def draw(case: Case, seed: int, live_share: float, grid: float, padded: int):
    if isinstance(case.policy, XShare):
        grid = 0  # What it sums up is rounded in another order, which would tell ties apart.
    return case.draw(np.random.default_rng(seed), live_share, grid, padded)


@functools.cache
def routed(case: Case, races: bool = False):
    settings = {"k": case.k, "router": case.router, "policy": case.policy, "phase": Phase.DECODE}
    interpret = plgpu.InterpretGPUParams(detect_races=races)
    kernel = jax.jit(
        lambda logits, live, bias: route(logits, live, bias=bias, interpret=interpret, **settings)
    )
    plain = jax.jit(lambda logits, live, bias: route_in_jax(logits, live, bias=bias, **settings))
    return kernel, plain


def run_with_many_threads(script: str):
    """What a script prints that runs in a process where blocks may have many warpgroups.

    Each warpgroup occupies a thread of XLA's pool, and so does the launch that waits for them where
    a program has several: a pool of fewer threads hangs.
    """
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"NPROC": "12"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def assert_equal(got, want):
    live = np.asarray(want.live)
    np.testing.assert_array_equal(got.active, want.active)
    assert int(got.num_active) == int(want.num_active)
    assert int(got.num_active_topk) == int(want.num_active_topk)
    np.testing.assert_array_equal(np.asarray(got.ids)[live], np.asarray(want.ids)[live])
    weights = np.asarray(want.weights)[live]
    np.testing.assert_allclose(np.asarray(got.weights)[live], weights, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(got.combine, want.combine_matrix(), rtol=1e-6, atol=1e-6)
    assert not np.asarray(got.combine)[~live].any()


def is_clear(case, logits, live, bias):
    """Whether rounding decides nothing: with Demand, no expert lies at the threshold or, where
    fewer than k reach it, is level with the k-th.
    """
    if not isinstance(case.policy, Demand):
        return True
    clean = jnp.where(live[:, None], logits.astype(jnp.float32), 0.0)
    scores = case.router.scores(clean, bias)
    own = np.argsort(-np.asarray(scores.choice), axis=1, kind="stable")[:, : case.k]
    shares = np.take_along_axis(np.asarray(scores.weight, np.float64), own, axis=1)
    mass = shares.sum(axis=1, keepdims=True)
    mean = mass.sum(where=live[:, None]) / max(live.sum(), 1) + 1e-20
    shares = shares / mass * (mass / mean) ** case.policy.row_power
    demand, power = np.zeros(case.experts), case.policy.power
    np.add.at(demand, own[live], shares[live] ** power)
    demand, bound = np.sort(demand)[::-1], case.policy.threshold**power * max(live.sum(), 1)
    last, next_one = demand[case.k - 1], demand[case.k]
    at_bound = np.abs(demand / bound - 1).min() < 1e-5
    return not at_bound and (last >= bound or next_one <= last * (1 - 1e-5))
