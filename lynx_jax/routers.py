"""What a family's router does with its logits, apart from choosing and remapping.

A router keeps apart the scores it chooses by and the scores it weighs by, because families differ
in both; after remapping, weights are made again by the family's own rule at the final experts.
"""

from dataclasses import dataclass
from typing import Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


class Router(Protocol):
    """A family's rule, frozen and hashable. All arrays are float32."""

    def choice_scores(self, logits: Float[Array, "rows experts"]) -> Float[Array, "rows experts"]:
        """Scores on the scale of logits that experts are ranked and binned by."""
        ...

    def weight_scores(self, logits: Float[Array, "rows experts"]) -> Float[Array, "rows experts"]:
        """Probabilities that weights are made from."""
        ...

    def weights(
        self,
        weight_scores: Float[Array, "rows experts"],
        ids: Int[Array, "rows k"],
        top_ids: Int[Array, "rows k"],
    ) -> Float[Array, "rows k"]:
        """Combine weights of the final ``ids``, given the plain top-k's ``top_ids``."""
        ...


@dataclass(frozen=True)
class SoftmaxRouter:
    """Softmax over all experts, then top-k.

    Attributes:
      renormalize: True (Mixtral, Qwen3-MoE): the k weights are divided by their sum. False
        (Qwen2-MoE, OLMoE, DeepSeek-V2): they are scaled to the sum that the plain top-k's weights
        have, so that remapping leaves the size of the layer's output as it was.
    """

    renormalize: bool

    def choice_scores(self, logits: Float[Array, "rows experts"]) -> Float[Array, "rows experts"]:
        return logits

    def weight_scores(self, logits: Float[Array, "rows experts"]) -> Float[Array, "rows experts"]:
        return jax.nn.softmax(logits, axis=-1)

    def weights(
        self,
        weight_scores: Float[Array, "rows experts"],
        ids: Int[Array, "rows k"],
        top_ids: Int[Array, "rows k"],
    ) -> Float[Array, "rows k"]:
        chosen = jnp.take_along_axis(weight_scores, ids, axis=-1)
        total = jnp.sum(chosen, axis=-1, keepdims=True)
        if self.renormalize:
            return chosen / total
        top = jnp.take_along_axis(weight_scores, top_ids, axis=-1)
        return chosen * (jnp.sum(top, axis=-1, keepdims=True) / total)
