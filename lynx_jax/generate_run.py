"""The work behind ``python -m lynx_jax.generate``: load, generate, print."""

import argparse
import json
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import jax

from lynx_jax.comparison import Comparison, compare
from lynx_jax.convert.folder import read_config
from lynx_jax.errors import InputError
from lynx_jax.generation import GenerationBatch, GenerationResult, Generator
from lynx_jax.loading import LoadedModel, load, resolve
from lynx_jax.models import get_family
from lynx_jax.policies import Demand, Policy, TopK
from lynx_jax.policy_spec import parse_policy
from lynx_jax.prompts import Prompt
from lynx_jax.requests import SamplingParams

_log = logging.getLogger(__name__)


def execute(args: argparse.Namespace, prompts: Sequence[Prompt], sampling: SamplingParams) -> None:
    """Generate for the prompts as the options ask, and print.

    Raises:
      InputError: the checkpoint, the policy or a prompt is not usable.
    """
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    with _logging_to_stderr():
        policy = _read_policy(args.model, args.policy)
        if args.compare and policy == TopK():
            raise InputError("--compare needs a policy to compare with off; give another --policy")
        loaded = _load(args, policy)
        _say_if_idle(policy, min(len(prompts), args.max_batch), loaded)
        options = {
            "max_new_tokens": args.max_new_tokens,
            "sampling": sampling,
            "stop": args.stop,
            "ignore_eos": args.ignore_eos,
        }
        if args.compare:
            comparison = compare(
                loaded, prompts, policy=policy, max_batch=args.max_batch, **options
            )
            _print_comparison(args, comparison, prompts, loaded, policy)
            return
        generator = Generator(loaded, policy=policy, max_batch=args.max_batch)
        printer = _Printer(prompts, enabled=not args.json)
        batch = generator.generate(
            prompts, on_text=printer.piece, on_result=printer.result, **options
        )
        if args.json:
            _print_json(_header(loaded) | _batch(batch, prompts, policy))
        if args.stats:
            print(batch.stats, file=sys.stderr)


@contextmanager
def _logging_to_stderr() -> Iterator[None]:
    """Show this program's messages and the package's warnings, each once and as plain lines."""
    package = logging.getLogger("lynx_jax")
    handler = logging.StreamHandler(sys.stderr)
    level, propagate = _log.level, package.propagate
    package.addHandler(handler)
    package.propagate = False  # libraries give the root logger a handler of their own
    _log.setLevel(logging.INFO)
    try:
        yield
    finally:
        package.removeHandler(handler)
        _log.setLevel(level)
        package.propagate = propagate


def _read_policy(model: str, text: str) -> Policy:
    """The policy, checked against the model's config before its weights are read."""
    raw = read_config(resolve(model))
    config = get_family(raw["model_type"]).config_class.from_dict(raw)
    return parse_policy(text, config.num_experts_per_tok, config.num_experts)


def _say_if_idle(policy: Policy, rows: int, loaded: LoadedModel) -> None:
    """Log why the policy will change nothing, where that is known beforehand."""
    if policy != TopK() and rows < policy.min_rows:
        _log.info("the policy acts from %d rows on; this batch has %d", policy.min_rows, rows)
    elif isinstance(policy, Demand) and loaded.config.num_experts_per_tok == 1:
        _log.info(
            "demand keeps every row's first expert, and a token uses one here, so it saves "
            "nothing; --policy lynx can save, at a cost to measure first"
        )


def _load(args: argparse.Namespace, policy: Policy) -> LoadedModel:
    start = time.perf_counter()
    loaded = load(args.model, backend=args.backend, dtype=args.dtype)
    config = loaded.config
    _log.info(
        "%s: %s, %d of %d experts and %d cache bytes a token; backend %s on %s; policy %s; "
        "loaded in %.1f s",
        args.model,
        config.model_type,
        config.num_experts_per_tok,
        config.num_experts,
        loaded.model.cache_bytes_per_token(),
        loaded.backend_name,
        jax.default_backend(),
        policy,
        time.perf_counter() - start,
    )
    return loaded


class _Printer:
    """Prints a single text as it grows; several ones complete and in the prompts' order."""

    def __init__(self, prompts: Sequence[Prompt], *, enabled: bool) -> None:
        self._prompts = prompts
        self._enabled = enabled
        self._waiting: dict[int, GenerationResult] = {}
        self._next = 0

    def piece(self, index: int, text: str) -> None:
        """Take a piece of a text."""
        if self._enabled and len(self._prompts) == 1:
            print(text, end="", flush=True)

    def result(self, index: int, result: GenerationResult) -> None:
        """Take a finished text."""
        if not self._enabled:
            return
        if len(self._prompts) == 1:
            print(flush=True)
            return
        self._waiting[index] = result
        while self._next in self._waiting:
            done = self._waiting.pop(self._next)
            _print_labelled(self._next, self._prompts[self._next], "", done)
            self._next += 1


def _print_labelled(index: int, prompt: Prompt, name: str, result: GenerationResult) -> None:
    label = f"{index + 1}{name and f' {name}'}: {_preview(prompt)}"
    print(f"=== {label}\n{result.text}", flush=True)


def _print_comparison(
    args: argparse.Namespace,
    comparison: Comparison,
    prompts: Sequence[Prompt],
    loaded: LoadedModel,
    policy: Policy,
) -> None:
    off, on = comparison.off, comparison.on
    if args.json:
        _print_json(
            _header(loaded)
            | {
                "off": _batch(off, prompts, "off"),
                "on": _batch(on, prompts, policy),
                "comparison": {
                    "tpot_ratio": comparison.tpot_ratio,
                    "experts_ratio": comparison.experts_ratio,
                    "agreements": [asdict(row) for row in comparison.agreements],
                },
            }
        )
        return
    for index, prompt in enumerate(prompts):
        _print_labelled(index, prompt, "off", off.results[index])
        _print_labelled(index, prompt, "on", on.results[index])
    print(f"=== policy off against {policy}\n{comparison}", flush=True)
    if args.stats:
        print(f"--- off\n{off.stats}\n--- on\n{on.stats}", file=sys.stderr)


def _print_json(value: dict[str, Any]) -> None:
    print(json.dumps(value, ensure_ascii=False), flush=True)


def _header(loaded: LoadedModel) -> dict[str, Any]:
    return {"model": str(loaded.path), "backend": loaded.backend_name}


def _batch(
    batch: GenerationBatch, prompts: Sequence[Prompt], policy: Policy | str
) -> dict[str, Any]:
    """One run as JSON: policy, results in the order of the prompts, statistics."""
    return {
        "policy": str(policy),
        "results": [
            {"prompt": prompt, **asdict(result)}
            for prompt, result in zip(prompts, batch.results, strict=True)
        ],
        "stats": batch.stats.to_dict(),
    }


def _preview(prompt: Prompt) -> str:
    """The beginning of a prompt on one line; of a conversation, its last message."""
    last = prompt if isinstance(prompt, str) else prompt[-1]
    text = str(last["content"]) if isinstance(last, dict) else str(last)
    line = " ".join(text.split())
    return line if len(line) <= 60 else line[:57] + "..."
