"""Rotary frequencies of transformers 5.24, rotation against complex numbers, and config fields."""

import jax.numpy as jnp
import numpy as np
import pytest

from lynx_jax.errors import InputError
from lynx_jax.models.rope import Rope, read_rope, rotate
from lynx_jax.models.rope_scaling import Llama3Scaling, YarnScaling

ORIGINAL = {"original_max_position_embeddings": 256}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 40.0, "beta_fast": 32, "beta_slow": 1}
# What transformers 5.24 gives for a head of 16: settings, base, frequencies, attention factor.
REFERENCE = [
    (
        {"rope_type": "linear", "factor": 4.0},
        1e4,
        [0.25, 0.079056941, 0.025, 0.0079056947, 0.0025, 0.00079056947, 0.00025, 7.9056947e-05],
        1.0,
    ),
    (
        LLAMA3 | ORIGINAL,
        5e5,
        [
            1,
            0.19392276,
            0.010538231,
            9.1158313e-4,
            1.7677668e-4,
            3.4281024e-5,
            6.64787e-6,
            1.2891732e-6,
        ],
        1.0,
    ),
    (
        YARN | ORIGINAL | {"mscale": 0.707, "mscale_all_dim": 1.0},
        1e4,
        [1, 0.23914725, 0.05125, 0.0084986221, 0.00025, 7.9056947e-05, 2.5e-05, 7.9056945e-06],
        0.92104236,
    ),
    (
        {"rope_type": "yarn", "factor": 32, "truncate": False} | ORIGINAL,
        1.5e5,
        [
            1,
            0.1467676,
            0.011923795,
            3.5794458e-4,
            8.0687154e-5,
            1.8188337e-5,
            4.0999785e-6,
            9.24209e-7,
        ],
        1.3465736,
    ),
]


def rope_of(scaling, theta=1e4):
    return read_rope({"rope_parameters": {"rope_theta": theta, **scaling}})


@pytest.mark.parametrize(("scaling", "theta", "frequencies", "factor"), REFERENCE)
def test_scaled_frequencies_equal_the_reference(scaling, theta, frequencies, factor):
    rope = rope_of(scaling, theta)
    assert rope.frequencies(16).dtype == np.float32
    np.testing.assert_allclose(rope.frequencies(16), frequencies, rtol=2e-6)
    assert rope.magnitude == pytest.approx(factor, rel=1e-6)


@pytest.mark.parametrize(
    ("mscale_all_dim", "factor"), [(0.707, 1.58963), (1.0, 1.87385), (None, 1.0)]
)
def test_softmax_factor_of_yarn(mscale_all_dim, factor):
    rope = rope_of({**YARN, **ORIGINAL, "mscale_all_dim": mscale_all_dim})
    assert rope.scaling.softmax_factor == pytest.approx(factor, abs=1e-5)


def test_equal_llama3_factors_leave_nothing_between():
    scaling = Llama3Scaling(16.0, 1.0, 1.0, original_max_position_embeddings=8192)
    plain = Rope(5e5).frequencies(128)
    expected = np.where(2 * np.pi / plain > 8192, plain / 16, plain)
    np.testing.assert_allclose(Rope(5e5, scaling).frequencies(128), expected, rtol=1e-6)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(
    "rope", [Rope(100.0), Rope(100.0, YarnScaling(4.0, 64))], ids=["plain", "yarn"]
)
def test_rotation_turns_pairs(rope, interleaved):
    x = np.random.default_rng(0).normal(size=(2, 3, 5, 8)).astype(np.float32)
    positions = np.array([[0, 1, 2], [5, 70, 4000]])
    pairs = (x[..., 0::2], x[..., 1::2]) if interleaved else (x[..., :4], x[..., 4:])
    angle = positions[:, :, None, None] * rope.frequencies(8).astype(np.float64)
    turned = rope.magnitude * (pairs[0] + 1j * pairs[1]) * np.exp(1j * angle)
    actual = rotate(jnp.asarray(x), jnp.asarray(positions), rope, interleaved=interleaved)
    first, second = (
        (actual[..., 0::2], actual[..., 1::2]) if interleaved else jnp.split(actual, 2, axis=-1)
    )
    np.testing.assert_allclose(first, turned.real, atol=2e-3)
    np.testing.assert_allclose(second, turned.imag, atol=2e-3)


@pytest.mark.parametrize(
    "config",
    [
        {"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 2}},
        {"rope_theta": 10000, "rope_scaling": {"rope_type": "linear", "type": "x", "factor": 2.0}},
        {"rope_theta": 5.0, "rope_parameters": {"rope_theta": 1e4, "type": "linear", "factor": 2}},
        {
            "rope_theta": 1e4,
            "rope_parameters": {"rope_type": "linear", "factor": 2.0},
            "rope_scaling": {"type": "linear", "factor": 2.0},
        },
    ],
)
def test_old_and_new_fields_say_the_same(config):
    assert read_rope(config) == rope_of({"rope_type": "linear", "factor": 2.0})


def test_original_length_may_stand_beside_the_scaling():
    config = {"rope_theta": 1e4, "rope_scaling": YARN, **ORIGINAL}
    assert read_rope(config) == rope_of(YARN | ORIGINAL)


@pytest.mark.parametrize(
    ("scaling", "says"),
    [
        ({"rope_type": "dynamic", "factor": 2.0}, "'dynamic'.*expected one of default, linear"),
        ({"rope_type": ["yarn"]}, "rope type"),
        ({"rope_type": "linear"}, "rope_parameters lacks the field 'factor'"),
        ({"rope_type": "linear", "factor": 0.5}, "a rope factor of at least 1, got 0.5"),
        ({"rope_type": "linear", "factor": "2"}, "'factor' as float, got '2'"),
        (YARN, "lacks the field 'original_max_position_embeddings'"),
        (YARN | ORIGINAL | {"beta_fast": 1}, "beta_slow above 0 and below beta_fast 1"),
        (YARN | ORIGINAL | {"mscale": -1}, "mscale from 0, got -1"),
        (YARN | ORIGINAL | {"attention_factor": 0}, "an attention_factor above 0"),
        (YARN | {"original_max_position_embeddings": 0}, "original_max_position_embeddings of"),
        (LLAMA3 | ORIGINAL | {"high_freq_factor": 0.5}, "low_freq_factor above 0 and up to"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 1, got 0.5"),
    ],
)
def test_what_cannot_be_right_is_refused_in_one_line(scaling, says):
    with pytest.raises(InputError, match=says) as caught:
        rope_of(scaling).check()
    assert "\n" not in str(caught.value)


def test_fields_that_contradict_one_another_are_refused():
    config = {
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
        "rope_scaling": {"type": "linear", "factor": 2.0},
    }
    with pytest.raises(InputError, match="one rope type, got 'default' and 'linear'"):
        read_rope(config)
