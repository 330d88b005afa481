"""Continuous batching over slots: compiled programs, and the loop that feeds them.

The engine knows token ids only. It compiles one decode program for all slots and one prefill
program for each length of prompt that it meets, rounded up to a power of two.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from lynx_jax.errors import InputError
from lynx_jax.policies import Policy
from lynx_jax.requests import FinishReason, Request, Running, SamplingParams, Scheduler, TokenEvent
from lynx_jax.sampling import SamplingFlags, SamplingRows
from lynx_jax.stats import Recorder, Stats
from lynx_jax.steps import (
    CausalLM,
    EngineState,
    PrefillOutputs,
    Prompt,
    Settings,
    StepOutputs,
    decode_step,
    init_state,
    prefill_step,
    release_rows,
)

_SHORTEST_BUCKET = 16


class Engine:
    """Generates for many requests at once on one model.

    Requests wait for a slot, are prefilled alone, and then decode together, each until its own end.
    Nothing compiles after ``warm_up`` has seen the prompt lengths.

    Args:
      model: an NNX module. Its arrays are taken once; later changes to it are not seen.
      slots: requests that decode together.
      max_len: longest request, prompt and text together.
      vocab_size: token ids that the model knows.
      policy: which experts of a decode batch survive.
      eos_token_ids: ids that end a text.
      flags: what sampling must be able to do; must cover every request.
      lookahead: dispatch a step before the tokens of the last one are read. Faster, but a request
        that is cancelled takes part in one step more.
    """

    def __init__(
        self,
        model: CausalLM,
        *,
        slots: int,
        max_len: int,
        vocab_size: int,
        policy: Policy,
        eos_token_ids: Iterable[int] = (),
        flags: SamplingFlags | None = None,
        lookahead: bool = True,
    ) -> None:
        flags = SamplingFlags() if flags is None else flags
        self.slots = slots
        self.max_len = max_len
        self.flags = flags
        self.lookahead = lookahead
        self._vocab_size = vocab_size
        self._settings = Settings(policy, tuple(sorted(set(eos_token_ids))), flags)
        graphdef, variables = nnx.split(model)
        self._weights, treedef = jax.tree.flatten(variables)
        self._merge: Callable[[list[jax.Array]], CausalLM] = lambda weights: nnx.merge(
            graphdef, jax.tree.unflatten(treedef, weights)
        )
        self._state = init_state(model, slots, max_len, vocab_size if flags.penalty else None)
        self._scheduler = Scheduler(slots)
        self._prefill: dict[int, jax.stages.Compiled] = {}
        self._decode: jax.stages.Compiled | None = None
        self._release: jax.stages.Compiled | None = None
        self._in_flight: deque[StepOutputs] = deque()
        self._recorder = Recorder()
        self._clock = 0.0

    @property
    def busy(self) -> bool:
        """Whether any request waits or runs, or a dispatched step is not read yet."""
        return self._scheduler.busy or bool(self._in_flight)

    def submit(self, request: Request) -> int:
        """Queue a request; the id that its events carry, counted from 0.

        Raises:
          InputError: it does not fit the model or ``max_len``.
        """
        if request.length > self.max_len:
            raise InputError(
                f"expected prompt and text of at most {self.max_len} tokens together, got "
                f"{len(request.prompt_ids)} and {request.max_new_tokens}"
            )
        wrong = [id_ for id_ in request.prompt_ids if not 0 <= id_ < self._vocab_size]
        if wrong:
            raise InputError(
                f"expected token ids from 0 to {self._vocab_size - 1}, got {wrong[0]}; "
                "the tokenizer may belong to another model"
            )
        return self._scheduler.submit(request)

    def step(self) -> list[TokenEvent]:
        """Go on by one step: prefill what slots are free for, or else decode one token a row.

        Returns an event for each token that was read, in the order of the slots.
        """
        if self._scheduler.can_admit():
            events = []
            while self._in_flight:
                events += self._read(self._in_flight.popleft())
            while self._scheduler.can_admit():
                events.append(self._admit())
            return events
        ahead = 0
        if self._scheduler.wants_step():
            self._dispatch()
            ahead = int(self.lookahead)
        if len(self._in_flight) > ahead:
            return self._read(self._in_flight.popleft())
        return []

    def cancel(self, request_id: int) -> None:
        """End a request; it has no further events."""
        slot = self._scheduler.cancel(request_id)
        if slot is None:
            return
        keep = np.ones(self._state.live.shape, bool)
        keep[slot] = False
        live = self._compiled_release()(self._state.live, keep)
        self._state = replace(self._state, live=live)

    def warm_up(self, prompt_lengths: Iterable[int]) -> None:
        """Compile and run once whatever prompts of these lengths need."""
        assert not self.busy
        buckets = sorted({self._bucket(length) for length in prompt_lengths})
        for bucket in buckets:
            self._compiled_prefill(bucket)
        decode, release = self._compiled_decode(), self._compiled_release()
        with self._compiling():
            for bucket in buckets:
                prompt = _prompt(_NOTHING, 0, bucket)
                self._state, _ = self._prefill[bucket](self._weights, self._state, prompt)
            self._state, _ = decode(self._weights, self._state)
            release(self._state.live, self._state.live).block_until_ready()

    def take_stats(self) -> Stats:
        """Summary of what was measured since the last call; measuring starts anew."""
        recorder, self._recorder = self._recorder, Recorder()
        return recorder.summary()

    def lower_prefill(self, prompt_length: int) -> jax.stages.Lowered:
        """The prefill program of this engine for prompts of a length, lowered."""

        def prefill(
            weights: list[jax.Array], state: EngineState, prompt: Prompt
        ) -> tuple[EngineState, PrefillOutputs]:
            return prefill_step(self._merge(weights), state, prompt, self._settings)

        prompt = _prompt(_NOTHING, 0, self._bucket(prompt_length))
        return jax.jit(prefill, donate_argnums=1).lower(self._weights, self._state, prompt)

    def lower_decode(self) -> jax.stages.Lowered:
        """The decode program of this engine, lowered."""

        def decode(weights: list[jax.Array], state: EngineState) -> tuple[EngineState, StepOutputs]:
            return decode_step(self._merge(weights), state, self._settings)

        return jax.jit(decode, donate_argnums=1).lower(self._weights, self._state)

    def _bucket(self, prompt_length: int) -> int:
        """The padded length that a prompt is prefilled at."""
        power = 1 << (prompt_length - 1).bit_length()
        return min(max(power, _SHORTEST_BUCKET), self.max_len)

    def _admit(self) -> TokenEvent:
        slot, running = self._scheduler.admit()
        request = running.request
        bucket = self._bucket(len(request.prompt_ids))
        program = self._compiled_prefill(bucket)
        start = time.perf_counter()
        prompt = _prompt(request, slot, bucket)
        self._state, outputs = program(self._weights, self._state, prompt)
        outputs = jax.device_get(outputs)
        self._clock = time.perf_counter()
        self._recorder.prefill(len(request.prompt_ids), self._clock - start)
        running.dispatched = 1
        return self._event(slot, running, int(outputs.token), bool(outputs.live))

    def _dispatch(self) -> None:
        program = self._compiled_decode()
        self._state, outputs = program(self._weights, self._state)
        self._in_flight.append(outputs)
        self._scheduler.count_dispatch()

    def _read(self, outputs: StepOutputs) -> list[TokenEvent]:
        """Wait for a step, note what it cost, and tell whose tokens it gave."""
        outputs = jax.device_get(outputs)
        now = time.perf_counter()
        rows = int(outputs.was_live.sum())
        if rows:
            self._recorder.step(
                now - self._clock, rows, outputs.experts.tolist(), outputs.topk_experts.tolist()
            )
        self._clock = now
        events = []
        for slot in np.flatnonzero(outputs.was_live).tolist():
            running = self._scheduler.running(slot)
            if running is not None:
                token, live = int(outputs.tokens[slot]), bool(outputs.live[slot])
                events.append(self._event(slot, running, token, live))
        return events

    def _event(self, slot: int, running: Running, token: int, live: bool) -> TokenEvent:
        reason: FinishReason | None = None
        if not live:
            self._scheduler.release(slot)
            ends = token in self._settings.eos_token_ids and not running.request.ignore_eos
            reason = "eos" if ends else "length"
        return TokenEvent(running.request_id, token, reason)

    def _compiled_prefill(self, bucket: int) -> jax.stages.Compiled:
        if bucket not in self._prefill:
            with self._compiling():
                self._prefill[bucket] = self.lower_prefill(bucket).compile()
        return self._prefill[bucket]

    def _compiled_decode(self) -> jax.stages.Compiled:
        if self._decode is None:
            with self._compiling():
                self._decode = self.lower_decode().compile()
        return self._decode

    def _compiled_release(self) -> jax.stages.Compiled:
        if self._release is None:
            live = self._state.live
            with self._compiling():
                self._release = jax.jit(release_rows).lower(live, live).compile()
        return self._release

    @contextmanager
    def _compiling(self) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self._recorder.compile_seconds += time.perf_counter() - start


def _prompt(request: Request, slot: int, bucket: int) -> Prompt:
    """A request as arrays, its tokens filled up to the bucket's length."""
    ids = request.prompt_ids
    return Prompt(
        tokens=_array([*ids, *[0] * (bucket - len(ids))], np.int32),
        length=_array(len(ids), np.int32),
        slot=_array(slot, np.int32),
        remaining=_array(request.max_new_tokens, np.int32),
        ignore_eos=_array(request.ignore_eos, np.bool_),
        sampling=_sampling_row(request.sampling),
    )


def _sampling_row(params: SamplingParams) -> SamplingRows:
    return SamplingRows(
        temperature=_array(params.temperature, np.float32),
        top_k=_array(params.top_k, np.int32),
        top_p=_array(params.top_p, np.float32),
        min_p=_array(params.min_p, np.float32),
        repetition_penalty=_array(params.repetition_penalty, np.float32),
        seed=_array(params.seed, np.uint32),
        step=_array(0, np.int32),
        seen=None,
    )


def _array(value: float | list[int], dtype: type[np.generic]) -> jax.Array:
    """A device array, made without compiling anything."""
    return jnp.asarray(np.array(value, dtype))


# Warms a prefill program up: it may sample one token only, so no row comes to life.
_NOTHING = Request(prompt_ids=(0,), max_new_tokens=1)
