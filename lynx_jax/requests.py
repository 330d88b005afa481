"""What is asked of the engine, and who runs in which slot. Plain Python, no arrays."""

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from lynx_jax.errors import InputError

type FinishReason = Literal["eos", "stop", "length"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen from the logits.

    Applied in this order: repetition penalty, temperature, top-k, top-p over what top-k left,
    min-p; the transformers library orders them so too.

    Attributes:
      temperature: 0 takes the likeliest token; above 0, logits are divided by it and sampled.
      top_k: sample from the k likeliest tokens; 0 for all.
      top_p: sample from the fewest likeliest tokens that together have this probability.
      min_p: leave out tokens less likely than this share of the likeliest one's probability.
      repetition_penalty: logits of tokens that the prompt or the text holds are divided by it where
        positive, multiplied where negative; 1 for none.
      seed: with the number of tokens before, fixes the random numbers of a request.

    Raises:
      InputError: a value is out of its range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        positive = math.isfinite(self.repetition_penalty) and self.repetition_penalty > 0
        _require(0 <= self.temperature <= 1e6, "temperature from 0 to 1e6", self.temperature)
        _require(0 <= self.top_k < 2**31, "top_k of 0 (off) to 2147483647", self.top_k)
        _require(0 < self.top_p <= 1, "top_p above 0 and up to 1", self.top_p)
        _require(0 <= self.min_p <= 1, "min_p from 0 to 1", self.min_p)
        _require(positive, "repetition_penalty above 0", self.repetition_penalty)
        _require(0 <= self.seed < 2**32, "seed from 0 to 4294967295", self.seed)


@dataclass(frozen=True, slots=True)
class Request:
    """One text to generate.

    Attributes:
      prompt_ids: at least one token id.
      max_new_tokens: tokens to generate at most, at least 1.
      sampling: how tokens are chosen.
      ignore_eos: go on past end-of-text tokens.

    Raises:
      InputError: the prompt is empty, or ``max_new_tokens`` below 1.
    """

    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    sampling: SamplingParams = field(default_factory=SamplingParams)
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        _require(len(self.prompt_ids) > 0, "prompt of at least one token", "an empty one")
        _require(self.max_new_tokens >= 1, "max_new_tokens of at least 1", self.max_new_tokens)

    @property
    def length(self) -> int:
        """Tokens of prompt and text together, where it ends by length."""
        return len(self.prompt_ids) + self.max_new_tokens


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One generated token.

    Attributes:
      request_id: what ``submit`` returned.
      token_id: the token; also the one that ends the text.
      finish_reason: None while the request runs on.
    """

    request_id: int
    token_id: int
    finish_reason: FinishReason | None


@dataclass(slots=True)
class Running:
    """A request in a slot. ``dispatched`` counts tokens asked of the device, read or not."""

    request_id: int
    request: Request
    dispatched: int = 0


class Scheduler:
    """First come, first served: requests wait until one of the slots is free.

    Args:
      slots: requests that run at a time.
    """

    def __init__(self, slots: int) -> None:
        self._waiting: deque[tuple[int, Request]] = deque()
        self._slots: list[Running | None] = [None] * slots
        self._next_id = 0

    @property
    def busy(self) -> bool:
        """Whether any request waits or runs."""
        return bool(self._waiting) or any(self._slots)

    def can_admit(self) -> bool:
        """Whether a request waits and a slot is free."""
        return bool(self._waiting) and None in self._slots

    def wants_step(self) -> bool:
        """Whether any running request may still need a token that is not dispatched."""
        return any(
            running.dispatched < running.request.max_new_tokens
            for running in self._slots
            if running is not None
        )

    def submit(self, request: Request) -> int:
        """Queue a request; its id, counted from 0."""
        request_id, self._next_id = self._next_id, self._next_id + 1
        self._waiting.append((request_id, request))
        return request_id

    def admit(self) -> tuple[int, Running]:
        """Put the request that waits longest into the lowest free slot."""
        slot = self._slots.index(None)
        running = self._slots[slot] = Running(*self._waiting.popleft())
        return slot, running

    def running(self, slot: int) -> Running | None:
        """Who runs in a slot."""
        return self._slots[slot]

    def count_dispatch(self) -> None:
        """Note that one more token of every running request is asked of the device."""
        for running in filter(None, self._slots):
            running.dispatched += 1

    def release(self, slot: int) -> None:
        """Free a slot."""
        self._slots[slot] = None

    def cancel(self, request_id: int) -> int | None:
        """Forget a request; the slot that it ran in, freed, or None if it only waited."""
        self._waiting = deque(entry for entry in self._waiting if entry[0] != request_id)
        for slot, running in enumerate(self._slots):
            if running is not None and running.request_id == request_id:
                self.release(slot)
                return slot
        return None


def _require(condition: bool, expected: str, got: object) -> None:
    if not condition:
        raise InputError(f"expected {expected}, got {got}")
