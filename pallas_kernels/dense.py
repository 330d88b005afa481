"""Projection by a weight stored [outputs, inputs], in the form that the device reads fastest.

On CPU, XLA's matrix kernels (YNNPACK) rearrange their right-hand operand before they multiply, and
read the left-hand one as it lies. So for a few rows the weight goes to the left, and the rows stand
to the right of it as columns.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

# Up to this many rows they go in as columns beside the weight on CPU.
_COLUMN_ROWS = 32


def linear(
    x: Float[Array, "*batch inputs"], weight: Float[Array, "outputs inputs"]
) -> Float[Array, "*batch outputs"]:
    """``x @ weight.T`` in float32."""
    rows = x.reshape(-1, x.shape[-1])
    product: Array
    if rows.shape[0] <= _COLUMN_ROWS:
        product = jax.lax.platform_dependent(rows, weight, cpu=_by_columns, default=_by_rows)
    else:
        product = _by_rows(rows, weight)
    return product.reshape(*x.shape[:-1], weight.shape[0])


def to_columns(x: Float[Array, "rows width"]) -> Float[Array, "width columns"]:
    """The rows as columns, to stand to the right of a weight.

    One row of a dtype narrower than float32 gets a column of zeros beside it: XLA on CPU takes a
    product with one column for a matrix-vector one and converts the whole weight to float32 for
    it. In float32 that vector kernel is the best there is.
    """
    first, others = x[:1], x[1:]
    if x.shape[0] == 1 and x.dtype != jnp.float32:
        others = jnp.zeros_like(first)
    # A plain x.T keeps the memory order of x in XLA's eyes, or is merged into the product; the
    # kernels then refuse it, and the weight is converted to float32. Concatenation writes columns.
    return _as_it_is(jnp.concatenate([first.T, others.T], axis=1))


def from_columns(y: Float[Array, "width columns"], rows: int) -> Float[Array, "{rows} width"]:
    """The first ``rows`` columns as rows again."""
    return _as_it_is(y)[:, :rows].T


def times_columns(
    weight: Float[Array, "outputs inputs"], columns: Float[Array, "inputs columns"]
) -> Float[Array, "outputs columns"]:
    """``weight @ columns`` in float32."""
    return jax.lax.dot(weight, columns, preferred_element_type=jnp.float32)


def _by_columns(rows: Array, weight: Array) -> Array:
    return from_columns(times_columns(weight, to_columns(rows)), rows.shape[0])


def _by_rows(rows: Array, weight: Array) -> Array:
    # A GPU rounds float32 operands to TF32 unless it is told not to; routers would choose others.
    exact = jax.lax.Precision.HIGHEST if weight.dtype == jnp.float32 else None
    return jax.lax.dot_general(
        rows,
        weight,
        (((1,), (1,)), ((), ())),
        precision=exact,
        preferred_element_type=jnp.float32,
    )


def _as_it_is(x: Array) -> Array:
    """The array, with what makes it kept apart from what uses it."""
    kept: Array = jax.lax.optimization_barrier(x)  # type: ignore[no-untyped-call]
    return kept
