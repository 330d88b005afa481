"""What is particular to Phi-3.5-MoE: weights of its router, LayerNorm, longrope, its config."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from lynx_jax.engine import Engine
from lynx_jax.errors import InputError
from lynx_jax.models import PhimoeConfig
from lynx_jax.models.layers import LayerNorm
from lynx_jax.policies import Lynx, TopK
from lynx_jax.requests import Request
from lynx_jax.routers import Router
from tests.lynx_jax import oracle
from tests.models.golden import GOLDEN, full_pass, load

RAW = json.loads((GOLDEN / "phimoe" / "config.json").read_text())
PROMPTS = [(3, 1, 4, 1, 5), (9, 2), (6, 5, 3, 5, 8, 9, 7)]


def published_sparsemixer(z, jitter):
    """The two choices of a row and their weights, as the published code goes about it."""
    ids, weights, left = [], [], z.copy()
    for _ in range(2):
        best = left.max()
        with np.errstate(all="ignore"):  # 0 / 0 is not far
            far = (best - z) / np.clip(np.abs(z), best, None) > 2 * jitter
        kept = np.where(far, -np.inf, left)
        e = np.exp(kept - best)
        ids.append(int(np.argmax(left)))
        weights.append(e[ids[-1]] / e.sum())
        left[ids[-1]] = -np.inf
    return ids, weights


@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.01031, 0.20371, 0.60713]),
    st.sampled_from([-2.0, 0, 2]),
)
@settings(max_examples=30, deadline=None)
def test_weights_of_plain_choices_are_the_published_ones(seed, jitter, middle):
    rng = np.random.default_rng(seed)
    logits = np.round(rng.normal(middle, 1, (4, 7)), 1).astype(np.float32)  # with ties
    found = np.asarray(Router("sparsemixer", "own", jitter=jitter).scores(logits).weight)
    np.testing.assert_allclose(
        found, oracle.weight_scores(logits, "sparsemixer", jitter), rtol=1e-4
    )
    for row, z in zip(found, logits, strict=True):
        ids, weights = published_sparsemixer(z, jitter)
        np.testing.assert_allclose(row[ids], weights, rtol=1e-4)


def test_experts_that_are_not_there_have_no_weight():
    logits = jnp.asarray([[1.0, -jnp.inf, 0.9]])
    scores = Router("sparsemixer", "own", jitter=0.1).scores(logits)
    assert np.isfinite(scores.weight).all()
    assert scores.weight[0, 1] == scores.probability[0, 1] == 0
    np.testing.assert_allclose(jnp.sum(scores.probability), 1, rtol=1e-6)


def test_layer_norm():
    x = np.random.default_rng(0).normal(2, 3, size=(3, 8)).astype(np.float32)
    norm = LayerNorm(8, eps=0.1, dtype=jnp.float32, rngs=nnx.Rngs(0))
    norm.scale.set_value(jnp.arange(8.0))
    norm.bias.set_value(-jnp.arange(8.0) / 2)
    variance = x.var(-1, keepdims=True)
    expected = (x - x.mean(-1, keepdims=True)) / np.sqrt(variance + 0.1) * np.arange(8)
    np.testing.assert_allclose(norm(jnp.asarray(x)), expected - np.arange(8) / 2, atol=1e-5)


def test_longrope_divides_each_frequency_and_ends_with_the_original_context():
    config = PhimoeConfig.from_dict(RAW)
    plain = 1e4 ** (-np.arange(4) / 4)
    np.testing.assert_allclose(
        config.rope.frequencies(8), plain / np.array([1.0, 1.5, 2.25, 3.5]), rtol=1e-6
    )
    assert config.rope.magnitude == 1.25
    assert RAW["max_position_embeddings"] == 96
    assert config.max_position_embeddings == 32


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"num_experts_per_tok": 3}, "num_experts_per_tok 2 for phimoe, got 3"),
        ({"router_jitter_noise": None}, "lacks the field 'router_jitter_noise'"),
        ({"router_jitter_noise": -0.1}, "router_jitter_noise from 0"),
        ({"intermediate_size": 0}, "intermediate_size to be at least 1"),
        ({"tie_word_embeddings": True}, "lm_head_bias false with a tied head"),
        ({"head_dim": 10}, "a short_factor for each of 5 rotary pairs, got 4"),
    ],
)
def test_contradictions_are_refused_in_one_line(change, says):
    with pytest.raises(InputError, match=says) as caught:
        PhimoeConfig.from_dict(RAW | change)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"short_factor": [1.0, 0.0, 1.0, 1.0]}, "every short_factor finite and above 0"),
        ({"short_factor": None}, "lacks the field 'short_factor'"),
        ({"short_mscale": 0.0}, "a finite short_mscale above 0"),
        ({"original_max_position_embeddings": 0}, "original_max_position_embeddings"),
    ],
)
def test_longrope_needs_its_fields(change, says):
    with pytest.raises(InputError, match=says):
        PhimoeConfig.from_dict(RAW | {"rope_parameters": RAW["rope_parameters"] | change})


@pytest.mark.parametrize("policy", [TopK(), Lynx(0.5, 1)], ids=str)
def test_generation(policy):
    """The engine's greedy text; plain top-k's against one pass over the whole of it."""
    model = load("phimoe", "reference").model
    engine = Engine(model, slots=3, max_len=16, vocab_size=149, policy=policy)
    numbers = [engine.submit(Request(prompt, max_new_tokens=6)) for prompt in PROMPTS]
    texts = {number: [] for number in numbers}
    while engine.busy:
        for event in engine.step():
            texts[event.request_id].append(event.token_id)
    assert [len(text) for text in texts.values()] == [6, 6, 6]
    if policy == TopK():
        ids = np.zeros((5, 18), np.int32)  # a shape that other tests compile, too
        for row, prompt, text in zip(ids, PROMPTS, texts.values(), strict=False):
            row[: len(prompt) + 6] = [*prompt, *text]
        best = np.asarray(full_pass(model, ids).logits).argmax(-1)
        for row, prompt, text in zip(best, PROMPTS, texts.values(), strict=False):
            assert row[len(prompt) - 1 :][:6].tolist() == text
