"""Plain top-k0: every token uses fewer experts than the model was trained with.

No policy can say this, since under a policy a token uses exactly k. It is a setting of the model:
its mixture blocks use k0 experts, weighed by the family's rule, from the end of the prompt on.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from lynx_jax.models.decoder import DecoderForCausalLM
from lynx_jax.models.moe import LayerRouting, SparseMoeBlock
from lynx_jax.policies import Policy, TopK
from lynx_jax.routing import Phase
from lynx_jax.teacher_forced import TeacherForced


class ReducedAfterPrompt(nnx.Module):
    """A mixture block of which prompts use k experts and decode steps k0; no policy acts on it."""

    def __init__(self, block: SparseMoeBlock, k0: int) -> None:
        self.block = block
        self.reduced = nnx.clone(block)
        self.reduced.k = k0

    def __call__(
        self, x: jax.Array, live: jax.Array, *, phase: Phase | TeacherForced, policy: Policy
    ) -> tuple[jax.Array, LayerRouting]:
        del policy
        if not isinstance(phase, TeacherForced):
            raise TypeError(f"expected teacher-forced decode, got {phase}")
        as_trained, _ = self.block(x, live, phase=phase, policy=TopK())
        y, routing = self.reduced(x, live, phase=phase, policy=TopK())
        in_prompt = jnp.arange(x.shape[1])[:, None] < phase.prompt_tokens
        return jnp.where(in_prompt, as_trained, y), routing


def with_top_k0(model: DecoderForCausalLM, k0: int) -> DecoderForCausalLM:
    """A copy of a model whose mixture blocks use k0 experts in decode steps."""
    copy = nnx.clone(model)
    for layer in copy.layers:
        if isinstance(layer.mlp, SparseMoeBlock):
            layer.mlp = ReducedAfterPrompt(layer.mlp, k0)
    return copy
