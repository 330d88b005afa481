"""What the command does once its options are known to be good."""

import argparse
import dataclasses
import itertools
import json
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from lynx_jax.errors import InputError
from lynx_jax.evaluation import plots
from lynx_jax.evaluation.answering import TaskResult, evaluate_task
from lynx_jax.evaluation.choice import parse_policies, sweep
from lynx_jax.evaluation.evaluating import evaluate, windows_of
from lynx_jax.evaluation.questions import TASKS, Question, read_questions
from lynx_jax.evaluation.report import BatchSizeResult
from lynx_jax.evaluation.scoring import BatchScorer
from lynx_jax.evaluation.table import table, task_table
from lynx_jax.evaluation.texts import batches, demo_documents, read_documents
from lynx_jax.loading import LoadedModel, load
from lynx_jax.policies import Policy, TopK
from lynx_jax.policy_spec import parse_policy


def execute(args: argparse.Namespace, sizes: Sequence[int]) -> None:
    """Measure, print a table a batch size and task, write files.

    Raises:
      InputError: the model, the text, a task or a policy is not usable, or plots cannot be drawn.
    """
    draws = args.out is not None and not args.no_plots and args.task is None
    if draws:
        plots.require_matplotlib()
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
    if args.task is not None:
        _write(args, _on_tasks(args, sizes))
        return
    results = _on_texts(args, sizes)
    _write(args, results)
    if draws:
        for result in results:
            plots.draw(result, args.out)


def _on_texts(args: argparse.Namespace, sizes: Sequence[int]) -> list[BatchSizeResult]:
    documents = demo_documents() if args.demo_data else read_documents(args.text)
    loaded, policies, against = _chosen(args)
    windows = windows_of(loaded, documents, args.length)
    groups = [
        batches(windows, size, args.composition, seed=args.seed, most=args.batches)
        for size in sizes
    ]
    scorer = BatchScorer(loaded.model)
    results: list[BatchSizeResult] = []
    passes = sum(map(len, groups)) * (1 + len(policies))
    with tqdm(total=passes, unit="pass", desc="evaluate") as bar:
        for group in groups:
            result = evaluate(
                scorer,
                group,
                policies,
                prompt_tokens=args.prompt_tokens,
                composition=args.composition,
                against=against,
                progress=bar.update,
            )
            bar.clear()
            print(table(result), end="\n\n", flush=True)
            results.append(result)
    return results


def _on_tasks(args: argparse.Namespace, sizes: Sequence[int]) -> list[TaskResult]:
    tasks = {name: _questions(name, args) for name in map(str.strip, args.task.split(","))}
    loaded, policies, against = _chosen(args)
    results: list[TaskResult] = []
    runs = 1 + sum(policy != TopK() for policy in policies.values())
    answers = runs * len(sizes) * sum(map(len, tasks.values()))
    with tqdm(total=answers, unit="answer", desc="evaluate") as bar:
        for (task, questions), size in itertools.product(tasks.items(), sizes):
            result = evaluate_task(
                loaded,
                task,
                questions,
                policies,
                batch=size,
                seed=args.seed,
                against=against,
                progress=bar.update,
            )
            bar.clear()
            print(task_table(result), end="\n\n", flush=True)
            results.append(result)
    return results


def _questions(task: str, args: argparse.Namespace) -> list[Question]:
    if task.endswith(".jsonl"):
        return read_questions(Path(task))
    if task not in TASKS:
        raise InputError(
            f"task {task!r} is not known; expected {', '.join(TASKS)} or a file ending in .jsonl"
        )
    return TASKS[task](args.questions, args.seed)


def _chosen(args: argparse.Namespace) -> tuple[LoadedModel, dict[str, Policy], str | None]:
    """The model, the policies to measure, and the one that they are compared with."""
    loaded = load(args.model, backend=args.backend, dtype=args.dtype)
    router = loaded.config.num_experts_per_tok, loaded.config.num_experts
    policies = sweep(*router) if args.sweep else parse_policies(args.policies, *router)
    against = None if args.against is None else args.against.strip()
    if against is not None:
        policies.setdefault(against, parse_policy(against, *router))
    return loaded, policies, against


def _write(args: argparse.Namespace, results: Sequence[BatchSizeResult | TaskResult]) -> None:
    """Settings and results as JSON, where a folder is given."""
    if args.out is None:
        return
    settings = {"model": str(args.model), "seed": args.seed, "dtype": args.dtype}
    if args.task is not None:
        settings |= {"questions": args.questions}
    else:
        text = "demo-data" if args.demo_data else [str(path) for path in args.text]
        settings |= {"text": text, "length": args.length, "prompt_tokens": args.prompt_tokens}
    report = {"settings": settings, "results": [dataclasses.asdict(r) for r in results]}
    (args.out / "results.json").write_text(json.dumps(report, indent=1) + "\n")
