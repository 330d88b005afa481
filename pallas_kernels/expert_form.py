"""What one expert computes, and its weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

# One array [N, outputs, inputs], or N arrays [outputs, inputs]. XLA on CPU copies an expert out of
# a stacked array before it multiplies; a switch over arrays of their own reads them where they lie.
type Matrices = Float[Array, "_ _ _"] | Sequence[Float[Array, "_ _"]]

_CLAMP, _SLOPE = 7.0, 1.702


class ExpertWeights(NamedTuple):
    """All experts of a layer, in the layout that every backend takes.

    Attributes:
      gate_up: [N, 2F, D] or N arrays [2F, D]; gate's F output rows, then up's.
      down: [N, D, F] or N arrays [D, F].
      gate_up_bias: [N, 2F], ordered as ``gate_up``'s rows; None where experts have no biases.
      down_bias: [N, D]; None where experts have no biases.
    """

    gate_up: Matrices
    down: Matrices
    gate_up_bias: Float[Array, "experts hidden2"] | None = None
    down_bias: Float[Array, "experts width"] | None = None


@dataclass(frozen=True)
class ExpertForm:
    """How an expert's output follows from its weights; static under ``jax.jit``.

    Attributes:
      activation: "silu": ``silu(gate) * up`` (arXiv 2002.05202). "clamped_swiglu" (gpt-oss):
        ``(up + 1) * gate * sigmoid(1.702 * gate)``, gate clamped to at most 7 and up to +-7.
      scale_input: a row's weight multiplies what goes into the expert, not what comes out of it
        (Llama-4).
    """

    activation: Literal["silu", "clamped_swiglu"] = "silu"
    scale_input: bool = False

    def activate(
        self, gate: Float[Array, "*shape"], up: Float[Array, "*shape"]
    ) -> Float[Array, "*shape"]:
        """The hidden activations, in the dtype of ``gate`` and ``up``."""
        if self.activation == "silu":
            return jax.nn.silu(gate) * up
        gate, up = jnp.minimum(gate, _CLAMP), jnp.clip(up, -_CLAMP, _CLAMP)
        return (up + 1) * gate * jax.nn.sigmoid(_SLOPE * gate)


SWIGLU = ExpertForm()
