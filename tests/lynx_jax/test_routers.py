"""Routers against their definition in loops, and policies on routers with bias and groups."""

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

N, K = 24, 4
GROUPED = Router("sigmoid", "renormalize", 2.5, groups=6, kept_groups=3, group_score="top2")
ROUTERS = [
    Router("softmax", "renormalize"),
    Router("softmax", "keep_sum", 16.0, groups=6, kept_groups=2),
    Router("sigmoid", "own"),
    GROUPED,
]
POLICIES = [
    TopK(),
    Lynx(2.0, 3),
    Lynx(0.7, 1, floor=0),
    OEA(1),
    XShare(8),
    Demand(0.25, row_power=0.0, damping=0.0),
]

compiled_route = jax.jit(route, static_argnames=("k", "router", "policy", "phase"))


def batch(seed, rows=5, grid=0.25):
    """Logits with ties, a bias that every expert has most of, and which rows are live."""
    rng = np.random.default_rng(seed)
    logits = (np.round(rng.normal(size=(rows, N)) * 2 / grid) * grid).astype(np.float32)
    bias = (14 + 0.3 * rng.normal(size=N)).astype(np.float32)
    return logits, bias, rng.random(rows) < 0.8


@functools.partial(jax.jit, static_argnums=0)
def scores(router, logits, bias):
    return router.scores(logits, bias)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("router", ROUTERS, ids=str)
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=15, deadline=None)
def test_choice_and_weights_are_their_definition(router, biased, seed):
    logits, bias, _ = batch(seed)
    logits[:, -1] = -np.inf
    got = scores(router, logits, bias if biased else None)
    weight = oracle.weight_scores(logits, router.score)
    np.testing.assert_allclose(got.weight, weight, rtol=1e-5)
    ranked = np.asarray(got.weight) + bias if biased else logits
    ranked[:, -1] = -np.inf
    summed = ranked if biased else np.asarray(got.weight)
    for row in range(len(logits)):
        allowed = oracle.allowed(router, ranked[row], summed[row])
        expected = np.where(allowed, ranked[row], -np.inf)
        np.testing.assert_allclose(got.choice[row], expected, rtol=1e-6)
    ids = np.asarray(jax.lax.top_k(got.choice, K)[1])
    final = np.roll(ids, 1, axis=0)
    for damping in (0.0, 0.3, 0.9):
        weights = router.weigh(got.weight, jnp.asarray(final), jnp.asarray(ids), damping)
        expected = oracle.weights(router, weight, final, ids, damping)
        np.testing.assert_allclose(weights, expected, rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("router", ROUTERS, ids=str)
@given(seed=st.integers(0, 2**32 - 1), damping=st.floats(0, 1))
@settings(max_examples=15, deadline=None)
def test_damping_leaves_rows_that_keep_their_experts_as_they_are(router, seed, damping):
    logits, _, _ = batch(seed)
    weight = scores(router, logits, None).weight
    ids = jax.lax.top_k(logits, K)[1]
    np.testing.assert_array_equal(
        router.weigh(weight, ids, ids, damping), router.weigh(weight, ids, ids)
    )


@pytest.mark.parametrize("router", ROUTERS, ids=str)
def test_full_damping_drops_substitutes_and_leaves_the_others_their_weights(router):
    logits, _, _ = batch(2, grid=1e-3)
    weight = scores(router, logits, None).weight
    ids = jax.lax.top_k(logits, K + 2)[1]
    top, remapped = ids[:, :K], ids[:, 2:]
    plain = router.weigh(weight, top, top)
    damped = router.weigh(weight, remapped, top, damping=1.0)
    np.testing.assert_allclose(damped[:, : K - 2], plain[:, 2:], rtol=1e-5)
    np.testing.assert_array_equal(damped[:, K - 2 :], 0)


@given(st.integers(0, 2**32 - 1), st.sampled_from([-3.0, 0.0, 2.0]))
@settings(max_examples=15, deadline=None)
def test_confidence_keeps_the_order_of_choice_and_ignores_a_common_bias(seed, common):
    logits, bias, _ = batch(seed)
    router = Router("sigmoid", "renormalize")
    got = scores(router, logits, bias)
    order = np.argsort(got.choice, axis=-1)
    assert (np.diff(np.take_along_axis(np.asarray(got.confidence), order, -1)) >= 0).all()
    shifted = scores(router, logits, bias + np.float32(common))
    inside = np.abs(got.confidence) < 4
    np.testing.assert_allclose(
        np.asarray(shifted.confidence)[inside], np.asarray(got.confidence)[inside], atol=1e-3
    )


def test_confidence_without_bias_is_the_logit():
    logits, _, _ = batch(0)
    for router in ROUTERS[:3]:
        got = scores(router, logits, None)
        used = np.isfinite(got.choice)
        np.testing.assert_array_equal(np.asarray(got.confidence)[used], logits[used])


def test_an_equal_bias_leaves_bins_nearly_as_they_are():
    logits, _, _ = batch(1)
    got = scores(Router("sigmoid", "renormalize"), logits, np.full(N, 14.0, np.float32))
    np.testing.assert_allclose(got.confidence, logits, atol=1e-3)


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
def test_policies_keep_groups_and_k_experts(policy, seed):
    logits, bias, live = batch(seed)
    routing = compiled_route(
        jnp.asarray(logits),
        jnp.asarray(live),
        k=K,
        router=GROUPED,
        bias=jnp.asarray(bias),
        policy=policy,
        phase=Phase.DECODE,
    )
    got = scores(GROUPED, np.where(live[:, None], logits, 0).astype(np.float32), bias)
    choice, ids = np.asarray(got.choice), np.asarray(routing.ids)
    assert all(len(set(row)) == K for row in ids.tolist())
    assert np.isfinite(np.take_along_axis(choice, ids, -1)).all()
    assert int(routing.num_active) <= int(routing.num_active_topk)
    if isinstance(policy, Lynx) and int(routing.num_active) < int(routing.num_active_topk):
        floor = 1 if policy.floor is None else policy.floor
        kept = oracle.lynx_survivors(
            choice, live, K, policy.alpha, policy.beta, floor, np.asarray(got.confidence)
        )
        assert ids[live].tolist() == oracle.remapped(choice[live], kept, K)
    if isinstance(policy, Demand) and int(routing.num_active) < int(routing.num_active_topk):
        sure, possible = oracle.demand_survivors(
            choice, np.asarray(got.weight), live, K, policy.threshold, policy.power
        )
        if sure == possible:
            assert ids[live].tolist() == oracle.remapped_in_groups(choice[live], sure, K)
    if live.any():
        np.testing.assert_allclose(np.asarray(routing.weights)[live].sum(1), 2.5, rtol=1e-5)


def test_a_row_without_enough_survivors_takes_its_own_best():
    # Rows of two groups; the policy's budget holds the first group only.
    router = Router("softmax", "renormalize", groups=2, kept_groups=1)
    logits = jnp.asarray([[9.0, 8, 7, 0, 0, 0]] * 6 + [[0.0, 0, 0, 5, 4, 3]])
    routing = compiled_route(
        logits, jnp.ones(7, bool), k=2, router=router, policy=XShare(3, k0=0), phase=Phase.DECODE
    )
    assert set(np.asarray(routing.ids[-1]).tolist()) == {3, 4}


def test_scores_that_underflow_give_finite_weights():
    logits = jnp.asarray([[0.0, -300.0, -400.0, -500.0]])
    router = Router("softmax", "renormalize")
    weights = router.weigh(
        router.scores(logits).weight, jnp.asarray([[1, 2]]), jnp.asarray([[2, 3]]), 0.5
    )
    assert np.isfinite(weights).all()


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: Router("softmax", "own", 0.0), "scale above 0"),
        (lambda: Router("softmax", "own", groups=2, kept_groups=3), "1 to groups=2 kept"),
        (lambda: Router("softmax", "own", groups=5).validate(2, 24), "divides the 24 experts"),
        (lambda: Router("softmax", "own", groups=24, group_score="top2").validate(1, 24), "2"),
        (lambda: Router("softmax", "own", groups=6).validate(5, 24), "hold k=5 experts"),
    ],
)
def test_impossible_routers_are_refused(build, says):
    with pytest.raises(InputError, match=says):
        build()
