"""Dtypes of stored weights: names, moving bits fast, finiteness, casting."""

import ml_dtypes
import numpy as np

from lynx_jax.errors import InputError

DTYPES: dict[str, np.dtype] = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
}

# All exponent bits set: NaN or infinity.
_EXPONENTS = {"float32": 0x7F800000, "bfloat16": 0x7F80, "float16": 0x7C00}
_SLICE = 1 << 16  # elements whose scratch copy stays in the processor's cache


def parse_dtype(name: str) -> np.dtype:
    """The dtype of a name such as ``"bfloat16"``.

    Raises:
      InputError: no weight can have it.
    """
    if name not in DTYPES:
        raise InputError(f"dtype {name!r} is not supported; expected one of {', '.join(DTYPES)}")
    return DTYPES[name]


def bits(x: np.ndarray) -> np.ndarray:
    """The same memory as unsigned integers, which numpy moves and compares faster than bfloat16."""
    return x.view(np.dtype(f"u{x.dtype.itemsize}"))


def require_finite(x: np.ndarray, name: str) -> None:
    """Raise ``InputError`` naming the tensor if a contiguous float array holds NaN or infinity."""
    flat = bits(x).reshape(-1)
    exponent = flat.dtype.type(_EXPONENTS[x.dtype.name])
    scratch = np.empty(min(_SLICE, flat.size), flat.dtype)
    for start in range(0, flat.size, _SLICE):
        part = flat[start : start + _SLICE]
        exponents = np.bitwise_and(part, exponent, out=scratch[: part.size])
        if exponents.max() == exponent:
            value = x.reshape(-1)[start + int(exponents.argmax())]
            raise InputError(
                f"tensor {name} holds {value}, expected finite numbers; the checkpoint is damaged"
            )


def cast(x: np.ndarray, dtype: np.dtype, name: str) -> np.ndarray:
    """The array in another dtype, rounded to nearest even; the same array if it has it already.

    Raises:
      InputError: a value is beyond the range of the dtype.
    """
    if x.dtype == dtype:
        return x
    with np.errstate(over="ignore"):
        result = x.astype(dtype)
    try:
        require_finite(result, name)
    except InputError as e:
        raise InputError(
            f"tensor {name} has values beyond the range of {dtype.name}; choose another dtype"
        ) from e
    return result
