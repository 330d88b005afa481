"""The sampler against an independent one that sorts, in float64."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lynx_jax.errors import InputError
from lynx_jax.requests import SamplingParams
from lynx_jax.sampling import (
    SamplingFlags,
    SamplingRows,
    _draw,
    _filtered_weights,
    _uniform,
    sample,
)

_PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    top_k=st.sampled_from([0, 1, 2, 5, 13, 999]),
    top_p=st.sampled_from([0.05, 0.5, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.1, 0.7]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.8]),
    seed=st.integers(0, 2**32 - 1),
)


def _rows(params: list[SamplingParams], seen: np.ndarray | None, step: int = 0) -> SamplingRows:
    columns = {
        name: jnp.array([getattr(p, name) for p in params], dtype)
        for name, dtype in {
            "temperature": jnp.float32,
            "top_k": jnp.int32,
            "top_p": jnp.float32,
            "min_p": jnp.float32,
            "repetition_penalty": jnp.float32,
            "seed": jnp.uint32,
        }.items()
    }
    steps = jnp.full(len(params), step, jnp.int32)
    return SamplingRows(**columns, step=steps, seen=None if seen is None else jnp.array(seen))


def _expected_probabilities(logits: np.ndarray, p: SamplingParams) -> np.ndarray:
    """Penalty apart, what the filters leave of one row, by sorting."""
    scaled = logits.astype(np.float64) / p.temperature
    order = np.argsort(-scaled, kind="stable")
    ranked = np.exp(scaled[order] - scaled[order[0]])
    if p.top_k:
        ranked[p.top_k :] = 0
    before = np.concatenate([[0.0], np.cumsum(ranked)[:-1]])
    if p.top_p < 1:
        ranked[before >= p.top_p * ranked.sum()] = 0
    ranked[ranked < p.min_p * ranked[0]] = 0
    probabilities = np.zeros_like(ranked)
    probabilities[order] = ranked / ranked.sum()
    return probabilities


# Programs that can do everything: rows that want less set a filter to what leaves all tokens.
_WIDE = SamplingFlags(draw=True, top_k=True, top_p=True, min_p=True, penalty=True)
_NARROW = dataclasses.replace(_WIDE, width=64)
_sample = jax.jit(sample, static_argnums=2)


@functools.partial(jax.jit, static_argnums=2)
def _weights_by_id(logits: jax.Array, rows: SamplingRows, flags: SamplingFlags) -> jax.Array:
    scaled = logits / rows.temperature[:, None]
    if not flags.width:
        return _filtered_weights(scaled, rows, flags)
    values, ids = jax.lax.top_k(scaled, scaled.shape[-1])
    weights = _filtered_weights(values, rows, flags)
    return jnp.zeros_like(weights).at[jnp.arange(len(ids))[:, None], ids].set(weights)


@pytest.mark.parametrize("flags", [_WIDE, _NARROW], ids=["wide", "narrow"])
@settings(deadline=None)
@given(seed=st.integers(0, 2**31), params=st.lists(_PARAMS, min_size=3, max_size=3))
def test_filters_equal_the_sorting_reference(
    flags: SamplingFlags, seed: int, params: list[SamplingParams]
) -> None:
    params = [dataclasses.replace(p, temperature=p.temperature or 1.0) for p in params]
    logits = np.random.default_rng(seed).normal(size=(3, 37)).astype(np.float32) * 3
    weights = np.asarray(_weights_by_id(jnp.array(logits), _rows(params, None), flags))
    for row, p in enumerate(params):
        got = weights[row] / weights[row].sum()
        np.testing.assert_allclose(got, _expected_probabilities(logits[row], p), atol=2e-6)


@pytest.mark.parametrize("flags", [_WIDE, _NARROW], ids=["wide", "narrow"])
@settings(deadline=None, max_examples=50)
@given(
    seed=st.integers(0, 2**31),
    params=st.lists(_PARAMS, min_size=3, max_size=3),
    step=st.integers(0, 9),
)
def test_a_row_does_not_depend_on_its_mates(
    flags: SamplingFlags, seed: int, params: list[SamplingParams], step: int
) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(3, 600)).astype(np.float32) * 2
    seen = rng.random((3, 600)) < 0.3
    together = _sample(jnp.array(logits), _rows(params, seen, step), flags)
    for row, p in enumerate(params):
        alone = _rows([p], seen[row : row + 1], step)
        assert int(together[row]) == int(_sample(jnp.array(logits[row : row + 1]), alone, flags)[0])


def test_greedy_takes_the_lowest_of_equals() -> None:
    logits = jnp.array([[1.0, 5.0, 5.0], [-jnp.inf, -2.0, -3.0]])
    tokens = sample(logits, _rows([SamplingParams()] * 2, None), SamplingFlags())
    assert tokens.tolist() == [1, 1]
    assert tokens.dtype == jnp.int32


def test_greedy_program_holds_no_sampling() -> None:
    logits, rows = jnp.zeros((2, 50)), _rows([SamplingParams()] * 2, None)
    flags = SamplingFlags.covering([SamplingParams(top_k=5, top_p=0.5)])
    text = jax.jit(sample, static_argnums=2).lower(logits, rows, flags).as_text()
    assert flags == SamplingFlags()
    assert "while" not in text
    assert "threefry" not in text
    assert "exponential" not in text


def test_repetition_penalty_counts_each_token_once() -> None:
    params = SamplingParams(repetition_penalty=2.0)
    logits = jnp.array([[3.0, 2.0, -1.0, -1.5]])
    seen = np.array([[True, False, True, False]])
    flags = SamplingFlags.covering([params])
    assert int(sample(logits, _rows([params], seen), flags)[0]) == 1
    assert int(sample(logits[:, 2:], _rows([params], seen[:, 2:]), flags)[0]) == 1


@pytest.mark.parametrize("vocab", [5, 1300])
def test_draws_follow_the_weights(vocab: int) -> None:
    weights = np.zeros(vocab, np.float32)
    weights[[0, 3, vocab - 1]] = [1.0, 2.0, 5.0]
    points = (np.arange(4000, dtype=np.float32) + 0.5) / 4000
    drawn = np.asarray(_draw(jnp.tile(weights, (4000, 1)), jnp.array(points)))
    counts = np.bincount(drawn, minlength=vocab)
    np.testing.assert_array_equal(counts[[0, 3, vocab - 1]], [500, 1000, 2500])


@given(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=9), st.floats(0, 1, width=32))
@settings(deadline=None)
def test_a_token_without_weight_is_never_drawn(weights: list[float], point: float) -> None:
    values = np.zeros(10, np.float32)
    values[: len(weights)] = weights
    values[0] = max(values[0], np.float32(1e-30))
    drawn = int(jax.jit(_draw)(jnp.array(values)[None], jnp.array([point], jnp.float32))[0])
    assert values[drawn] > 0


def test_random_numbers_are_those_of_seed_and_step() -> None:
    params = [SamplingParams(seed=seed) for seed in range(2000)]
    first, second = _uniform(_rows(params, None, 0)), _uniform(_rows(params, None, 1))
    assert abs(float(jnp.mean(first)) - 0.5) < 0.03
    assert abs(float(np.corrcoef(first, second)[0, 1])) < 0.1
    np.testing.assert_array_equal(first, _uniform(_rows(params, None, 0)))


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ([], SamplingFlags()),
        ([SamplingParams(top_k=3)], SamplingFlags()),
        ([SamplingParams(temperature=1)], SamplingFlags(draw=True)),
        (
            [SamplingParams(temperature=1, top_k=5), SamplingParams()],
            SamplingFlags(draw=True, top_k=True, width=8),
        ),
        (
            [SamplingParams(temperature=1, top_k=5), SamplingParams(temperature=1, top_p=0.5)],
            SamplingFlags(draw=True, top_k=True, top_p=True),
        ),
        (
            [SamplingParams(temperature=1, top_k=5000, min_p=0.1, repetition_penalty=2)],
            SamplingFlags(draw=True, top_k=True, min_p=True, penalty=True),
        ),
    ],
)
def test_flags_cover_no_more_than_needed(
    params: list[SamplingParams], expected: SamplingFlags
) -> None:
    assert SamplingFlags.covering(params) == expected


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"top_p": float("nan")},
        {"min_p": -0.1},
        {"min_p": 2.0},
        {"repetition_penalty": 0.0},
        {"repetition_penalty": float("inf")},
        {"seed": -1},
        {"seed": 2**32},
    ],
)
def test_values_out_of_range_are_refused(values: dict[str, float]) -> None:
    with pytest.raises(InputError, match=f"expected {next(iter(values))}"):
        SamplingParams(**values)
