"""The two device programs of generation as pure functions: prefill of a prompt, one decode step.

Both take the model and the whole state of all slots and return the state that follows. Whether a
row runs is known on the device, so a step can be dispatched before the last one's tokens are read.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PyTree

from lynx_jax.models.moe import LayerRouting
from lynx_jax.policies import Policy
from lynx_jax.routing import Phase
from lynx_jax.sampling import SamplingFlags, SamplingRows, sample

type Cache = PyTree[Array]


class CausalLM(Protocol):
    """What the engine asks of a model; see ``lynx_jax.models.decoder.DecoderForCausalLM``."""

    def forward(
        self,
        tokens: Int[Array, "rows tokens"],
        positions: Int[Array, "rows tokens"],
        live: Bool[Array, "rows tokens"],
        cache: Cache | None,
        *,
        phase: Phase,
        policy: Policy,
    ) -> tuple[Float[Array, "rows tokens width"], Cache, tuple[LayerRouting, ...]]: ...

    def logits(self, hidden: Float[Array, "*batch width"]) -> Float[Array, "*batch vocab"]: ...

    def init_cache(self, rows: int, entries: int) -> Cache: ...


@dataclass(frozen=True)
class Settings:
    """What both programs are compiled for; static.

    Attributes:
      policy: which experts of a decode batch survive; prefill does not look at it.
      eos_token_ids: ids that end a text, ascending.
      flags: what sampling has to be able to do.
    """

    policy: Policy
    eos_token_ids: tuple[int, ...]
    flags: SamplingFlags


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class EngineState:
    """All slots; one row each. Donated from step to step.

    Attributes:
      cache: keys and values; arrays [rows, entries, ...].
      tokens: int32, the last sampled token; not in the cache yet.
      positions: int32, where that token goes in the cache, which is how many stand before it.
      live: the row generates. Others take part in no step.
      remaining: int32, tokens that may still be sampled.
      ignore_eos: the row goes on past end-of-text tokens.
      sampling: each row's sampling parameters.
    """

    cache: Cache
    tokens: Int[Array, " rows"]
    positions: Int[Array, " rows"]
    live: Bool[Array, " rows"]
    remaining: Int[Array, " rows"]
    ignore_eos: Bool[Array, " rows"]
    sampling: SamplingRows


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Prompt:
    """One prompt on its way into a slot.

    Attributes:
      tokens: int32, filled up to the bucket's length.
      length: int32, how many of them count.
      slot: int32.
      remaining: int32, tokens that may be sampled, at least 1.
      ignore_eos: as in ``EngineState``.
      sampling: the row's parameters, without ``seen``.
    """

    tokens: Int[Array, " bucket"]
    length: Int[Array, ""]
    slot: Int[Array, ""]
    remaining: Int[Array, ""]
    ignore_eos: Bool[Array, ""]
    sampling: SamplingRows


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class StepOutputs:
    """What the host reads of one decode step.

    Attributes:
      tokens: int32; of meaning where ``was_live``.
      was_live: rows that took part.
      live: rows that go on.
      experts: int32, distinct experts that each MoE layer read.
      topk_experts: int32, how many plain top-k would have read on the same router logits.
    """

    tokens: Int[Array, " rows"]
    was_live: Bool[Array, " rows"]
    live: Bool[Array, " rows"]
    experts: Int[Array, " layers"]
    topk_experts: Int[Array, " layers"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PrefillOutputs:
    """What the host reads of a prefill: the first token (int32), and whether the row goes on."""

    token: Int[Array, ""]
    live: Bool[Array, ""]


def init_state(model: CausalLM, slots: int, entries: int, vocab: int | None) -> EngineState:
    """State with all slots free.

    Args:
      model: makes the cache.
      slots: rows.
      entries: longest sequence, prompt and text together.
      vocab: vocabulary size where a repetition penalty is wanted, else None.
    """

    def zeros(dtype: jnp.dtype) -> Array:
        return jnp.zeros(slots, dtype)

    f32, i32 = jnp.dtype("float32"), jnp.dtype("int32")
    return EngineState(
        cache=model.init_cache(slots, entries),
        tokens=zeros(i32),
        positions=zeros(i32),
        live=zeros(jnp.dtype("bool")),
        remaining=zeros(i32),
        ignore_eos=zeros(jnp.dtype("bool")),
        sampling=SamplingRows(
            temperature=zeros(f32),
            top_k=zeros(i32),
            top_p=zeros(f32),
            min_p=zeros(f32),
            repetition_penalty=zeros(f32),
            seed=zeros(jnp.dtype("uint32")),
            step=zeros(i32),
            seen=None if vocab is None else jnp.zeros((slots, vocab), bool),
        ),
    )


def prefill_step(
    model: CausalLM, state: EngineState, prompt: Prompt, settings: Settings
) -> tuple[EngineState, PrefillOutputs]:
    """Run one prompt through the model, put it into its slot and sample its first token."""
    positions = jnp.arange(prompt.tokens.shape[0], dtype=jnp.int32)
    counts = positions < prompt.length
    hidden, cache, _ = model.forward(
        prompt.tokens[None],
        positions[None],
        counts[None],
        None,
        phase=Phase.PREFILL,
        policy=settings.policy,
    )
    last = lax.dynamic_slice_in_dim(hidden[0], prompt.length - 1, 1)
    row = _with_seen(prompt, state.sampling, counts)
    tokens = sample(model.logits(last), jax.tree.map(lambda leaf: leaf[None], row), settings.flags)
    remaining = prompt.remaining - 1
    ended = _ends(tokens[0], settings.eos_token_ids) & ~prompt.ignore_eos
    live = (remaining > 0) & ~ended
    slot = prompt.slot
    state = EngineState(
        cache=jax.tree.map(lambda rows, new: _into_slot(rows, new, slot), state.cache, cache),
        tokens=state.tokens.at[slot].set(tokens[0]),
        positions=state.positions.at[slot].set(prompt.length),
        live=state.live.at[slot].set(live),
        remaining=state.remaining.at[slot].set(remaining),
        ignore_eos=state.ignore_eos.at[slot].set(prompt.ignore_eos),
        sampling=jax.tree.map(
            lambda rows, new: rows.at[slot].set(new), state.sampling, _sampled(row, tokens[0])
        ),
    )
    return state, PrefillOutputs(token=tokens[0], live=live)


def decode_step(
    model: CausalLM, state: EngineState, settings: Settings
) -> tuple[EngineState, StepOutputs]:
    """One more token for every live row."""
    was_live = state.live
    hidden, cache, layers = model.forward(
        state.tokens[:, None],
        state.positions[:, None],
        was_live[:, None],
        state.cache,
        phase=Phase.DECODE,
        policy=settings.policy,
    )
    tokens = sample(model.logits(hidden[:, 0]), state.sampling, settings.flags)
    remaining = state.remaining - was_live
    ended = _ends(tokens, settings.eos_token_ids) & ~state.ignore_eos
    live = was_live & (remaining > 0) & ~ended
    state = replace(
        state,
        cache=cache,
        tokens=jnp.where(was_live, tokens, state.tokens),
        positions=state.positions + was_live,
        live=live,
        remaining=remaining,
        sampling=_sampled(state.sampling, tokens),
    )
    return state, StepOutputs(
        tokens=tokens,
        was_live=was_live,
        live=live,
        experts=_stack([layer.routing.num_active for layer in layers]),
        topk_experts=_stack([layer.routing.num_active_topk for layer in layers]),
    )


def release_rows(live: Bool[Array, " rows"], keep: Bool[Array, " rows"]) -> Bool[Array, " rows"]:
    """``EngineState.live`` after rows that the host has ended are dropped."""
    return live & keep


def _with_seen(prompt: Prompt, rows: SamplingRows, counts: Bool[Array, " bucket"]) -> SamplingRows:
    """The prompt's sampling row, with its tokens marked where the program has a penalty."""
    if rows.seen is None:
        return prompt.sampling
    seen = jnp.zeros(rows.seen.shape[-1], bool).at[prompt.tokens].max(counts)
    return replace(prompt.sampling, seen=seen)


def _sampled(rows: SamplingRows, tokens: Int[Array, "*rows"]) -> SamplingRows:
    """Sampling state after one more token."""
    seen = rows.seen
    if seen is not None:
        seen = seen | (jnp.arange(seen.shape[-1]) == tokens[..., None])
    return replace(rows, step=rows.step + 1, seen=seen)


def _ends(tokens: Int[Array, "*rows"], eos_token_ids: tuple[int, ...]) -> Bool[Array, "*rows"]:
    """Whether each token is an end-of-text token."""
    return jnp.isin(tokens, jnp.array(eos_token_ids, jnp.int32))


def _into_slot(rows: Array, new: Array, slot: Int[Array, ""]) -> Array:
    """Cache rows [rows, entries, ...] with the first entries of one of them replaced by ``new``."""
    return lax.dynamic_update_slice_in_dim(rows, new.astype(rows.dtype), slot, axis=0)


def _stack(counts: Sequence[Int[Array, ""]]) -> Int[Array, " layers"]:
    return jnp.array(counts, jnp.int32)
