"""Time decode steps of the transformers library on CPU, for comparison with ours.

Runs in the environment that ``make_golden.py`` describes; prints one JSON object.

    golden-env/bin/python scripts/bench_transformers.py CHECKPOINT

Each batch starts from a context of random ids, and each step is fed random ids, so that rows do not
fall into the same loop and share experts. The table gives, for each way that the library has to
compute experts, milliseconds a step and the mean count of distinct experts a layer and step.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
import transformers

IMPLEMENTATIONS = ("grouped_mm", "batched_mm", "eager")
_WARMUP, _FEWEST = 3, 5


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--implementations", nargs="+", default=IMPLEMENTATIONS)
    parser.add_argument("--context", type=int, default=32, help="tokens before the first step")
    parser.add_argument("--steps", type=int, default=30, help="timed steps, at most")
    parser.add_argument("--seconds", type=float, default=6.0, help="time for one row, about")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    transformers.utils.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        options.checkpoint, dtype=torch.bfloat16
    ).eval()
    distinct = _count_distinct_experts(model)
    rows = []
    for name in options.implementations:
        model.set_experts_implementation(name)
        for batch in options.batches:
            rows.append({"experts": name, **_measure(model, batch, options, distinct)})
    result = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "threads": options.threads,
        "context": options.context,
        "rows": rows,
        "best_ms": {
            batch: min(row["ms"] for row in rows if row["batch"] == batch)
            for batch in options.batches
        },
    }
    print(json.dumps(result, indent=1))


def _measure(
    model: Any, batch: int, options: argparse.Namespace, distinct: list[int]
) -> dict[str, Any]:
    random = torch.Generator().manual_seed(0)
    vocab = model.config.vocab_size
    with torch.inference_mode():
        prompt = torch.randint(vocab, (batch, options.context), generator=random)
        cache = transformers.DynamicCache(config=model.config)
        model(prompt, cache=cache, logits_to_keep=1)
        times: list[float] = []
        distinct.clear()
        begin = time.perf_counter()
        for step in range(_WARMUP + options.steps):
            tokens = torch.randint(vocab, (batch, 1), generator=random)
            start = time.perf_counter()
            model(tokens, cache=cache)
            if step >= _WARMUP:
                times.append(time.perf_counter() - start)
            if len(times) >= _FEWEST and time.perf_counter() - begin > options.seconds:
                break
    return {
        "batch": batch,
        "ms": round(1e3 * statistics.median(times), 2),
        "fastest_ms": round(1e3 * min(times), 2),
        "steps": len(times),
        "distinct_experts": round(statistics.mean(distinct), 2),
    }


def _count_distinct_experts(model: Any) -> list[int]:
    """A list that every router call adds to; costs some microseconds a layer."""
    counts: list[int] = []

    def count(_module: Any, _arguments: Any, output: tuple[torch.Tensor, ...]) -> None:
        counts.append(len(set(output[2].flatten().tolist())))

    for layer in model.model.layers:
        if hasattr(layer.mlp, "experts"):
            layer.mlp.gate.register_forward_hook(count)
    return counts


if __name__ == "__main__":
    main()
