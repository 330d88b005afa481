"""Finiteness and casting of stored weights."""

import numpy as np
import pytest

from lynx_jax.convert.numerics import DTYPES, cast, parse_dtype, require_finite
from lynx_jax.errors import InputError

LARGE = 70_000  # longer than the slices in which the check works


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("index", [0, LARGE - 1, LARGE * 2 - 1])
def test_names_the_tensor_that_is_not_finite(dtype: np.dtype, value: float, index: int) -> None:
    x = np.ones((2, LARGE), dtype)
    x.reshape(-1)[index] = value
    with pytest.raises(InputError, match=rf"tensor t\.w holds {value}") as caught:
        require_finite(x, "t.w")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_extreme_finite_numbers_pass(dtype: np.dtype) -> None:
    largest = {"float32": 3.4028235e38, "bfloat16": 3.3895314e38, "float16": 65504.0}[dtype.name]
    x = np.array([largest, -largest, 0.0, -0.0, 1e-40, 6e-8], np.float64).astype(dtype)
    assert float(x[0]) == pytest.approx(largest)
    require_finite(x, "t")
    require_finite(np.empty((0,), dtype), "t")


def test_cast_rounds_to_nearest_even() -> None:
    x = np.array([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20], np.float32)
    expected = [1.0, 1 + 2**-6, 1 + 2**-7]
    assert cast(x, DTYPES["bfloat16"], "t").astype(np.float32).tolist() == expected


def test_cast_to_the_same_dtype_is_the_same_array() -> None:
    x = np.ones(3, np.float16)
    assert cast(x, DTYPES["float16"], "t") is x


@pytest.mark.parametrize(
    ("value", "source", "target"),
    [(1e5, "float32", "float16"), (1e5, "bfloat16", "float16"), (3.4e38, "float32", "bfloat16")],
)
def test_cast_beyond_the_range(value: float, source: str, target: str) -> None:
    x = np.array([0.5, value], DTYPES[source])
    with pytest.raises(InputError, match=f"t has values beyond the range of {target}"):
        cast(x, DTYPES[target], "t")


def test_unknown_dtype() -> None:
    with pytest.raises(InputError, match="'int8' is not supported; expected one of float32"):
        parse_dtype("int8")
