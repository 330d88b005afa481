"""Projections against NumPy, and that XLA on CPU copies no weight for them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lynx_jax.pallas_kernels.dense import from_columns, linear, to_columns

ROWS = [1, 2, 3, 16, 32, 33]


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("batch", [*((rows,) for rows in ROWS), (3, 2), (2, 3, 9)])
def test_linear_sums_in_float32(batch, dtype):
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(*batch, 48)), dtype)
    weight = jnp.asarray(rng.normal(size=(20, 48)), dtype)
    got = jax.jit(linear)(x, weight)
    expected = np.asarray(x, np.float64) @ np.asarray(weight, np.float64).T
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("rows", ROWS)
def test_columns_hold_the_rows(rows):
    x = jnp.arange(rows * 5, dtype=jnp.bfloat16).reshape(rows, 5)
    columns = to_columns(x)
    np.testing.assert_array_equal(columns[:, :rows], x.T)
    np.testing.assert_array_equal(columns[:, rows:], 0)
    np.testing.assert_array_equal(from_columns(columns, rows), x)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="about XLA on CPU")
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_no_weight_is_copied_or_converted(rows, dtype):
    x = jax.ShapeDtypeStruct((rows, 1024), dtype)
    weight = jax.ShapeDtypeStruct((2048, 1024), dtype)
    compiled = jax.jit(linear).lower(x, weight).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 4 * rows * (1024 + 2048) + 2**14


@pytest.mark.parametrize("rows", [1, 33])
@pytest.mark.parametrize(("dtype", "exact"), [(jnp.float32, True), (jnp.bfloat16, False)])
def test_a_gpu_is_told_not_to_round_float32_operands(dtype, exact, rows):
    """Else it multiplies them in TF32, and a router in float32 would choose other experts."""
    x, weight = jnp.zeros((rows, 16), dtype), jnp.zeros((8, 16), dtype)
    lowered = jax.jit(linear).trace(x, weight).lower(lowering_platforms=("cuda",)).as_text()
    assert lowered.count("dot_general") == 1
    assert ("precision = [HIGHEST, HIGHEST]" in lowered) == exact
