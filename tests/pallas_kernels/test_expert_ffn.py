"""Every form of the expert computation against the oracle, and what it reads and copies."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lynx_jax.pallas_kernels.expert_ffn import (
    combine_matrix,
    dense_over_active,
    expert_ffn_reference,
    grouped_by_expert,
)

D, F = 24, 16
TOLERANCE = {jnp.float32: 1e-5, jnp.bfloat16: 1e-2}  # of the largest output: sums, then rounding
on_cpu = pytest.mark.skipif(jax.default_backend() != "cpu", reason="about XLA on CPU")


@partial(jax.jit, static_argnames=("block",))
def loop_forms(x, ids, weights, live, gate_up, down, *, block):
    """Outputs of the dense and of the grouped form, as lynx_jax.backends calls them."""
    num_experts = len(gate_up)
    chosen = jnp.any((ids[..., None] == jnp.arange(num_experts)) & live[:, None, None], axis=(0, 1))
    active = jnp.argsort(~chosen, stable=True)
    combine = combine_matrix(ids, weights, live, num_experts)
    dense = dense_over_active(x, combine, active, jnp.sum(chosen), gate_up, down)
    return dense, grouped_by_expert(x, ids, weights, live, gate_up, down, block=block)


def draw(rows, k, num_experts, *, live_share, dtype, seed, favourites=None):
    """Random layer input; rows that are not live hold NaN and ids that no expert has."""
    rng = np.random.default_rng(seed)
    pool = np.arange(num_experts)[: favourites or num_experts]
    ids = np.stack([rng.permutation(pool)[:k] for _ in range(rows)]).astype(np.int32)
    live = rng.random(rows) < live_share
    x = rng.normal(size=(rows, D))
    x[~live], ids[~live] = np.nan, 1000
    return {
        "x": jnp.asarray(x, dtype),
        "ids": jnp.asarray(ids),
        "weights": jnp.asarray(rng.random((rows, k)), jnp.float32),
        "live": jnp.asarray(live),
        "gate_up": jnp.asarray(rng.normal(size=(num_experts, 2 * F, D)) / np.sqrt(D), dtype),
        "down": jnp.asarray(rng.normal(size=(num_experts, D, F)) / np.sqrt(F), dtype),
    }


def oracle(x, ids, weights, live, gate_up, down):
    """The definition, row by row in NumPy's float64; rounds where the forms round."""
    gate_up, down = np.asarray(gate_up, np.float64), np.asarray(down, np.float64)
    out = np.zeros(x.shape)
    for t in np.flatnonzero(live):
        for e, w in zip(np.asarray(ids)[t], np.asarray(weights)[t], strict=True):
            gate, up = np.split(gate_up[e] @ np.asarray(x, np.float64)[t], 2)
            a = np.asarray(jnp.asarray(gate / (1 + np.exp(-gate)) * up, x.dtype), np.float64)
            out[t] += w * (down[e] @ a)
    return out


def assert_close(got, expected, dtype):
    bound = TOLERANCE[dtype] * max(1.0, np.abs(expected).max(initial=0.0))
    np.testing.assert_allclose(np.asarray(got, np.float64), expected, rtol=0, atol=bound)


def split(layer):
    return {**layer, "gate_up": tuple(layer["gate_up"]), "down": tuple(layer["down"])}


SHAPES = [  # rows, k, experts, block
    (1, 2, 8, 2),
    (2, 3, 12, 8),
    (3, 8, 64, 2),
    (8, 1, 8, 8),
    (16, 4, 60, 8),
    (17, 8, 64, 32),
    (70, 2, 8, 32),
]


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize(("rows", "k", "num_experts", "block"), SHAPES)
@settings(max_examples=12, deadline=None)
@given(
    live_share=st.sampled_from([0.0, 0.5, 1.0]),
    crowded=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_all_forms_equal_the_oracle(rows, k, num_experts, block, dtype, live_share, crowded, seed):
    favourites = k if crowded else None  # all rows on the same experts, most experts empty
    layer = draw(
        rows, k, num_experts, live_share=live_share, dtype=dtype, seed=seed, favourites=favourites
    )
    expected = oracle(**layer)
    combine = combine_matrix(layer["ids"], layer["weights"], layer["live"], num_experts)
    reference = expert_ffn_reference(layer["x"], combine, layer["gate_up"], layer["down"])
    dense, grouped = loop_forms(**layer, block=block)
    for got in (reference, dense, grouped):
        assert got.dtype == dtype
        assert_close(got, expected, dtype)
        np.testing.assert_array_equal(np.asarray(got, np.float32)[~np.asarray(layer["live"])], 0)


@pytest.mark.parametrize("rows", [1, 5, 40])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_weights_apart_equal_stacked_weights(rows, dtype):
    layer = draw(rows, 3, 12, live_share=0.8, dtype=dtype, seed=rows)
    expected = oracle(**layer)
    for got in loop_forms(**split(layer), block=8):
        assert_close(got, expected, dtype)


@pytest.mark.parametrize("apart", [False, True])
def test_experts_not_in_use_are_not_read(apart):
    layer = draw(9, 2, 8, live_share=1.0, dtype=jnp.float32, seed=0, favourites=3)
    expected = oracle(**layer)
    poisoned = {name: layer[name].at[3:].set(jnp.nan) for name in ("gate_up", "down")}
    layer = {**layer, **poisoned}
    for got in loop_forms(**(split(layer) if apart else layer), block=4):
        assert_close(got, expected, jnp.float32)


def test_an_expert_that_only_others_chose_cannot_reach_a_row():
    layer = draw(2, 1, 8, live_share=1.0, dtype=jnp.float32, seed=0)
    layer["ids"] = jnp.asarray([[0], [1]])
    layer["gate_up"] = layer["gate_up"].at[1].set(jnp.nan)
    combine = combine_matrix(layer["ids"], layer["weights"], layer["live"], 8)
    reference = expert_ffn_reference(layer["x"], combine, layer["gate_up"], layer["down"])
    for got in (reference, *loop_forms(**layer, block=4)):
        assert np.isfinite(got[0]).all()
        assert np.isnan(got[1]).all()


def test_combine_matrix_puts_weights_at_ids():
    got = combine_matrix(
        jnp.asarray([[2, 0], [1, 3]]),
        jnp.asarray([[0.75, 0.25], [0.5, 0.5]]),
        jnp.asarray([True, False]),
        4,
    )
    np.testing.assert_array_equal(got, [[0.25, 0, 0.75, 0], [0, 0, 0, 0]])


@on_cpu
@pytest.mark.parametrize("rows", [1, 4, 16, 64])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_no_expert_is_copied_or_converted(rows, dtype):
    """Temporaries of the compiled program stay below one expert, so none can have been copied."""
    width, hidden, num_experts, k = 2048, 1024, 8, 2
    layer = (
        jax.ShapeDtypeStruct((rows, width), dtype),
        jax.ShapeDtypeStruct((rows, k), jnp.int32),
        jax.ShapeDtypeStruct((rows, k), jnp.float32),
        jax.ShapeDtypeStruct((rows,), bool),
        (jax.ShapeDtypeStruct((2 * hidden, width), dtype),) * num_experts,
        (jax.ShapeDtypeStruct((width, hidden), dtype),) * num_experts,
    )
    compiled = loop_forms.lower(*layer, block=32).compile()
    smallest = width * hidden * jnp.dtype(dtype).itemsize
    assert compiled.memory_analysis().temp_size_in_bytes < smallest
