"""Grouped products, interpreted on CPU, against float32 references."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jax.experimental.pallas import mosaic_gpu as plgpu

from lynx_jax.pallas_kernels.expert_ffn import expert_ffn_reference
from lynx_jax.pallas_kernels.expert_form import SWIGLU, ExpertForm, ExpertWeights
from lynx_jax.pallas_kernels.grouped_product import (
    ROWS,
    STAGES,
    grouped_gate_up,
    grouped_product,
)
from lynx_jax.pallas_kernels.grouping import blocks_of_groups
from lynx_jax.pallas_kernels.ragged import ragged_by_expert
from tests.pallas_kernels.pipelines import keeps_operands

ONE_ROUNDING = 2.0**-8  # to bfloat16, relative
INTERPRET = plgpu.InterpretGPUParams()
GROUPS, MAX_ROWS, INPUTS, OUTPUTS = 4, 200, 320, 256
CLAMPED = ExpertForm("clamped_swiglu")

group_sizes = st.lists(st.integers(0, MAX_ROWS), min_size=GROUPS, max_size=GROUPS).map(
    lambda shares: np.diff([0, *np.sort(np.minimum(np.cumsum(shares), MAX_ROWS))])
)


def normal(rng, *shape):
    return jnp.asarray(rng.normal(size=shape), jnp.bfloat16)


@cache
def run(name, form=None, races=False):
    interpret = plgpu.InterpretGPUParams(detect_races=races)
    kernel = {"product": grouped_product, "gate_up": partial(grouped_gate_up, form=form)}[name]

    @jax.jit
    def call(x, sizes, weight, *bias):
        tiles = blocks_of_groups(sizes, MAX_ROWS, ROWS)
        return kernel(x, tiles, weight, *bias, interpret=interpret), tiles.shift

    return call


def draw(seed, sizes):
    """Rows (NaN past the last group's), sizes, matrices and biases of each group."""
    rng = np.random.default_rng(seed)
    x = normal(rng, MAX_ROWS + ROWS, INPUTS).at[int(np.sum(sizes)) :].set(jnp.nan)
    weight = normal(rng, GROUPS, OUTPUTS, INPUTS) / 8
    return x, jnp.asarray(sizes, jnp.int32), weight, 4 * normal(rng, GROUPS, OUTPUTS)


def of_rows(found, sizes):
    """Results in the order of the rows, in float32."""
    y, shift = found
    group = np.repeat(np.arange(GROUPS), sizes)
    return np.asarray(y, np.float32)[np.arange(len(group)) + np.asarray(shift)[group]]


def in_float32(x, sizes, weight):
    group = np.repeat(np.arange(GROUPS), sizes)
    x, weight = np.asarray(x, np.float32), np.asarray(weight, np.float32)
    return np.einsum("ri,roi->ro", x[: len(group)], weight[group]), group


def assert_one_rounding(found, wanted):
    scale = np.max(np.abs(wanted), initial=1e-3)
    np.testing.assert_allclose(found, wanted, rtol=ONE_ROUNDING, atol=1e-5 * scale)


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 2**32 - 1), group_sizes)
@example(0, np.array([0, ROWS, MAX_ROWS - ROWS, 0]))
@example(1, np.array([0, 0, 0, 0]))
def test_product_is_one_rounding_from_float32(seed, sizes):
    x, counts, weight, _ = draw(seed, sizes)
    wanted, _ = in_float32(x, sizes, weight)
    assert_one_rounding(of_rows(run("product")(x, counts, weight), sizes), wanted)


@pytest.mark.parametrize("form", [SWIGLU, CLAMPED], ids=["silu", "clamped"])
@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), sizes=group_sizes)
@example(seed=0, sizes=np.array([70, 1, 0, 129]))
def test_gate_up_is_one_rounding_from_float32(form, seed, sizes):
    x, counts, weight, bias = draw(seed, sizes)
    sums, group = in_float32(x, sizes, weight)
    biases = () if form is SWIGLU else (bias,)
    if biases:
        sums = sums + np.asarray(bias, np.float32)[group]
    wanted = form.activate(*jnp.split(jnp.asarray(sums), 2, axis=1))
    found = run("gate_up", form)(x, counts, weight, *(biases or (None,)))
    assert_one_rounding(of_rows(found, sizes), wanted)


@pytest.mark.parametrize("name", ["product", "gate_up"])
def test_nothing_races_and_every_run_gives_the_same(name, capsys):
    sizes = np.array([70, 0, 65, 9])
    arguments = draw(2, sizes)[: 3 if name == "product" else 4]
    first = of_rows(run(name, SWIGLU, races=True)(*arguments), sizes)
    assert "RACE DETECTED" not in capsys.readouterr().out
    np.testing.assert_array_equal(of_rows(run(name, SWIGLU)(*arguments), sizes), first)


@pytest.mark.parametrize("name", ["product", "gate_up"])
def test_operands_stay_until_their_products_are_done(name):
    arguments = draw(0, np.array([1, 0, 0, 0]))[: 3 if name == "product" else 4]
    assert keeps_operands(run(name, SWIGLU), arguments, STAGES)


@pytest.mark.parametrize(("rows", "experts", "k"), [(1, 3, 3), (70, 2, 1), (9, 300, 2)])
@pytest.mark.parametrize("form", [SWIGLU, ExpertForm(scale_input=True), CLAMPED], ids=str)
def test_experts_of_many_rows_equal_the_reference(rows, experts, k, form):
    rng = np.random.default_rng(rows)
    live = np.arange(rows) % 3 != 1
    x = jnp.where(live[:, None], normal(rng, rows, 64), jnp.nan)
    ids = rng.permuted(np.tile(np.arange(experts), (rows, 1)), axis=1)[:, :k]
    weights = rng.random((rows, k)).astype(np.float32)
    combine = np.zeros((rows, experts), np.float32)
    np.put_along_axis(combine, ids, weights * live[:, None], axis=1)
    biases = (4 * normal(rng, experts, 128), normal(rng, experts, 64)) if form is CLAMPED else ()
    layer = ExpertWeights(
        normal(rng, experts, 128, 64) / 8, normal(rng, experts, 64, 64) / 8, *biases
    )
    wanted = jax.jit(partial(expert_ffn_reference, form=form))(
        x.astype(jnp.float32), combine, layer
    )
    run = jax.jit(partial(ragged_by_expert, form=form, interpret=INTERPRET))
    found = np.asarray(run(x, ids, weights, live, layer), np.float32)
    scale = np.abs(wanted).max()
    np.testing.assert_allclose(found, wanted, rtol=2 * ONE_ROUNDING, atol=2 * ONE_ROUNDING * scale)
    assert not found[~live].any()
