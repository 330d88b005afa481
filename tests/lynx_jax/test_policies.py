"""Policies against their definition in loops, and what every policy must keep."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lynx_jax.errors import InputError
from lynx_jax.policies import OEA, Demand, Lynx, TopK, XShare
from lynx_jax.routers import Router
from lynx_jax.routing import Phase, route
from tests.lynx_jax import oracle

RATIOS = [(8, 2), (60, 4), (64, 8)]
ROWS = [2, 7]

PLAIN = Router("softmax", "renormalize")

compiled_route = jax.jit(route, static_argnames=("k", "router", "policy", "phase"))


@st.composite
def batches(draw):
    """(logits [B, N], live [B], k), with ties and, at times, rows that are not live."""
    num_experts, k = draw(st.sampled_from(RATIOS))
    rows = draw(st.sampled_from(ROWS))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    logits = rng.normal(size=(rows, num_experts)).astype(np.float32)
    grid = draw(st.sampled_from([0.0, 0.25, 1.0]))
    if grid:
        logits = (np.round(logits / grid) * grid).astype(np.float32)
    live = rng.random(rows) < draw(st.sampled_from([0.0, 0.5, 1.0]))
    return logits, live, k


def members(mask) -> set[int]:
    return set(np.flatnonzero(np.asarray(mask)).tolist())


@functools.partial(jax.jit, static_argnums=(0, 3))
def survivor_mask(policy, logits, live, k):
    return policy.survivors(PLAIN.scores(logits), live, k)


def survivors(policy, logits, live, k) -> set[int]:
    return members(survivor_mask(policy, logits, live, k))


@given(batches(), st.sampled_from([(0.5, 1, 0), (1.0, 2, 1), (3.0, 4, 2), (2.0, 3, 0)]))
@settings(max_examples=100, deadline=None)
def test_lynx_is_its_definition(batch, constants):
    logits, live, k = batch
    alpha, beta, floor = constants
    expected = oracle.lynx_survivors(logits, live, k, alpha, beta, floor)
    assert survivors(Lynx(alpha, beta, floor=floor), logits, live, k) == expected


@given(batches(), st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_oea_is_its_definition(batch, k0):
    logits, live, k = batch
    k0 = min(k0, k)
    if live.any():
        assert survivors(OEA(k0), logits, live, k) == oracle.oea_survivors(logits, live, k, k0)


@given(batches(), st.sampled_from([0, 2, 6]))
@settings(max_examples=40, deadline=None)
def test_xshare_keeps_its_budget_and_the_favourites_first(batch, extra):
    logits, live, k = batch
    budget = min(k + extra, logits.shape[1])
    kept = survivors(XShare(budget), logits, live, k)
    favourites = oracle.top_k_union(logits, live, 1)
    assert len(kept) == budget
    assert favourites <= kept or kept <= favourites
    demand = np.exp(logits - logits.max(1, keepdims=True))
    demand = (demand / demand.sum(1, keepdims=True))[live].sum(0)
    others, left_out = kept - favourites, set(range(logits.shape[1])) - kept - favourites
    if others and left_out:
        assert min(demand[e] for e in others) >= max(demand[e] for e in left_out) - 1e-5


@given(batches(), st.sampled_from([(0.12, 3.0, 0.0), (0.12, 1.0, 0.0), (0.12, 3.0, 0.5)]))
@settings(max_examples=90, deadline=None)
def test_demand_is_its_definition(batch, settings):
    logits, live, k = batch
    if live.any():
        weight = oracle.weight_scores(logits, "softmax")
        sure, possible = oracle.demand_survivors(logits, weight, live, k, *settings)
        kept = survivors(Demand(*settings), logits, live, k)
        assert sure <= kept <= possible
        assert len(kept) >= k


def test_demand_counts_rows_together_and_strong_wishes_more():
    """Expert 1 has one of four rows' 0.4, a cubic mean of 0.252, expert 2 two: 0.317."""
    shares = [[0.6, 0.4, 0, 0], [0.6, 0, 0.4, 0], [0.6, 0, 0.4, 0], [0.9, 0, 0, 0.1]]
    logits, live = np.log(np.array(shares, np.float32) + 1e-9), np.ones(4, bool)
    for threshold, kept in [(0.03, {0, 1, 2, 3}), (0.25, {0, 1, 2}), (0.26, {0, 2}), (9.0, {0, 2})]:
        assert survivors(Demand(threshold), logits, live, 2) == kept


