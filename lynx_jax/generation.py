"""Text generation from Python: prompts in, typed results and statistics out."""

import logging
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

from lynx_jax.chat import Message
from lynx_jax.detokenize import TextStream
from lynx_jax.engine import Engine
from lynx_jax.errors import InputError
from lynx_jax.harmony import FinalChannel
from lynx_jax.loading import LoadedModel
from lynx_jax.policies import Policy
from lynx_jax.policy_forms import DEFAULT_POLICY
from lynx_jax.policy_spec import parse_policy
from lynx_jax.prompts import Prompt
from lynx_jax.requests import FinishReason, Request, SamplingParams, TokenEvent
from lynx_jax.sampling import SamplingFlags
from lynx_jax.stats import Stats

_log = logging.getLogger(__name__)

_CACHE_STEP = 16


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """What was generated for one prompt.

    Attributes:
      text: the text that follows the prompt, cut before a stop string; no special tokens. Of a
        conversation in the Harmony format (gpt-oss) the final channel only; it is empty where the
        text ended before it.
      token_ids: every generated token, an end-of-text token included.
      prompt_tokens: length of the prompt.
      finish_reason: ``"eos"``, ``"stop"`` (a stop string) or ``"length"``.
    """

    text: str
    token_ids: tuple[int, ...]
    prompt_tokens: int
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True)
class GenerationBatch:
    """Results in the order of the prompts, and what the run cost."""

    results: tuple[GenerationResult, ...]
    stats: Stats


