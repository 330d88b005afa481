"""AffinityBinning, the confidence analyzer of Lynx (arXiv 2411.08982)."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def affinity_binning(
    logits: Float[Array, "rows experts"], alpha: float, beta: int
) -> Int[Array, "rows experts"]:
    """Confidence bin of every expert for every row: ``max(ceil(alpha * (z - max z)), -beta)``.

    Args:
      logits: router logits ``z`` in float32, before any softmax or sigmoid. An expert at ``-inf``
        (padding) falls into the last bin.
      alpha: bins per logit; one bin is ``1 / alpha`` logits wide.
      beta: the last bin is ``-beta``; everything further out is clamped into it.

    Returns:
      int32 bins from 0 (level with the row's favourite) down to ``-beta``.
    """
    distance = alpha * (logits - jnp.max(logits, axis=-1, keepdims=True))
    # Clamping first keeps -inf out of the conversion; for values <= 0 ceil is truncation.
    return jnp.maximum(distance, -float(beta)).astype(jnp.int32)
