"""Llama-4: chunks, temperature, norms, router and config; parity is in test_golden.py."""

import json
import logging
import shutil

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file

from lynx_jax import load as load_folder
from lynx_jax.backends import get_backend
from lynx_jax.errors import InputError
from lynx_jax.models import get_family
from lynx_jax.models.llama4_text import Llama4Attention, Llama4ForCausalLM, Llama4TextConfig
from lynx_jax.policies import XShare
from lynx_jax.routing import Phase
from tests.models.golden import GOLDEN, load

RAW = json.loads((GOLDEN / "llama4_text" / "config.json").read_text())
CHUNK, LAYERS = RAW["attention_chunk_size"], RAW["num_hidden_layers"]

DEFAULT_CHUNK = 8192


def config(*without, **changes):
    raw = {name: value for name, value in RAW.items() if name not in without}
    return Llama4TextConfig.from_dict(raw | changes)


@nnx.jit(static_argnames=("phase",))
def attend(attention, x, positions, cache, phase):
    return attention(x, positions, jnp.ones(positions.shape, bool), cache, phase=phase)


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


@pytest.mark.parametrize("changed", [0, CHUNK - 1, CHUNK, CHUNK + 2])
@pytest.mark.parametrize("layer", [0, 3])
@pytest.mark.parametrize("phase", [Phase.PREFILL, Phase.DECODE])
def test_a_token_is_seen_to_the_end_of_its_chunk(layer, changed, phase):
    attention = load("llama4_text", "reference").model.layers[layer].self_attn
    length = 2 * CHUNK + 3
    x = jnp.asarray(np.random.default_rng(0).standard_normal((1, length, RAW["hidden_size"])))
    other = x.at[0, changed].multiply(-1)
    difference = np.abs(outputs(attention, x, phase) - outputs(attention, other, phase))[0].max(-1)
    end = length if layer == 3 else (changed // CHUNK + 1) * CHUNK
    places = np.arange(length)
    np.testing.assert_array_equal(difference > 0, (places >= changed) & (places < end))


def without_weights(settings, layer):
    return nnx.eval_shape(
        lambda: Llama4Attention(settings, layer, dtype=jnp.float32, rngs=nnx.Rngs(0))
    )


def placed(settings, layer, positions):
    """Queries and keys before and after."""
    attention = without_weights(settings, layer)
    rng, width = np.random.default_rng(1), settings.head_dim
    q = jnp.asarray(rng.standard_normal((1, len(positions), 6, width)), jnp.float32)
    k = jnp.asarray(rng.standard_normal((1, len(positions), 2, width)), jnp.float32)
    return (q, k), attention.place(q, k, jnp.asarray(positions)[None])


@pytest.mark.parametrize("tuning", [True, 4])
def test_queries_grow_in_layers_without_positions(tuning):
    positions = np.array([0, 2, 3, 6, 7, 11, 40])  # a step of 4 ends behind 3, 7 and 11
    (q, k), (grown, same) = placed(config(attn_temperature_tuning=tuning), 3, positions)
    steps = np.array([0, 0, 1, 1, 2, 3, 10])
    factor = 1 + RAW["attn_scale"] * np.log(1 + steps)
    np.testing.assert_allclose(grown, q * factor[:, None, None], rtol=1e-6)
    np.testing.assert_array_equal(same, k)


@pytest.mark.parametrize("tuning", [False, 0])
def test_queries_do_not_grow_without_temperature_tuning(tuning):
    before, after = placed(config(attn_temperature_tuning=tuning), 3, np.array([0, 40]))
    for x, y in zip(before, after, strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("norm", [True, False])
def test_neighbours_turn_together_and_the_norm_comes_after(norm):
    """As complex numbers; every head is divided by its own root mean square."""
    settings = config(use_qk_norm=norm)
    positions = np.array([0, 1, 30])
    before, after = placed(settings, 0, positions)
    turns = np.exp(1j * positions[:, None] * settings.rope.frequencies(settings.head_dim))
    for x, y in zip(before, after, strict=True):
        x = np.asarray(x, np.float64)
        turned = (x[..., 0::2] + 1j * x[..., 1::2]) * turns[:, None]
        wanted = np.stack([turned.real, turned.imag], axis=-1).reshape(x.shape)
        if norm:
            eps = RAW["rms_norm_eps"]
            wanted = wanted / np.sqrt((wanted**2).mean(-1, keepdims=True) + eps)
        np.testing.assert_allclose(y, wanted, atol=2e-6)


def test_a_remapped_row_is_scaled_by_its_new_experts_own_score():
    model = load("llama4_text", "loop").model
    block = model.layers[1].mlp
    rng = np.random.default_rng(3)
    x = rng.standard_normal((12, 1, RAW["hidden_size"])).astype(np.float32)
    live = np.arange(12)[:, None] != 5
    y, found = nnx.jit(block, static_argnames=("phase", "policy"))(
        x, live, phase=Phase.DECODE, policy=XShare(3)
    )
    ids, live = np.asarray(found.routing.ids)[:, 0], live[:, 0]
    logits = np.asarray(found.router_logits, np.float64)[:, 0]
    survivors = sorted(set(ids[live]))
    assert len(survivors) <= 3
    assert (ids != logits.argmax(-1))[live].any()
    stacked = load("llama4_text", "reference").model.layers[1].mlp.experts
    gate_up = np.asarray(stacked.gate_up_proj[...], np.float64)
    down = np.asarray(stacked.down_proj[...], np.float64)
    shared = np.asarray(block.shared_expert(jnp.asarray(x)))
    for row in np.flatnonzero(live):
        best = survivors[int(logits[row, survivors].argmax())]
        assert ids[row] == best
        score = 1 / (1 + np.exp(-logits[row, best]))
        gate, up = np.split(gate_up[best] @ (score * x[row, 0]), 2)
        routed = down[best] @ (gate / (1 + np.exp(-gate)) * up)
        np.testing.assert_allclose(y[row, 0], routed + shared[row, 0], atol=1e-5)


def test_layers_by_default():
    found = config("moe_layers", "no_rope_layers", "layer_types", interleave_moe_layer_step=2)
    assert [found.is_sparse(i) for i in range(LAYERS)] == [False, True, False, True]
    assert [found.has_rope(i) for i in range(LAYERS)] == [True, True, True, False]
    assert [found.is_chunked(i) for i in range(LAYERS)] == [True, True, True, False]
    assert config(no_rope_layers=[]) == config("no_rope_layers")


def test_layers_by_their_lists():
    found = config("layer_types", no_rope_layers=[0, 1, 0, 1], moe_layers=[2])
    assert [found.has_rope(i) for i in range(LAYERS)] == [False, True, False, True]
    assert [found.is_chunked(i) for i in range(LAYERS)] == [False, True, False, True]
    assert [found.is_sparse(i) for i in range(LAYERS)] == [False, False, True, False]
    types = ["full_attention", "chunked_attention", "chunked_attention", "full_attention"]
    found = config(layer_types=types)
    assert [found.is_chunked(i) for i in range(LAYERS)] == [False, True, True, False]


def test_an_empty_list_of_mixtures_makes_all_layers_dense():
    settings = config(moe_layers=[], intermediate_size_mlp=10)
    model = nnx.eval_shape(
        lambda: Llama4ForCausalLM(settings, backend=get_backend("loop"), rngs=nnx.Rngs(0))
    )
    assert not any(hasattr(layer.mlp, "experts") for layer in model.layers)


def test_a_chunk_of_null_is_the_whole_context():
    settings = config(
        "layer_types", attention_chunk_size=None, max_position_embeddings=3 * DEFAULT_CHUNK
    )
    attention = without_weights(settings, 0)
    places = jnp.arange(0, 3 * DEFAULT_CHUNK, DEFAULT_CHUNK // 2)[None]
    seen = attention.sees(places, places)[0]
    np.testing.assert_array_equal(seen, np.tri(places.size, dtype=bool))


def test_absent_fields_are_what_the_published_models_have():
    found = config("attn_temperature_tuning", "floor_scale", "attn_scale", "attention_chunk_size")
    assert found.attn_temperature_tuning
    assert (found.floor_scale, found.attn_scale) == (8192, 0.1)
    assert found.attention_chunk_size == DEFAULT_CHUNK


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"moe_layers": [4]}, r"moe_layers below 4, got \[4\]"),
        ({"moe_layers": [-1]}, "moe_layers below 4"),
        ({"moe_layers": 2}, "'moe_layers' as a list of int, got 2"),
        ({"moe_layers": [1], "intermediate_size_mlp": None}, "intermediate_size_mlp of at least 1"),
        ({"no_rope_layers": [1, 0]}, "no_rope_layers for 4 layers, got 2"),
        ({"no_rope_layers": [2, 1, 1, 0]}, "0 and 1 in no_rope_layers"),
        ({"layer_types": ["sliding_attention"] * 4}, "layer_types of "),
        ({"layer_types": []}, "layer_types for 4 layers, got 0"),
        ({"attn_temperature_tuning": "yes"}, "'attn_temperature_tuning' as "),
        ({"attention_chunk_size": 0}, "attention_chunk_size to be at least 1"),
        ({"interleave_moe_layer_step": 0}, "interleave_moe_layer_step to be at least 1"),
        ({"no_rope_layer_interval": 0}, "no_rope_layer_interval to be at least 1"),
        ({"floor_scale": 0}, "floor_scale to be at least 1"),
        ({"attention_bias": True}, "attention_bias false"),
        ({"use_qk_norm": None}, "lacks the field 'use_qk_norm'"),
        ({"rope_parameters": None}, "lacks the field 'rope_theta'"),
        ({"text_config": 3}, "'text_config' as an object, got 3"),
    ],
)
def test_contradictions_are_refused_in_one_line(change, says):
    with pytest.raises(InputError, match=says) as caught:
        config(**change)
    assert "\n" not in str(caught.value)


def test_the_text_part_of_a_multimodal_config():
    raw = json.loads((GOLDEN / "llama4" / "config.json").read_text())
    assert get_family("llama4") == get_family("llama4_text")
    outer, inner = map(Llama4TextConfig.from_dict, (raw, raw["text_config"]))
    assert outer == inner
    assert outer.model_type == "llama4_text"


def test_end_of_text_of_the_text_part_and_what_is_skipped(tmp_path, caplog):
    folder = shutil.copytree(GOLDEN / "llama4", tmp_path / "llama4")
    (folder / "generation_config.json").unlink()
    with caplog.at_level(logging.INFO, logger="lynx_jax"):
        loaded = load_folder(folder, backend="reference")
    assert {2, 3} <= loaded.eos_token_ids
    names = load_file(folder / "model.safetensors")
    skipped = sum(name.startswith(("vision_model.", "multi_modal_projector.")) for name in names)
    assert f"{skipped} tensors not used, such as multi_modal_projector.linear_1" in caplog.text
