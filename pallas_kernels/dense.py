"""Projection by a weight stored [outputs, inputs]."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def linear(
    x: Float[Array, "*batch inputs"], weight: Float[Array, "outputs inputs"]
) -> Float[Array, "*batch outputs"]:
    """``x @ weight.T`` in float32."""
    return jax.lax.dot_general(
        x, weight, (((x.ndim - 1,), (1,)), ((), ())), preferred_element_type=jnp.float32
    )
