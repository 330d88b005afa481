"""Top-k with a defined order of ties."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped


def top_k(scores: Shaped[Array, "rows experts"], k: int) -> Int[Array, "rows k"]:
    """Indices of the k largest scores of each row, best first; the lower index wins a tie."""
    # lax.top_k puts 0.0 before -0.0; here they are equal.
    return jax.lax.top_k(jnp.where(scores == 0, 0, scores), k)[1]


def top_k_lexicographic(
    primary: Shaped[Array, "rows experts"], secondary: Float[Array, "rows experts"], k: int
) -> Int[Array, "rows k"]:
    """Indices of the k largest by ``(primary, secondary)``; the lower index wins what still ties.

    Listing a row's experts by ``secondary`` first makes the tie rule of one plain top-k over
    ``primary``, which prefers the earlier place, the rule that is wanted.
    """
    order = top_k(secondary, secondary.shape[-1])
    best = top_k(jnp.take_along_axis(primary, order, axis=-1), k)
    return jnp.take_along_axis(order, best, axis=-1)
