"""Layers against NumPy, decode against the full pass, and what the phase gate promises."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lynx_jax.backends import get_backend
from lynx_jax.models import MixtralConfig, MixtralForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM
from lynx_jax.models.layers import Linear, RMSNorm
from lynx_jax.policies import OEA, Lynx, TopK, XShare
from lynx_jax.routing import Phase
from tests.models.test_config import MIXTRAL, QWEN3

BACKENDS = ["loop", "reference"]
TOP_K = TopK()


def build(family="qwen3_moe", *, backend="loop", dtype=jnp.float32, **changes):
    if family == "mixtral":
        config_class, model_class, raw = MixtralConfig, MixtralForCausalLM, MIXTRAL
    else:
        config_class, model_class, raw = Qwen3MoeConfig, Qwen3MoeForCausalLM, QWEN3
    config = config_class.from_dict({**raw, **changes})
    return model_class(config, backend=get_backend(backend), dtype=dtype, rngs=nnx.Rngs(0))


def tokens(rows, length, vocab=97, seed=0):
    return jnp.asarray(np.random.default_rng(seed).integers(0, vocab, (rows, length)), jnp.int32)


@nnx.jit(static_argnames=("policy",))
def decode_step(model, token, position, live, cache, policy):
    hidden, cache, routings = model.forward(
        token[:, None],
        position[:, None],
        live[:, None],
        cache,
        phase=Phase.DECODE,
        policy=policy,
    )
    return model.logits(hidden[:, 0]), cache, [r.routing.num_active for r in routings]


@nnx.jit
def full_pass(model, ids, live=None):
    return model(ids, live=live)


def decode_all(model, ids, policy=TOP_K, live=None):
    """Logits [B, T, V] of feeding ``ids`` token by token through the cache."""
    rows, length = ids.shape
    live = jnp.ones(rows, bool) if live is None else live
    cache, logits = model.init_cache(rows, length + 3), []
    for t in range(length):
        step, cache, _ = decode_step(model, ids[:, t], jnp.full(rows, t), live, cache, policy)
        logits.append(step)
    return jnp.stack(logits, axis=1)


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("mixtral", {}),
        ("mixtral", {"sliding_window": 3}),
        ("qwen3_moe", {}),
        ("qwen3_moe", {"norm_topk_prob": False, "tie_word_embeddings": True}),
        ("qwen3_moe", {"mlp_only_layers": [1]}),
    ],
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_decode_equals_one_full_pass(family, changes, backend):
    model, ids = build(family, backend=backend, **changes), tokens(3, 9)
    np.testing.assert_allclose(decode_all(model, ids), full_pass(model, ids), atol=2e-5)


def test_sliding_window_changes_what_is_seen_only_beyond_it():
    ids = tokens(2, 8)
    wide = full_pass(build("mixtral"), ids)
    narrow = full_pass(build("mixtral", sliding_window=3), ids)
    np.testing.assert_allclose(wide[:, :3], narrow[:, :3], atol=1e-5)
    assert np.abs(wide[:, 3:] - narrow[:, 3:]).max() > 1e-3


def test_padding_changes_nothing_for_live_tokens():
    model, ids = build(), tokens(2, 8)
    live = jnp.arange(8)[None] < jnp.array([[5], [8]])
    padded = full_pass(model, jnp.where(live, ids, 7), live)
    np.testing.assert_allclose(padded[0, :5], full_pass(model, ids[:1, :5])[0], atol=2e-5)
    np.testing.assert_allclose(padded[1], full_pass(model, ids)[1], atol=2e-5)


@pytest.mark.parametrize("policy", [TopK(), Lynx(3.0, 2), OEA(1), XShare(5)], ids=str)
def test_rows_that_are_not_live_change_nothing(policy):
    model, ids = build(), tokens(4, 6)
    live = jnp.array([True, False, True, False])
    other = ids.at[1].set(3).at[3].set(90)
    first, second = (decode_all(model, rows, policy, live) for rows in (ids, other))
    np.testing.assert_array_equal(first[live], second[live])


def test_policies_save_experts_and_change_logits():
    model, ids = build(), tokens(8, 1)
    live, position = jnp.ones(8, bool), jnp.zeros(8, jnp.int32)
    results = {
        policy: decode_step(model, ids[:, 0], position, live, model.init_cache(8, 4), policy)
        for policy in (TopK(), XShare(3))
    }
    assert all(int(n) <= 3 for n in results[XShare(3)][2])
    assert all(int(n) > 3 for n in results[TopK()][2])
    assert np.abs(results[TopK()][0] - results[XShare(3)][0]).max() > 1e-3


def test_the_prefill_program_holds_no_trace_of_the_policy():
    model = build()
    graph, state = nnx.split(model)

    def prefill(state, ids, policy):
        positions = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
        live = jnp.ones(ids.shape, bool)
        merged = nnx.merge(graph, state)
        return merged.forward(ids, positions, live, None, phase=Phase.PREFILL, policy=policy)[0]

    lowered = {
        jax.jit(prefill, static_argnums=2).lower(state, tokens(2, 8), policy).as_text()
        for policy in (TopK(), Lynx(3.0, 4), OEA(1), XShare(5))
    }
    assert len(lowered) == 1


def test_bfloat16_stays_bfloat16():
    model, full = build(dtype=jnp.bfloat16), build()
    nnx.update(model, jax.tree.map(lambda x: x.astype(jnp.bfloat16), nnx.state(full)))
    hidden, cache, _ = model.forward(
        tokens(2, 4),
        jnp.broadcast_to(jnp.arange(4), (2, 4)),
        jnp.ones((2, 4), bool),
        None,
        phase=Phase.PREFILL,
        policy=TopK(),
    )
    assert hidden.dtype == cache[0].k.dtype == jnp.bfloat16
    assert model.logits(hidden).dtype == jnp.float32
    error = np.abs(model.logits(hidden) - full_pass(full, tokens(2, 4)))
    assert np.median(error) < 0.05


def test_rms_norm():
    x = np.random.default_rng(0).normal(size=(3, 32)).astype(np.float32)
    norm = RMSNorm(32, eps=1e-2, dtype=jnp.float32, rngs=nnx.Rngs(0))
    norm.scale.set_value(jnp.arange(32.0))
    expected = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-2) * np.arange(32)
    np.testing.assert_allclose(norm(jnp.asarray(x)), expected, rtol=1e-5)


def test_linear_adds_its_bias_in_float32():
    layer = Linear(3, 2, bias=True, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    layer.weight.set_value(jnp.array([[256.0, 0, 1], [0, 1, 0]], jnp.bfloat16))
    layer.bias.set_value(jnp.array([0.5, -2.0], jnp.bfloat16))
    y = layer(jnp.ones((1, 3), jnp.bfloat16), dtype=jnp.float32)
    np.testing.assert_array_equal(y, [[257.5, -1.0]])