def test_demand_of_rows_that_hold_more_of_their_score_counts_more():
    """Rows 0 and 1 share their top 2 alike, 0.7 and 0.3, out of 0.9 and out of 0.5 of all."""
    score = [[0.63, 0.27, 0, 0.05, 0.05], [0.35, 0, 0.15, 0.1, 0.1]]
    logits = np.log(np.array(score, np.float32) + 1e-9)
    live = np.ones(2, bool)
    assert survivors(Demand(0.23, row_power=0.0), logits, live, 2) == {0, 1, 2}
    assert survivors(Demand(0.23), logits, live, 2) == {0, 1}


def test_demand_of_vanishing_shares_still_names_experts_that_rows_use():
    logits = np.array([[0, -1e3, -2e3, -3e3], [0, -1e3, -2e3, -3e3]], np.float32)
    logits = logits[:, ::-1].copy()
    assert survivors(Demand(5.0, power=8.0), logits, np.ones(2, bool), k=3) == {1, 2, 3}


def test_demand_saves_nothing_where_a_token_uses_one_expert():
    logits = np.random.default_rng(0).normal(size=(16, 16)).astype(np.float32)
    live = np.ones(16, bool)
    assert survivors(Demand(9.0), logits, live, k=1) == oracle.top_k_union(logits, live, 1)


POLICIES = [
    TopK(),
    Lynx(3.0, 4),
    Lynx(0.7, 1),
    Lynx(3.0, 2, floor=0),
    OEA(1),
    OEA(2),
    XShare(12),
    Demand(0.12, damping=0.0),
]


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@given(batch=batches())
@settings(max_examples=25, deadline=None)
def test_every_policy_keeps_the_invariants(policy, batch):
    logits, live, k = batch
    if isinstance(policy, XShare):
        policy = XShare(min(12, logits.shape[1]))
    routing = compiled_route(
        jnp.asarray(logits),
        jnp.asarray(live),
        k=k,
        router=PLAIN,
        policy=policy,
        phase=Phase.DECODE,
    )
    ids, weights = np.asarray(routing.ids), np.asarray(routing.weights)
    active = np.asarray(routing.active)[: int(routing.num_active)].tolist()
    used = {int(e) for e in ids[live].ravel()}
    assert all(len(set(row)) == k for row in ids.tolist())
    assert active == sorted(used)
    assert int(routing.num_active) <= int(routing.num_active_topk)
    assert int(routing.num_active_topk) == len(oracle.top_k_union(logits, live, k))
    if live.any():
        np.testing.assert_allclose(weights[live].sum(1), 1, rtol=1e-5)
    if int(routing.num_active) == int(routing.num_active_topk):
        assert [r[:k] for r in map(oracle.ranking, logits[live])] == ids[live].tolist()
    elif isinstance(policy, Lynx | OEA | Demand):
        kept = survivors(policy, logits, live, k)
        assert ids[live].tolist() == oracle.remapped(logits[live], kept, k)


@pytest.mark.parametrize("policy", POLICIES[1:], ids=str)
@given(batch=batches(), poison=st.sampled_from([np.nan, np.inf, 1e30, -1e30]))
@settings(max_examples=15, deadline=None)
def test_rows_that_are_not_live_change_nothing(policy, batch, poison):
    logits, live, k = batch
    if isinstance(policy, XShare):
        policy = XShare(min(12, logits.shape[1]))
    clean, poisoned = (
        compiled_route(
            jnp.where(live[:, None], logits, jnp.float32(content)),
            jnp.asarray(live),
            k=k,
            router=PLAIN,
            policy=policy,
            phase=Phase.DECODE,
        )
        for content in (0.0, poison)
    )
    np.testing.assert_array_equal(np.asarray(poisoned.ids)[live], np.asarray(clean.ids)[live])
    np.testing.assert_array_equal(
        np.asarray(poisoned.weights)[live], np.asarray(clean.weights)[live]
    )
    np.testing.assert_array_equal(poisoned.active, clean.active)
    assert int(poisoned.num_active) <= k * live.sum()


@pytest.mark.parametrize("policy", [Lynx(3.0, 2), OEA(2), XShare(10), Demand(1.0, min_rows=5)])
def test_too_few_rows_keep_plain_top_k(policy):
    rng = np.random.default_rng(0)
    rows = policy.min_rows - 1
    logits = jnp.asarray(rng.normal(size=(8, 64)), jnp.float32)
    live = jnp.arange(8) < rows
    routings = [
        compiled_route(
            logits,
            live,
            k=8,
            router=Router("softmax", "keep_sum"),
            policy=chosen,
            phase=Phase.DECODE,
        )
        for chosen in (policy, TopK())
    ]
    np.testing.assert_array_equal(routings[0].ids[:rows], routings[1].ids[:rows])
    np.testing.assert_array_equal(routings[0].weights[:rows], routings[1].weights[:rows])


