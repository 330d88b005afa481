"""What every policy keeps on every family's router, in a layer of its reference checkpoint."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lynx_jax.models.moe import SparseMoeBlock
from lynx_jax.policies import OEA, Lynx, TopK, XShare
from lynx_jax.routers import Router
from lynx_jax.routing import Phase
from tests.lynx_jax import oracle
from tests.models.golden import load

# Each family's rule at its reference checkpoint, written down from the family's definition.
ROUTERS = {
    "mixtral": Router("softmax", "renormalize"),
    "qwen2_moe": Router("softmax", "keep_sum"),
    "qwen3_moe": Router("softmax", "renormalize"),
    "olmoe": Router("softmax", "keep_sum"),
    "deepseek_v2": Router("softmax", "keep_sum", 1.7, groups=5, kept_groups=2),
    "deepseek_v3": Router(
        "sigmoid", "renormalize", 2.5, groups=4, kept_groups=2, group_score="top2"
    ),
    "gpt_oss": Router("softmax", "renormalize"),
    "llama4": Router("sigmoid", "own"),
    "phimoe": Router("sparsemixer", "own", jitter=0.15),
}
ROWS = 12
LIVE = np.arange(ROWS) % 4 != 1


@functools.cache
def block(case: str) -> SparseMoeBlock:
    """The last layer's mixture."""
    return load(case, "reference").model.layers[-1].mlp


def policies(k: int, num_experts: int):
    """Every kind of policy; those that save do so by much."""
    return [TopK(), Lynx(0.5, 1), OEA(1), XShare(min(k + 1, num_experts))]


@functools.cache
def routed(case: str) -> dict:
    """By policy, what the layer gives for the same rows, once more with other dead rows."""
    layer, rng = block(case), np.random.default_rng(3)
    width = layer.gate.weight.shape[1]
    x = rng.normal(size=(ROWS, 1, width)).astype(np.float32)
    poisoned = np.where(LIVE[:, None, None], x, 50 * rng.normal(size=x.shape)).astype(np.float32)
    chosen = dict.fromkeys(policies(layer.k, layer.gate.weight.shape[0]))

    @nnx.jit
    def run(layer, x):
        live = jnp.asarray(LIVE)[:, None]
        return [layer(x, live, phase=Phase.DECODE, policy=policy) for policy in chosen]

    return dict(zip(chosen, zip(run(layer, x), run(layer, poisoned), strict=True), strict=True))


def ranked(case: str, logits: np.ndarray) -> np.ndarray:
    """What rows choose by: -inf at experts of groups that a row may not use."""
    router, bias = ROUTERS[case], block(case).selection_bias
    score = oracle.weight_scores(logits, router.score, router.jitter)
    choice = logits if bias is None else (score + np.asarray(bias[...])).astype(np.float32)
    summed = score if bias is None else choice
    allowed = [oracle.allowed(router, c, s) for c, s in zip(choice, summed, strict=True)]
    return np.where(allowed, choice, -np.inf)


@pytest.mark.parametrize("case", ROUTERS)
def test_the_family_has_its_rule(case):
    assert block(case).router == ROUTERS[case]


@pytest.mark.parametrize("case", ROUTERS)
def test_every_policy_keeps_the_invariants(case):
    k = block(case).k
    for policy, ((_, layer), _) in routed(case).items():
        logits = np.asarray(layer.router_logits)[:, 0]
        choice, routing = ranked(case, logits), layer.routing
        ids = np.asarray(routing.ids)
        top = np.array([oracle.ranking(row)[:k] for row in choice])
        used = {int(e) for e in ids[LIVE].ravel()}
        top_used = oracle.top_k_union(choice, LIVE, k)
        assert all(len(set(row)) == k for row in ids.tolist()), policy
        assert np.isfinite(np.take_along_axis(choice, ids, 1)[LIVE]).all(), f"{policy}: groups"
        assert np.asarray(routing.active)[: int(routing.num_active)].tolist() == sorted(used)
        assert int(routing.num_active_topk) == len(top_used)
        assert len(used) <= len(top_used), policy
        if policy == TopK() or len(used) == len(top_used):
            np.testing.assert_array_equal(ids[LIVE], top[LIVE], err_msg=str(policy))
        weight = oracle.weight_scores(logits, ROUTERS[case].score, ROUTERS[case].jitter)
        np.testing.assert_allclose(
            np.asarray(routing.weights)[LIVE],
            oracle.weights(ROUTERS[case], weight, ids, top)[LIVE],
            rtol=1e-5,
            err_msg=str(policy),
        )


@pytest.mark.parametrize("case", ROUTERS)
def test_policies_save_experts(case):
    saved = [
        int(layer.routing.num_active) < int(layer.routing.num_active_topk)
        for (_, layer), _ in routed(case).values()
    ]
    assert sum(saved) >= 2


@pytest.mark.parametrize("case", ROUTERS)
def test_dead_rows_change_nothing(case):
    for policy, ((y, clean), (y_poisoned, poisoned)) in routed(case).items():
        np.testing.assert_array_equal(
            clean.routing.active, poisoned.routing.active, err_msg=str(policy)
        )
        np.testing.assert_array_equal(
            np.asarray(clean.routing.ids)[LIVE], np.asarray(poisoned.routing.ids)[LIVE]
        )
        np.testing.assert_allclose(
            np.asarray(y)[LIVE], np.asarray(y_poisoned)[LIVE], rtol=0, atol=1e-5
        )