class Generator:
    """Generates with one model and policy; what was compiled serves later calls that fit it.

    Args:
      loaded: what ``lynx_jax.load`` returned.
      policy: a policy, or text such as ``"demand"``, ``"off"`` or ``"oea:k0=4"``.
      max_batch: prompts that decode together; more of them wait for a place.

    Raises:
      InputError: the policy is impossible for this model, or ``max_batch`` below 1.
    """

    def __init__(
        self, loaded: LoadedModel, *, policy: str | Policy = DEFAULT_POLICY, max_batch: int = 16
    ) -> None:
        if max_batch < 1:
            raise InputError(f"expected max_batch of at least 1, got {max_batch}")
        self.policy = _checked_policy(policy, loaded)
        self._loaded = loaded
        self._max_batch = max_batch
        self._engine: Engine | None = None

    def generate(
        self,
        prompts: str | Sequence[Prompt],
        *,
        max_new_tokens: int = 128,
        sampling: SamplingParams | None = None,
        stop: str | Sequence[str] = (),
        ignore_eos: bool = False,
        on_text: Callable[[int, str], None] | None = None,
        on_result: Callable[[int, GenerationResult], None] | None = None,
    ) -> GenerationBatch:
        """Continue every prompt; see ``generate``."""
        prompts = [prompts] if isinstance(prompts, str) else prompts
        if not prompts:
            raise InputError("expected at least one prompt, got none")
        stop = [stop] if isinstance(stop, str) else stop
        sampling = SamplingParams() if sampling is None else sampling
        encoded = [_encode(self._loaded, p, n) for n, p in enumerate(prompts, start=1)]
        requests = [
            self._request(ids, number, max_new_tokens, sampling, ignore_eos)
            for number, ids in enumerate(encoded)
        ]
        self._warn_of_short_texts(requests, max_new_tokens)
        engine = self._engine_for(requests)
        engine.lookahead = not stop
        engine.warm_up(len(request.prompt_ids) for request in requests)
        texts: dict[int, _Text] = {}
        for index, (prompt, request) in enumerate(zip(prompts, requests, strict=True)):
            tokenizer, chat = self._loaded.tokenizer, _is_chat(prompt)
            # An answer to messages stands alone; other text follows on from the prompt.
            context = () if chat else request.prompt_ids
            stream = TextStream(tokenizer, stops=stop, context=context)
            answer = FinalChannel.of(tokenizer) if chat else None
            texts[engine.submit(request)] = _Text(index, request, stream, answer)
        results = _run(engine, texts, on_text, on_result)
        return GenerationBatch(tuple(results[i] for i in range(len(results))), engine.take_stats())

    def _request(
        self,
        ids: Sequence[int],
        number: int,
        max_new_tokens: int,
        sampling: SamplingParams,
        ignore_eos: bool,
    ) -> Request:
        context = self._loaded.config.max_position_embeddings
        if len(ids) >= context:
            raise InputError(
                f"prompt {number + 1} has {len(ids)} tokens, expected at most {context - 1}, so "
                f"that one more fits into the model's context of {context}; shorten it"
            )
        fitting = min(max_new_tokens, context - len(ids))
        seed = (sampling.seed + number) % 2**32
        return Request(tuple(ids), fitting, replace(sampling, seed=seed), ignore_eos)

    def _warn_of_short_texts(self, requests: Sequence[Request], max_new_tokens: int) -> None:
        short = [request for request in requests if request.max_new_tokens < max_new_tokens]
        if short:
            _log.warning(
                "the context of %d tokens leaves less than %d for the texts of %d of %d prompts; "
                "they end there",
                self._loaded.config.max_position_embeddings,
                max_new_tokens,
                len(short),
                len(requests),
            )

    def _engine_for(self, requests: Sequence[Request]) -> Engine:
        """The engine of the last call where it can do this one too, else a new one."""
        slots = min(self._max_batch, len(requests))
        longest = max(request.length for request in requests)
        flags = SamplingFlags.covering(request.sampling for request in requests)
        engine = self._engine
        if (
            engine is not None
            and not engine.busy
            and (engine.slots, engine.flags) == (slots, flags)
            and engine.max_len >= longest
        ):
            return engine
        config = self._loaded.config
        entries = -(-longest // _CACHE_STEP) * _CACHE_STEP
        self._engine = None  # its cache goes before the new one comes
        self._engine = Engine(
            self._loaded.model,
            slots=slots,
            max_len=min(entries, config.max_position_embeddings),
            vocab_size=config.vocab_size,
            policy=self.policy,
            eos_token_ids=self._loaded.eos_token_ids,
            flags=flags,
        )
        return self._engine


def generate(
    loaded: LoadedModel,
    prompts: str | Sequence[Prompt],
    *,
    policy: str | Policy = DEFAULT_POLICY,
    max_new_tokens: int = 128,
    sampling: SamplingParams | None = None,
    stop: str | Sequence[str] = (),
    ignore_eos: bool = False,
    max_batch: int = 16,
    on_text: Callable[[int, str], None] | None = None,
    on_result: Callable[[int, GenerationResult], None] | None = None,
) -> GenerationBatch:
    """Continue every prompt; up to ``max_batch`` of them decode as one batch.

    With a policy other than ``"off"`` a text depends on the texts that decode beside it. To
    generate more than once without compiling again, keep a ``Generator``.

    Args:
      loaded: what ``lynx_jax.load`` returned.
      prompts: one text, or several prompts, each a text, token ids, or messages (mappings with
        ``role`` and ``content``) for the checkpoint's chat template.
      policy: a policy, or text such as ``"demand"``, ``"off"`` or ``"oea:k0=4"``.
      max_new_tokens: tokens to generate at most; the context of the model is a limit too.
      sampling: how tokens are chosen; None for the likeliest ones. Prompt i, counted from 0,
        takes ``seed + i``.
      stop: a string, or several, that ends a text and is cut off. A special token's text works too.
      ignore_eos: go on past end-of-text tokens.
      max_batch: prompts that decode together; more of them wait for a place.
      on_text: called with a prompt's index and a piece of its text, as soon as it is certain.
      on_result: called with a prompt's index and its result, as soon as it ends.

    Raises:
      InputError: a prompt is empty or too long, or a value is out of range.
    """
    generator = Generator(loaded, policy=policy, max_batch=max_batch)
    return generator.generate(
        prompts,
        max_new_tokens=max_new_tokens,
        sampling=sampling,
        stop=stop,
        ignore_eos=ignore_eos,
        on_text=on_text,
        on_result=on_result,
    )


class _Text:
    """A text that grows from the engine's events."""

    def __init__(
        self, index: int, request: Request, stream: TextStream, answer: FinalChannel | None
    ) -> None:
        self.index = index
        self._request = request
        self._stream = stream
        self._answer = answer  # shows the part that is meant for the user; None for all
        self._pieces: list[str] = []
        self._token_ids: list[int] = []

    def add(self, event: TokenEvent) -> tuple[str, FinishReason | None]:
        """The piece of text that became certain, and why the text ends, if it does."""
        self._token_ids.append(event.token_id)
        reason = event.finish_reason
        shown = self._answer is None or self._answer.shows(event.token_id)
        piece = self._stream.push(event.token_id) if shown and reason != "eos" else ""
        if reason is not None:
            piece += self._stream.finish()
        self._pieces.append(piece)
        return piece, "stop" if self._stream.stopped else reason

    def result(self, reason: FinishReason) -> GenerationResult:
        """The finished text."""
        return GenerationResult(
            text="".join(self._pieces),
            token_ids=tuple(self._token_ids),
            prompt_tokens=len(self._request.prompt_ids),
            finish_reason=reason,
        )


def _run(
    engine: Engine,
    texts: Mapping[int, _Text],
    on_text: Callable[[int, str], None] | None,
    on_result: Callable[[int, GenerationResult], None] | None,
) -> dict[int, GenerationResult]:
    """Drive the engine until every text has ended; results by the prompt's index."""
    results: dict[int, GenerationResult] = {}
    while engine.busy:
        for event in engine.step():
            text = texts[event.request_id]
            piece, reason = text.add(event)
            if piece and on_text is not None:
                on_text(text.index, piece)
            if reason is None:
                continue
            if event.finish_reason is None:
                engine.cancel(event.request_id)
            results[text.index] = text.result(reason)
            if on_result is not None:
                on_result(text.index, results[text.index])
    return results


def _checked_policy(policy: str | Policy, loaded: LoadedModel) -> Policy:
    k, num_experts = loaded.config.num_experts_per_tok, loaded.config.num_experts
    if isinstance(policy, str):
        return parse_policy(policy, k, num_experts)
    policy.validate(k, num_experts)
    return policy


def _is_chat(prompt: object) -> TypeGuard[Sequence[Message]]:
    return (
        isinstance(prompt, Sequence)
        and not isinstance(prompt, str)
        and len(prompt) > 0
        and isinstance(prompt[0], Mapping)
    )


def _encode(loaded: LoadedModel, prompt: Prompt, number: int) -> list[int]:
    """Token ids of a prompt of any kind."""
    tokenizer = loaded.tokenizer
    if isinstance(prompt, str):
        ids = tokenizer.encode(prompt)
        if not ids and tokenizer.bos_token_id is not None:
            ids = [tokenizer.bos_token_id]
    elif _is_chat(prompt):
        ids = tokenizer.encode(tokenizer.apply_chat_template(prompt), add_special_tokens=False)
    else:
        ids = _checked_ids(prompt, number)
    if not ids:
        raise InputError(
            f"prompt {number} is empty, and this tokenizer has no token that opens a text; "
            "give some text"
        )
    return ids


def _checked_ids(prompt: Any, number: int) -> list[int]:
    try:
        return [operator.index(id_) for id_ in prompt]
    except TypeError:
        raise InputError(
            f"prompt {number}: expected text, token ids or messages, got {prompt!r:.60}"
        ) from None