@pytest.mark.parametrize("min_rows", [2, 16])
def test_lynx_saves_where_rows_overlap(min_rows):
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(16, 64)) + 2 * rng.normal(size=64)
    routing = compiled_route(
        jnp.asarray(logits, jnp.float32),
        jnp.ones(16, bool),
        k=8,
        router=PLAIN,
        policy=Lynx(3.0, 2, min_rows=min_rows),
        phase=Phase.DECODE,
    )
    assert int(routing.num_active) < 0.8 * int(routing.num_active_topk)


def test_padded_experts_are_never_chosen():
    rng = np.random.default_rng(2)
    logits = rng.normal(size=(6, 64)).astype(np.float32)
    logits[:, 60:] = -np.inf
    for policy in (TopK(), Lynx(1.0, 1), Lynx(3.0, 2, floor=0), OEA(1), XShare(9), Demand(0.5)):
        arguments = {"k": 4, "router": Router("softmax", "keep_sum"), "policy": policy}
        padded = route(jnp.asarray(logits), jnp.ones(6, bool), phase=Phase.DECODE, **arguments)
        plain = compiled_route(
            jnp.asarray(logits[:, :60]), jnp.ones(6, bool), phase=Phase.DECODE, **arguments
        )
        np.testing.assert_array_equal(padded.ids, plain.ids)
        np.testing.assert_allclose(padded.weights, plain.weights, rtol=1e-6)


@pytest.mark.parametrize(("k", "num_experts"), [(1, 16), (2, 8), (4, 60), (6, 72), (8, 256)])
def test_for_model_gives_constants_for_any_router(k, num_experts):
    logits = np.random.default_rng(3).normal(size=(16, num_experts)).astype(np.float32)
    for policy in (Lynx.for_model(k, num_experts), Demand.for_model(k, num_experts)):
        policy.validate(k, num_experts)
        assert len(survivors(policy, logits, np.ones(16, bool), k)) >= k


def test_constants_depend_on_k_alone_and_leave_something_to_save():
    assert Lynx.for_model(8, 64) == Lynx.for_model(8, 128) == Lynx(4.0, 4, floor=2)
    assert [Lynx.for_model(k, 64).floor for k in (1, 2, 3, 4)] == [0, 1, 1, 2]


def test_the_authors_constants_are_at_hand():
    assert Lynx.authors(2, 8) == Lynx(0.7, 1)
    assert Lynx.authors(8, 64) == Lynx(3.0, 4)
    assert Lynx.authors(8, 128) == Lynx(3.0, 2)


def test_a_single_expert_a_token_has_no_floor_by_default():
    logits = np.array([[2.0, 1.9, 0.0], [0.0, 2.0, 1.0], [0.0, 3.0, 1.0]], np.float32)
    assert survivors(Lynx(1.0, 1), logits, np.ones(3, bool), k=1) == {1}
    assert survivors(Lynx(1.0, 1, floor=1), logits, np.ones(3, bool), k=1) == {0, 1}


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: Lynx(0.0, 2), "alpha above 0"),
        (lambda: Lynx(float("nan"), 2), "alpha above 0"),
        (lambda: Lynx(1.0, 0), "beta from 1"),
        (lambda: Lynx(1.0, 1, floor=-1), "floor of at least 0"),
        (lambda: Lynx(1.0, 1, floor=9).validate(8, 64), "floor of at most k=8"),
        (lambda: Lynx(1.0, 1, min_rows=0), "min_rows from 1"),
        (lambda: Lynx.authors(4, 60), r"list \(2 of 8, .*\), got 4 of 60"),
        (lambda: OEA(0), "k0 of at least 1"),
        (lambda: OEA(9).validate(8, 64), "k0 of at most k=8"),
        (lambda: XShare(0), "budget of at least 1"),
        (lambda: XShare(7).validate(8, 64), "budget from k=8"),
        (lambda: XShare(65).validate(8, 64), "got 65"),
        (lambda: XShare(10, k0=-1), "k0 of at least 0"),
        (lambda: XShare(10, k0=9).validate(8, 64), "k0 of at most k=8"),
        (lambda: Demand(0.0), "threshold from 0.0001"),
        (lambda: Demand(float("nan")), "threshold from 0.0001"),
        (lambda: Demand(0.1, power=0.5), "power from 1 to 8"),
        (lambda: Demand(0.1, min_rows=0), "min_rows from 1"),
        (lambda: Demand(0.1, row_power=2.0), "row_power from 0 to 1"),
        (lambda: OEA(2, damping=1.5), "damping from 0 to 1"),
        (lambda: Lynx(1.0, 1, damping=float("nan")), "damping from 0 to 1"),
    ],
)
def test_impossible_settings_are_refused(build, says):
    with pytest.raises(InputError, match=says):
        build()
