"""Teacher-forced decode of a batch of texts in one pass."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from lynx_jax.models.decoder import DecoderForCausalLM, DecoderLayer
from lynx_jax.models.moe import LayerRouting
from lynx_jax.policies import Policy
from lynx_jax.teacher_forced import StepRouting, TeacherForced


@dataclass(frozen=True)
class ForcedBatch:
    """Texts that decode together, one a row; their prompts end in the same column.

    Attributes:
      tokens: int32 ids. What is not live may hold anything.
      live: False in front of a prompt that is shorter, after a text's end and in empty rows.
      prompt_tokens: columns of the prompt; later ones are decode steps.
    """

    tokens: Int[np.ndarray, "rows tokens"]
    live: Bool[np.ndarray, "rows tokens"]
    prompt_tokens: int

    @classmethod
    def of_windows(
        cls, tokens: Int[np.ndarray, "rows tokens"], prompt_tokens: int
    ) -> "ForcedBatch":
        """A batch of equally long texts."""
        return cls(tokens, np.ones(tokens.shape, bool), prompt_tokens)


@dataclass(frozen=True)
class ForcedPass:
    """The decode steps of a batch.

    Attributes:
      hidden: states after the final norm of the columns from ``prompt_tokens`` on; the model's
        ``logits`` makes of each what the step of that column gives.
      layers: what each MoE layer's routing did in these columns.
    """

    hidden: Float[Array, "rows steps width"]
    layers: tuple[StepRouting, ...]


class ForcedDecoder:
    """Runs teacher-forced decode; layers of one shape share their compiled program.

    Each layer is compiled by itself, once for a policy and shape of batch, so that many policies on
    a deep model cost little to compile.

    Args:
      model: an NNX module. Its arrays are taken once; later changes to it are not seen.
    """

    def __init__(self, model: DecoderForCausalLM) -> None:
        self._model = model
        self._layers = [nnx.split(layer) for layer in model.layers]

    def __call__(self, batch: ForcedBatch, policy: Policy) -> ForcedPass:
        """Decode the batch's texts under a policy."""
        first = batch.prompt_tokens
        live = jnp.asarray(batch.live)
        positions = jnp.maximum(jnp.cumsum(live, axis=1) - 1, 0)
        x = self._model.embed_tokens(jnp.asarray(batch.tokens))
        routings = []
        for graphdef, state in self._layers:
            x, steps = _layer(graphdef, state, x, positions, live, first, policy)
            if steps is not None:
                routings.append(steps)
        return ForcedPass(self._model.norm(x[:, first:]), tuple(routings))


@partial(jax.jit, static_argnames=("graphdef", "first", "policy"))
def _layer(
    graphdef: nnx.GraphDef[DecoderLayer],
    state: nnx.State[Any, Any],
    x: Array,
    positions: Array,
    live: Array,
    first: int,
    policy: Policy,
) -> tuple[Array, StepRouting | None]:
    layer = nnx.merge(graphdef, state)
    x, _, routing = layer(x, positions, live, None, phase=TeacherForced(first), policy=policy)
    return x, None if routing is None else _steps(routing, first)


def _steps(routing: LayerRouting, first: int) -> StepRouting:
    """A layer's facts about the columns from ``first`` on."""
    steps = routing.steps
    assert steps is not None
    return StepRouting(
        active=steps.active[first:],
        num_active_topk=steps.num_active_topk[first:],
        retained=steps.retained[:, first:],
    )
