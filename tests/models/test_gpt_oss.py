"""gpt-oss: sinks, windows, norms and config; parity is in test_golden.py."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lynx_jax.errors import InputError
from lynx_jax.models.gpt_oss import GptOssConfig, GptOssRMSNorm, attend_with_sinks
from lynx_jax.routing import Phase
from tests.models.golden import GOLDEN, expected, full_pass, load

RAW = json.loads((GOLDEN / "gpt_oss" / "config.json").read_text())
WINDOW = RAW["sliding_window"]


def by_formula(q, k, v, mask, sinks):
    """One query and head at a time, in float64: the sink is one more score, and no value."""
    rows, tokens, heads, width = q.shape
    out = np.zeros(q.shape)
    for b, t, h in np.ndindex(rows, tokens, heads):
        group = h // (heads // k.shape[2])
        seen = np.flatnonzero(mask[b, t])
        scores = k[b, seen, group].astype(np.float64) @ q[b, t, h] / np.sqrt(width)
        e = np.exp(np.append(scores, sinks[h]))
        out[b, t, h] = (e[:-1] / e.sum()) @ v[b, seen, group]
    return out


@pytest.mark.parametrize("scale", [1.0, 12.0])
def test_sinks_by_an_independent_formula(scale):
    rng = np.random.default_rng(0)
    q = scale * rng.standard_normal((2, 3, 6, 4))
    k, v = rng.standard_normal((2, 2, 7, 3, 4))
    mask = rng.random((2, 3, 7)) < 0.6
    mask[1, 2] = False
    sinks = scale * rng.standard_normal(6)
    found = attend_with_sinks(*(jnp.asarray(x, jnp.float32) for x in (q, k, v)), mask, sinks)
    np.testing.assert_allclose(found, by_formula(q, k, v, mask, sinks), atol=2e-6)
    np.testing.assert_array_equal(found[1, 2], 0)


@pytest.mark.parametrize("size", [-300.0, 300.0])
def test_sinks_far_out_stay_finite(size):
    x = jnp.ones((1, 1, 1, 2))
    found = attend_with_sinks(x, x, x, jnp.ones((1, 1, 1), bool), jnp.array([size]))
    np.testing.assert_array_equal(found, np.full((1, 1, 1, 2), float(size < 0)))


@pytest.mark.parametrize(("layer", "reach"), [(0, WINDOW), (1, 99), (2, WINDOW)])
@pytest.mark.parametrize("phase", Phase)
def test_a_token_is_seen_to_the_end_of_its_window(layer, reach, phase):
    attention = load("gpt_oss", "reference").model.layers[layer].self_attn
    length, changed = 2 * WINDOW + 3, 4
    x = jnp.asarray(np.random.default_rng(0).standard_normal((1, length, RAW["hidden_size"])))
    other = x.at[0, changed].multiply(-1)
    difference = np.abs(outputs(attention, x, phase) - outputs(attention, other, phase))[0].max(-1)
    distance = np.arange(length) - changed
    np.testing.assert_array_equal(difference > 0, (distance >= 0) & (distance < reach))


def outputs(attention, x, phase):
    """Of all tokens, [1, T, D]; in decode one token after another."""
    positions = jnp.arange(x.shape[1])[None]
    if phase is not Phase.DECODE:
        return attend(attention, x, positions, None, phase=phase)[0]
    cache, found = attention.init_cache(1, x.shape[1] + 2, jnp.float32), []
    for t in range(x.shape[1]):
        one = slice(t, t + 1)
        y, cache = attend(attention, x[:, one], positions[:, one], cache, phase=phase)
        found.append(y)
    return jnp.concatenate(found, axis=1)


@nnx.jit(static_argnames=("phase",))
def attend(attention, x, positions, cache, phase):
    return attention(x, positions, jnp.ones(positions.shape, bool), cache, phase=phase)


def test_activations_of_the_reference_reach_the_clamps():
    """Else parity would say nothing of them."""
    loaded = load("gpt_oss", "reference")
    found = full_pass(loaded.model, expected("gpt_oss")["input_ids"])
    layer = loaded.model.layers[1]
    experts = layer.mlp.experts
    x = layer.post_attention_layernorm(found.hidden[0]).reshape(-1, RAW["hidden_size"])
    gate_up = jnp.einsum("td,nfd->tnf", x, experts.gate_up_proj[...]) + experts.gate_up_bias[...]
    gate, up = jnp.split(gate_up, 2, axis=-1)
    for beyond in (gate > 7, up > 7, up < -7):
        assert beyond.mean() > 1e-3


def test_norm_is_cast_after_its_scale():
    x = jnp.asarray(np.random.default_rng(0).standard_normal((64, 8)), jnp.bfloat16)
    norm = GptOssRMSNorm(8, eps=1e-5, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    norm.scale.set_value(jnp.linspace(0.3, 1.7, 8).astype(jnp.bfloat16))
    x64, scale = np.asarray(x, np.float64), np.asarray(norm.scale[...], np.float64)
    wanted = x64 / np.sqrt((x64**2).mean(-1, keepdims=True) + 1e-5) * scale
    assert norm(x).dtype == jnp.bfloat16
    np.testing.assert_array_equal(norm(x), wanted.astype(jnp.bfloat16))


def test_layers_slide_in_turn_by_default():
    raw = {name: value for name, value in RAW.items() if name != "layer_types"}
    config = GptOssConfig.from_dict(raw)
    assert [config.is_sliding(i) for i in range(3)] == [True, False, True]
    given = ["full_attention", "full_attention", "sliding_attention"]
    config = GptOssConfig.from_dict({**raw, "layer_types": given})
    assert [config.is_sliding(i) for i in range(3)] == [False, False, True]
    config = GptOssConfig.from_dict(
        {**raw, "layer_types": ["full_attention"] * 3, "sliding_window": None}
    )
    assert not any(map(config.is_sliding, range(3)))


def test_head_dim_that_is_not_given():
    without = {name: value for name, value in RAW.items() if name != "head_dim"}
    assert GptOssConfig.from_dict(without).head_dim == 64
    divided = {**RAW, "head_dim": None, "num_attention_heads": 16, "num_key_value_heads": 4}
    assert GptOssConfig.from_dict(divided).head_dim == RAW["hidden_size"] // 16


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"layer_types": ["full_attention"]}, "layer_types for 3 layers, got 1"),
        ({"layer_types": []}, "layer_types for 3 layers, got 0"),
        ({"layer_types": ["chunked_attention"] * 3}, "layer_types of "),
        ({"layer_types": [1, 2, 3]}, "'layer_types' as a list of str"),
        ({"layer_types": "full_attention"}, "'layer_types' as a list of str"),
        ({"sliding_window": None}, "a sliding_window, for the layers of sliding_attention"),
        ({"sliding_window": 0}, "sliding_window null or at least 1"),
        ({"swiglu_limit": 8.0}, "swiglu_limit 7.0 and swiglu_alpha 1.702"),
        ({"swiglu_alpha": 1.0}, "swiglu_limit 7.0 and swiglu_alpha 1.702"),
        ({"intermediate_size": 0}, "intermediate_size to be at least 1"),
        ({"rope_parameters": None}, "lacks the field 'rope_theta'"),
    ],
)
def test_contradictions_are_refused_in_one_line(change, says):
    with pytest.raises(InputError, match=says) as caught:
        GptOssConfig.from_dict({**RAW, **change})
    assert "\n" not in str(caught.value)
