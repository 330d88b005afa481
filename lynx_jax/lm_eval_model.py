"""The model ``lynx_jax`` of lm-eval, the language model evaluation harness (lm-evaluation-harness).

Generation tasks decode through the engine, so that the policy acts as it does in service. A policy
makes a text depend on the texts that decode beside it; which ones those are follows from the seed.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

from lynx_jax.arguments import whole_number
from lynx_jax.errors import InputError
from lynx_jax.evaluation.likelihood import Pair, decode_scorer, prefill_scorer
from lynx_jax.generation import Generator
from lynx_jax.loading import load
from lynx_jax.policy_forms import DEFAULT_POLICY
from lynx_jax.requests import SamplingParams

_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
_SCORINGS = {
    "prefill": "one pass with plain top-k; no policy acts on it",
    "decode": "teacher-forced decode from the context's last token on; the policy acts on it",
}

# What lm-eval asks to score: (context, continuation), and both as token ids.
type Scored = tuple[tuple[str, str], list[int], list[int]]


@register_model("lynx_jax")
class LynxJaxLM(TemplateLM):  # type: ignore[misc]
    """A checkpoint under a policy.

    Log-likelihoods are by default those of one pass with plain top-k routing, as prefill computes
    them, since a policy acts in decode only. ``get_model_info`` says in the results which they are.

    Args:
      path: a checkpoint's folder, or ``demo``.
      policy: as ``--policy`` of ``lynx_jax.generate``; acts in generation.
      scoring: ``prefill``, or ``decode``: log-likelihoods under the policy, as if the texts of a
        batch were decoded together from their contexts' last tokens on.
      backend: how experts are computed.
      dtype: see ``lynx_jax.load``.
      batch_size: texts that decode, or are scored, together.
      seed: fixes which texts decode together, and sampling.
      max_gen_toks: tokens to generate where a task does not say.
      max_batch_size, device: accepted because lm-eval passes them; they have no effect.

    Raises:
      InputError: the checkpoint, the policy or a value is not usable.
    """

    def __init__(
        self,
        path: str,
        policy: str = DEFAULT_POLICY,
        scoring: str = "prefill",
        backend: str = "auto",
        dtype: str | None = None,
        batch_size: int | str = 16,
        seed: int = 0,
        max_gen_toks: int = 256,
        max_batch_size: int | None = None,
        device: str | None = None,
    ) -> None:
        super().__init__()
        self._batch_size = _whole("batch_size", batch_size, 1)
        self._seed = _whole("seed", seed, 0)
        self._max_gen_toks = _whole("max_gen_toks", max_gen_toks, 1)
        self._loaded = load(path, backend=backend, dtype=dtype)
        self._generator = Generator(self._loaded, policy=policy, max_batch=self._batch_size)
        if scoring not in _SCORINGS:
            raise InputError(f"expected scoring of {' or '.join(_SCORINGS)}, got {scoring!r}")
        self._scoring = scoring
        model = self._loaded.model
        self._score = (
            prefill_scorer(model)
            if scoring == "prefill"
            else decode_scorer(model, self._generator.policy)
        )

    @property
    def max_length(self) -> int:
        """Longest sequence of the model, in tokens."""
        return self._loaded.config.max_position_embeddings

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text."""
        ids = self._loaded.tokenizer.eos_token_ids or self._loaded.eos_token_ids
        if not ids:
            raise InputError(f"{self._loaded.path}: expected an eos_token_id, found none")
        return min(ids)

    @property
    def prefix_token_id(self) -> int:
        """What stands before a text without context: the opening token, else the ending one."""
        bos = self._loaded.tokenizer.bos_token_id
        return self.eot_token_id if bos is None else bos

    @property
    def tokenizer_name(self) -> str:
        """Tells lm-eval's request cache whose chats it holds."""
        return f"lynx_jax {self._loaded.path.resolve()}"

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """A name of the checkpoint's template for lm-eval's records, if it is in use."""
        return self.tokenizer_name if chat_template else None

    def apply_chat_template(
        self, chat_history: Sequence[Mapping[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """The conversation as the checkpoint's template writes it."""
        return self._loaded.tokenizer.apply_chat_template(
            chat_history, add_generation_prompt=add_generation_prompt
        )

    def get_model_info(self) -> dict[str, Any]:
        """What belongs into the results: lm-eval puts it into their ``config``."""
        return {
            "lynx_jax_policy": str(self._generator.policy),
            "lynx_jax_batch_size": self._batch_size,
            "lynx_jax_seed": self._seed,
            "lynx_jax_loglikelihood": _SCORINGS[self._scoring],
        }

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **kwargs: Any
    ) -> list[int]:
        """Token ids; by default with the opening token, unless the text already begins with it."""
        tokenizer = self._loaded.tokenizer
        if add_special_tokens is None:
            plain = tokenizer.encode(string, add_special_tokens=False)
            add_special_tokens = plain[:1] != [tokenizer.bos_token_id]
        return tokenizer.encode(string, add_special_tokens=add_special_tokens)

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """Texts that continue the contexts, each cut before its first stop string."""
        texts = [""] * len(requests)
        with tqdm(total=len(requests), desc="generating", disable=disable_tqdm) as bar:
            for options, indices in self._groups(requests):
                order = np.random.default_rng(self._seed).permutation(indices).tolist()
                room = self.max_length - options["max_gen_toks"]
                if room < 1:
                    raise InputError(
                        f"expected max_gen_toks below the model's context of {self.max_length}, "
                        f"got {options['max_gen_toks']}"
                    )
                batch = self._generator.generate(
                    [self._prompt(requests[i].args[0], room) for i in order],
                    max_new_tokens=options["max_gen_toks"],
                    stop=[stop for stop in options["until"] if stop],
                    sampling=self._sampling(options),
                    on_result=lambda index, result: bar.update(),
                )
                for i, result in zip(order, batch.results, strict=True):
                    texts[i] = result.text
                    self.cache_hook.add_partial("generate_until", requests[i].args, result.text)
        return texts

    def loglikelihood_rolling(
        self, requests: Sequence[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """Log-likelihoods of whole texts, long ones in windows that share no token to predict."""
        pieces: list[Scored] = []
        owners: list[int] = []
        for index, request in enumerate(requests):
            (text,) = request.args
            windows = get_rolling_token_windows(
                self.tok_encode(text, add_special_tokens=False),
                self.prefix_token_id,
                self.max_length - 1,
                1,
            )
            for window in windows:
                pieces.append((("", text), *make_disjoint_window(window)))
                owners.append(index)
        totals = np.zeros(len(requests))
        scores = self._loglikelihood_tokens(pieces, disable_tqdm=disable_tqdm)
        np.add.at(totals, owners, [score for score, _ in scores])
        for request, total in zip(requests, totals.tolist(), strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        found: list[float] = totals.tolist()
        return found

    def _loglikelihood_tokens(
        self, requests: Sequence[Scored], disable_tqdm: bool = False, **kwargs: Any
    ) -> list[tuple[float, bool]]:
        """Log-likelihood of each continuation, and whether greedy decoding gives it."""
        pairs = [self._fitting(context, continuation) for _, context, continuation in requests]
        found: list[tuple[float, bool]] = [(0.0, True)] * len(requests)
        order = np.random.default_rng(self._seed).permutation(len(requests)).tolist()
        if self._scoring == "prefill":  # batch mates do not matter: little padding, then
            order.sort(key=lambda i: -len(pairs[i][0]) - len(pairs[i][1]))
        with tqdm(total=len(requests), desc="scoring", disable=disable_tqdm) as bar:
            for start in range(0, len(order), self._batch_size):
                batch = order[start : start + self._batch_size]
                scores = self._score([pairs[i] for i in batch], self._batch_size)
                for i, score in zip(batch, scores, strict=True):
                    found[i] = score
                    self.cache_hook.add_partial("loglikelihood", requests[i][0], score)
                bar.update(len(batch))
        return found

    def _fitting(self, context: list[int], continuation: list[int]) -> Pair:
        """A pair without the beginning that the model's context has no room for."""
        room = self.max_length - len(continuation)
        if room < 1:
            return continuation[-self.max_length :][:1], continuation[1 - self.max_length :]
        return context[-room:], continuation

    def _prompt(self, text: str, room: int) -> list[int]:
        """The end of a context that leaves room for the text; the opening token where empty."""
        return (self.tok_encode(text) or [self.prefix_token_id])[-room:]

    def _groups(self, requests: Sequence[Instance]) -> Iterable[tuple[dict[str, Any], list[int]]]:
        """Requests of equal options, which can run together."""
        groups: dict[str, tuple[dict[str, Any], list[int]]] = {}
        for index, request in enumerate(requests):
            options = dict(normalize_gen_kwargs(request.args[1], self._max_gen_toks))
            groups.setdefault(repr(sorted(options.items())), (options, []))[1].append(index)
        return groups.values()

    def _sampling(self, options: Mapping[str, Any]) -> SamplingParams:
        known = {"until", "max_gen_toks", "do_sample", *_SAMPLING}
        if unknown := options.keys() - known:
            raise InputError(
                f"generation options {', '.join(sorted(unknown))} are not supported; expected only "
                f"{', '.join(sorted(known))}"
            )
        if not options.get("temperature"):
            return SamplingParams(seed=self._seed)
        given = {name: options[name] for name in _SAMPLING if options.get(name) is not None}
        return dataclasses.replace(SamplingParams(seed=self._seed), **given)


def _whole(name: str, value: object, least: int) -> int:
    """A setting of lm-eval's ``--model_args``, which gives numbers and text."""
    number = whole_number(str(value))
    if number is None or number < least:
        raise InputError(f"expected {name} as a whole number from {least}, got {value!r:.60}")
    return number
