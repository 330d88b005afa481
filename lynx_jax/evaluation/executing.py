"""What the command does once its options are known to be good."""

import argparse
import dataclasses
import json
from collections.abc import Sequence

from tqdm import tqdm

from lynx_jax.evaluation import plots
from lynx_jax.evaluation.choice import parse_policies, sweep
from lynx_jax.evaluation.evaluating import evaluate, windows_of
from lynx_jax.evaluation.report import BatchSizeResult
from lynx_jax.evaluation.scoring import BatchScorer
from lynx_jax.evaluation.table import table
from lynx_jax.evaluation.texts import batches, demo_documents, read_documents
from lynx_jax.loading import load
from lynx_jax.policy_spec import parse_policy


def execute(args: argparse.Namespace, sizes: Sequence[int]) -> None:
    """Measure, print a table a batch size, write files.

    Raises:
      InputError: the model, the text or a policy is not usable, or plots cannot be drawn.
    """
    if args.out is not None:
        if not args.no_plots:
            plots.require_matplotlib()
        args.out.mkdir(parents=True, exist_ok=True)
    documents = demo_documents() if args.demo_data else read_documents(args.text)
    loaded = load(args.model, backend=args.backend, dtype=args.dtype)
    router = loaded.config.num_experts_per_tok, loaded.config.num_experts
    policies = sweep(*router) if args.sweep else parse_policies(args.policies, *router)
    against = None if args.against is None else args.against.strip()
    if against is not None:
        policies.setdefault(against, parse_policy(against, *router))
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
    if args.out is not None:
        _write(args, results)


def _write(args: argparse.Namespace, results: Sequence[BatchSizeResult]) -> None:
    settings = {
        "model": str(args.model),
        "text": "demo-data" if args.demo_data else [str(path) for path in args.text],
        "length": args.length,
        "prompt_tokens": args.prompt_tokens,
        "seed": args.seed,
        "dtype": args.dtype,
    }
    report = {"settings": settings, "results": [dataclasses.asdict(r) for r in results]}
    (args.out / "results.json").write_text(json.dumps(report, indent=1) + "\n")
    if not args.no_plots:
        for result in results:
            plots.draw(result, args.out)
