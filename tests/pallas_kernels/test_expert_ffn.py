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
from lynx_jax.pallas_kernels.expert_form import ExpertForm, ExpertWeights

D, F = 24, 16
TOLERANCE = {jnp.float32: 1e-5, jnp.bfloat16: 1e-2}  # of the largest output: sums, then rounding
on_cpu = pytest.mark.skipif(jax.default_backend() != "cpu", reason="about XLA on CPU")


SILU = ExpertForm()
FORMS = [
    pytest.param(SILU, id="silu"),
    pytest.param(ExpertForm(scale_input=True), id="scaled input"),
    pytest.param(ExpertForm("clamped_swiglu"), id="clamped"),
]


@partial(jax.jit, static_argnames=("form", "block"))
def loop_forms(x, ids, weights, live, experts, *, form=SILU, block):
    """Outputs of the dense and of the grouped form, as lynx_jax.backends calls them."""
    num_experts = len(experts.gate_up)
    chosen = jnp.any((ids[..., None] == jnp.arange(num_experts)) & live[:, None, None], axis=(0, 1))
    active = jnp.argsort(~chosen, stable=True)
    combine = combine_matrix(ids, weights, live, num_experts)
    dense = dense_over_active(x, combine, active, jnp.sum(chosen), experts, form)
    return dense, grouped_by_expert(x, ids, weights, live, experts, form, block=block)


def reference_form(x, ids, weights, live, experts, *, form=SILU):
    combine = combine_matrix(ids, weights, live, len(experts.gate_up))
    return expert_ffn_reference(x, combine, experts, form)


def draw(rows, k, num_experts, *, live_share, dtype, seed, favourites=None, bias=False):
    """Random layer input; rows not live hold NaN and, of odd seeds, ids that no expert has."""
    rng = np.random.default_rng(seed)
    pool = np.arange(num_experts)[: favourites or num_experts]
    ids = np.stack([rng.permutation(pool)[:k] for _ in range(rows)]).astype(np.int32)
    live = rng.random(rows) < live_share
    x = 4 * rng.normal(size=(rows, D))  # far enough out for the clamps to bite
    x[~live] = np.nan
    if seed % 2:
        ids[~live] = 1000
    return {
        "x": jnp.asarray(x, dtype),
        "ids": jnp.asarray(ids),
        "weights": jnp.asarray(rng.random((rows, k)), jnp.float32),
        "live": jnp.asarray(live),
        "experts": ExpertWeights(
            jnp.asarray(rng.normal(size=(num_experts, 2 * F, D)) / np.sqrt(D), dtype),
            jnp.asarray(rng.normal(size=(num_experts, D, F)) / np.sqrt(F), dtype),
            jnp.asarray(rng.normal(size=(num_experts, 2 * F)), dtype) if bias else None,
            jnp.asarray(rng.normal(size=(num_experts, D)), dtype) if bias else None,
        ),
    }


def oracle(x, ids, weights, live, experts, form=SILU):
    """The definition, row by row in NumPy's float64; rounds where the forms round."""
    gate_up, down, gate_up_bias, down_bias = (
        None if w is None else np.asarray(w, np.float64) for w in experts
    )
    out = np.zeros(x.shape)
    for t in np.flatnonzero(live):
        for e, w in zip(np.asarray(ids)[t], np.asarray(weights)[t], strict=True):
            row = np.asarray(x[t] * w if form.scale_input else x[t], np.float64)
            row = np.asarray(jnp.asarray(row, x.dtype), np.float64)
            h = gate_up[e] @ row + (0 if gate_up_bias is None else gate_up_bias[e])
            a = np.asarray(jnp.asarray(activation(*np.split(h, 2), form), x.dtype), np.float64)
            y = down[e] @ a + (0 if down_bias is None else down_bias[e])
            out[t] += y if form.scale_input else w * y
    return out


def activation(gate, up, form):
    if form.activation == "silu":
        return gate / (1 + np.exp(-gate)) * up
    gate, up = np.minimum(gate, 7.0), np.clip(up, -7.0, 7.0)
    return (up + 1.0) * gate / (1 + np.exp(-1.702 * gate))


def assert_close(got, expected, dtype):
    bound = TOLERANCE[dtype] * max(1.0, np.abs(expected).max(initial=0.0))
    np.testing.assert_allclose(np.asarray(got, np.float64), expected, rtol=0, atol=bound)


def split(layer):
    experts = layer["experts"]
    apart = experts._replace(gate_up=tuple(experts.gate_up), down=tuple(experts.down))
    return {**layer, "experts": apart}


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
    for got in (reference_form(**layer), *loop_forms(**layer, block=block)):
        assert got.dtype == dtype
        assert_close(got, expected, dtype)
        np.testing.assert_array_equal(np.asarray(got, np.float32)[~np.asarray(layer["live"])], 0)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rows", [1, 6])
def test_expert_forms_and_biases(rows, form, bias, apart):
    layer = draw(rows, 3, 8, live_share=0.8, dtype=jnp.float32, seed=rows, bias=bias)
    expected = oracle(**layer, form=form)
    looped = loop_forms(**(split(layer) if apart else layer), form=form, block=2)
    for got in (reference_form(**layer, form=form), *looped):
        assert_close(got, expected, jnp.float32)
        np.testing.assert_array_equal(got[~np.asarray(layer["live"])], 0)


@pytest.mark.parametrize("form", FORMS)
def test_expert_forms_in_bfloat16(form):
    layer = draw(5, 2, 8, live_share=1.0, dtype=jnp.bfloat16, seed=0, bias=True)
    expected = oracle(**layer, form=form)
    for got in (reference_form(**layer, form=form), *loop_forms(**layer, form=form, block=4)):
        assert got.dtype == jnp.bfloat16
        assert_close(got, expected, jnp.bfloat16)


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
    experts = layer["experts"]
    layer["experts"] = ExpertWeights(
        experts.gate_up.at[3:].set(jnp.nan), experts.down.at[3:].set(jnp.nan)
    )
    for got in loop_forms(**(split(layer) if apart else layer), block=4):
        assert_close(got, expected, jnp.float32)


def test_an_expert_that_only_others_chose_cannot_reach_a_row():
    layer = draw(2, 1, 8, live_share=1.0, dtype=jnp.float32, seed=0)
    layer["ids"] = jnp.asarray([[0], [1]])
    experts = layer["experts"]
    layer["experts"] = experts._replace(gate_up=experts.gate_up.at[1].set(jnp.nan))
    for got in (reference_form(**layer), *loop_forms(**layer, block=4)):
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
        ExpertWeights(
            (jax.ShapeDtypeStruct((2 * hidden, width), dtype),) * num_experts,
            (jax.ShapeDtypeStruct((width, hidden), dtype),) * num_experts,
        ),
    )
    compiled = loop_forms.lower(*layer, block=32).compile()
    smallest = width * hidden * jnp.dtype(dtype).itemsize
    assert compiled.memory_analysis().temp_size_in_bytes < smallest
