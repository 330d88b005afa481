"""What a policy did to one batch, against plain top-k on the same tokens."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from lynx_jax.evaluation.forced import ForcedBatch, ForcedDecoder, ForcedPass
from lynx_jax.models.decoder import DecoderForCausalLM
from lynx_jax.policies import Policy, TopK


@dataclass(frozen=True)
class BatchScores:
    """One batch under one policy; means over the decode steps.

    Attributes:
      loss: cross-entropy of each row's next tokens, nats.
      divergence: KL(plain top-k || policy) of the next token, nats.
      agreement: share of steps at which both find the same token likeliest.
      retained: each row's gate weight under the policy's experts over that of its plain top-k's,
        mean of the layers too.
      worst_retained: the same of the worst row of each step and layer.
      experts: distinct experts of each layer.
      topk_experts: how many plain top-k would use on the same router logits.
      use: share of steps at which each expert of each layer is read.
    """

    loss: Float[np.ndarray, " rows"]
    divergence: Float[np.ndarray, " rows"]
    agreement: Float[np.ndarray, " rows"]
    retained: Float[np.ndarray, " rows"]
    worst_retained: float
    experts: Float[np.ndarray, " layers"]
    topk_experts: Float[np.ndarray, " layers"]
    use: Float[np.ndarray, "layers experts"]


class BatchScorer:
    """Scores policies on a model; holds one batch's hidden states at a time."""

    def __init__(self, model: DecoderForCausalLM) -> None:
        self._decoder = ForcedDecoder(model)
        self._graphdef, self._state = nnx.split(model)

    def baseline(self, batch: ForcedBatch) -> ForcedPass:
        """Plain top-k on a batch."""
        return self._decoder(batch, TopK())

    def score(
        self,
        batch: ForcedBatch,
        targets: Int[np.ndarray, "rows steps"],
        policy: Policy,
        baseline: ForcedPass,
    ) -> BatchScores:
        """A policy on a batch of equally long texts.

        Args:
          batch: the texts.
          targets: the token after each decode step.
          policy: which experts survive.
          baseline: ``self.baseline(batch)``.
        """
        result = baseline if policy == TopK() else self._decoder(batch, policy)
        loss, divergence, agreement = _compare(
            self._graphdef, self._state, result.hidden, baseline.hidden, jnp.asarray(targets)
        )
        layers = jax.device_get(result.layers)
        retained = np.stack([layer.retained for layer in layers])  # [L, B, S]
        active = np.stack([layer.active for layer in layers])  # [L, S, N]
        return BatchScores(
            loss=np.asarray(loss, np.float64),
            divergence=np.asarray(divergence, np.float64),
            agreement=np.asarray(agreement, np.float64),
            retained=retained.mean(axis=(0, 2), dtype=np.float64),
            worst_retained=float(retained.min(axis=1).mean()),
            experts=active.sum(axis=-1).mean(axis=-1),
            topk_experts=np.stack([layer.num_active_topk for layer in layers]).mean(axis=-1),
            use=active.mean(axis=1),
        )


@partial(jax.jit, static_argnames="graphdef")
def _compare(
    graphdef: nnx.GraphDef[DecoderForCausalLM],
    state: nnx.State[Any, Any],
    hidden: Float[Array, "rows steps width"],
    plain: Float[Array, "rows steps width"],
    targets: Int[Array, "rows steps"],
) -> tuple[Array, Array, Array]:
    """Each row's mean loss, KL divergence and agreement; one step's logits at a time."""
    model = nnx.merge(graphdef, state)

    def step(inputs: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        here, there, target = inputs
        scores, wanted = (jax.nn.log_softmax(model.logits(x)) for x in (here, there))
        loss = -jnp.take_along_axis(scores, target[:, None], axis=-1)[:, 0]
        divergence = jnp.sum(jnp.exp(wanted) * (wanted - scores), axis=-1)
        return loss, divergence, jnp.argmax(scores, -1) == jnp.argmax(wanted, -1)

    by_step = (hidden.swapaxes(0, 1), plain.swapaxes(0, 1), targets.T)
    loss, divergence, agreement = jax.lax.map(step, by_step)
    return loss.mean(axis=0), divergence.mean(axis=0), agreement.mean(axis=0)
