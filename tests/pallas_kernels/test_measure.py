"""What measurements of expert layers rest on."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lynx_jax.pallas_kernels.expert_shapes import FAMILIES, ExpertShape
from lynx_jax.pallas_kernels.measure import (
    ROUNDINGS,
    chain,
    error,
    microseconds_a_step,
    noise,
    rotating_work,
)


def test_noise_has_the_deviation_and_depends_on_every_index_and_the_seed():
    first = np.asarray(noise(3, (64, 32, 16), jnp.float32, 0.5))
    assert abs(first.mean()) < 0.02
    assert abs(first.std() - 0.5) < 0.02
    for axis in range(3):
        rows = np.moveaxis(first, axis, 0).reshape(first.shape[axis], -1)
        assert np.abs(np.corrcoef(rows) - np.eye(len(rows))).max() < 0.35
    other = np.asarray(noise(4, (64, 32, 16), jnp.float32, 0.5))
    assert abs(np.corrcoef(first.ravel(), other.ravel())[0, 1]) < 0.05


@given(
    experts=st.integers(1, 40),
    k=st.integers(1, 8),
    rows=st.integers(1, 20),
    data=st.data(),
)
@settings(max_examples=25, deadline=None)
def test_work_uses_all_experts_in_turn(experts, k, rows, data):
    k = min(k, experts)
    most = min(experts, rows * k)
    num_active = data.draw(st.integers(1, most))
    steps = data.draw(st.integers(1, 6))
    work = rotating_work(ExpertShape(experts, k, 64, 64), rows, num_active, steps)
    active = np.array([step.active[:num_active] for step in work])
    for step, used in zip(work, active, strict=True):
        combine = np.asarray(step.combine)
        assert int(step.num_active) == num_active
        assert (np.diff(used) > 0).all()
        np.testing.assert_array_equal(np.flatnonzero(combine.any(0)), used)
        assert ((combine != 0).sum(1) == min(k, num_active)).all()
        np.testing.assert_allclose(combine.sum(1), 1, rtol=1e-6)
    turns = np.bincount(active.ravel(), minlength=experts)
    assert turns.max() - turns.min() <= 1  # none again before all had a turn


def test_expected_active_is_the_mean_of_even_choices():
    shape = FAMILIES["Qwen3-30B-A3B"]
    rng = np.random.default_rng(0)
    counts = [
        len(np.unique([rng.permutation(shape.experts)[: shape.k] for _ in range(16)]))
        for _ in range(50)
    ]
    assert abs(np.mean(counts) - shape.expected_active(16)) < 2
    assert shape.expected_active(1) == shape.k


def test_a_chain_runs_every_step_on_the_last_ones_result():
    traced = []

    def step(x, own, shared):
        traced.append(1)
        return x * own + shared

    own = [jnp.array(2.0), jnp.array(3.0), jnp.array(5.0)]
    assert chain(step)(jnp.array(1.0), own, jnp.array(1.0)) == ((1 * 2 + 1) * 3 + 1) * 5 + 1
    assert len(traced) == 1


def test_every_timed_program_gets_the_last_ones_result():
    calls = []

    def program(x, bias):
        calls.append(x.item())
        return x + bias

    time = microseconds_a_step(program, jnp.zeros(1), jnp.ones(1), steps=2, repeats=3, seconds=0.0)
    assert calls == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert time > 0


@pytest.mark.parametrize("change", [0.05, jnp.nan], ids=["off", "nan"])
def test_error_sees_one_wrong_element(change):
    want = jax.random.normal(jax.random.key(0), (16, 64))
    rounded = want.astype(jnp.bfloat16)
    assert error(rounded, want) <= ROUNDINGS
    assert not error(rounded.at[3, 5].add(change), want) <= ROUNDINGS
    assert not error(want, want.at[3, 5].add(change)) <= ROUNDINGS
