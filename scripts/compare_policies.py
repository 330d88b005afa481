"""Is policy demand better than OEA and Lynx where they read as many experts?

    python scripts/compare_policies.py --text FILE [--damped] [--batch 8 16 32] [--out FILE]

A test whose settings were fixed beforehand, on other text (the first halves of the demo recipe's
held-out domains): for each batch size OEA's k0 sets the number of distinct experts, and Demand's
threshold and Lynx's best constants were chosen to read about as many. FILE is the ``fresh.jsonl``
that ``scripts/train_demo.py fresh`` prepares. Windows do not overlap, and differences are paired:
the same windows in the same batches. ``--damped`` compares all three with substitutes damped, and
Demand with its rows weighed; without it none of that is on.
"""

import json
from argparse import Namespace
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from lynx_jax.arguments import Parser, new_file
from lynx_jax.backends import LoopBackend
from lynx_jax.convert.folder import open_checkpoint
from lynx_jax.errors import InputError
from lynx_jax.evaluation.forced import ForcedBatch, ForcedDecoder
from lynx_jax.evaluation.texts import read_documents
from lynx_jax.loading import load_model, resolve
from lynx_jax.models.decoder import DecoderForCausalLM
from lynx_jax.policies import OEA, Demand, Lynx, Policy, TopK
from lynx_jax.tokenizer import Tokenizer

PROMPT, SCORED = 64, 128
ROUTER = (8, 64)  # k and N of the model that the constants were chosen for
# By batch size, for OEA's k0 of 3 and 4. Demand was set to read a little less than OEA.
OEA_K0 = (3, 4)
LYNX_ALPHAS = {8: (6.823, 4.632), 16: (6.744, 4.498), 32: (6.706, 4.386)}
THRESHOLDS = {8: (0.06225, 0.0532), 16: (0.05235, 0.04453), 32: (0.04555, 0.03811)}
DAMPED_THRESHOLDS = {8: (0.0602, 0.05135), 16: (0.05092, 0.04318), 32: (0.0441, 0.03723)}


def chosen(batch: int, *, damped: bool) -> Iterator[tuple[Demand, OEA, Lynx]]:
    """The policies that are tested, each with those that it is compared with."""
    damping, row_power = (0.5, 0.5) if damped else (0.0, 0.0)
    thresholds = (DAMPED_THRESHOLDS if damped else THRESHOLDS)[batch]
    for threshold, k0, alpha in zip(thresholds, OEA_K0, LYNX_ALPHAS[batch], strict=True):
        yield (
            Demand(threshold, row_power=row_power, damping=damping),
            OEA(k0, damping=damping),
            Lynx(alpha, 4, floor=2, damping=damping),
        )


def check_router(folder: Path) -> None:
    """Raise ``InputError`` for a checkpoint that the constants were not chosen for."""
    config = open_checkpoint(folder).config
    router = config.num_experts_per_tok, config.num_experts
    if router != ROUTER:
        raise InputError(
            "{}: expected a router of {} of {} experts, which the constants are for, "
            "got {} of {}; leave --model out".format(folder, *ROUTER, *router)
        )


def windows_of(file: Path, tokenizer: Tokenizer, rows: int) -> np.ndarray:
    """[rows, prompt + scored + 1] token ids, as many of each domain as it has, shuffled."""
    rng = np.random.default_rng(0)
    length = PROMPT + SCORED + 1
    texts: dict[str, list[str]] = {}
    for document in read_documents([file]):
        texts.setdefault(document.domain, []).append(document.text)
    dealt = []
    for domain, parts in texts.items():
        encoded = [tokenizer.encode(text, add_special_tokens=False) for text in parts]
        tokens = np.concatenate(encoded).astype(np.int32)
        windows = tokens[: len(tokens) // length * length].reshape(-1, length)
        dealt += [(turn, domain, row) for turn, row in enumerate(rng.permutation(windows))]
    dealt.sort(key=lambda item: item[:2])
    if len(dealt) < rows:
        raise InputError(f"{file}: expected {rows} windows of text, got {len(dealt)} (--windows)")
    return rng.permutation(np.stack([row for _, _, row in dealt[:rows]]))


@dataclass(frozen=True)
class Cost:
    """What a policy costs: nats of each window, and distinct experts a layer-step."""

    cross_entropy: np.ndarray
    divergence: np.ndarray
    experts: float


class Bench:
    """Costs of policies on fixed windows, B at a time, against plain top-k."""

    def __init__(self, model: DecoderForCausalLM, windows: np.ndarray, batch: int) -> None:
        self._decode = ForcedDecoder(model)
        self._score = jax.jit(lambda *args: _scores(model, *args))
        self._groups = windows.reshape(-1, batch, windows.shape[1])
        self._plain: list[jax.Array] = []
        self.plain = self.measure(TopK())

    def measure(self, policy: Policy) -> Cost:
        """A policy's mean cross-entropy, mean KL divergence from plain top-k, and experts."""
        scores, experts = [], []
        for index, group in enumerate(tqdm(self._groups, desc=str(policy), leave=False)):
            passed = self._decode(ForcedBatch.of_windows(group[:, :-1], PROMPT), policy)
            if index == len(self._plain):
                self._plain.append(passed.hidden)
            after = jnp.asarray(group[:, PROMPT + 1 :])
            scores.append(self._score(passed.hidden, self._plain[index], after))
            experts.append(np.mean([np.sum(steps.active, axis=-1) for steps in passed.layers]))
        return Cost(*np.concatenate(scores, axis=1), float(np.mean(experts)))


def _scores(
    model: DecoderForCausalLM, hidden: jax.Array, plain: jax.Array, after: jax.Array
) -> jax.Array:
    """[2, rows]: mean cross-entropy, and mean divergence of the predictions from the plain ones."""
    got, expected = (
        jax.nn.log_softmax(model.logits(states).astype(jnp.float32)) for states in (hidden, plain)
    )
    loss = -jnp.take_along_axis(got, after[..., None], axis=-1)[..., 0]
    divergence = jnp.sum(jnp.exp(expected) * (expected - got), axis=-1)
    return jnp.stack([loss, divergence]).mean(axis=-1)


def paired(differences: np.ndarray, batch: int) -> dict[str, float]:
    """Mean, and its standard errors over windows and over batches, whose rows share experts."""
    by_batch = differences.reshape(-1, batch).mean(axis=1)
    errors = [x.std(ddof=1) / np.sqrt(x.size) for x in (differences, by_batch)]
    return {"mean": float(differences.mean()), "windows": float(errors[0]),
            "batches": float(errors[1])}  # fmt: skip


def compare(bench: Bench, batch: int, policies: Iterable[tuple[Policy, ...]]) -> dict[str, object]:
    """One batch size: every policy's cost over plain top-k, and the first's of each over the
    others'."""
    plain = bench.plain
    entropy = float(plain.cross_entropy.mean())
    print(f"B={batch}: top-k {entropy:.4f} nats, {plain.experts:.2f} experts")
    rows = []
    for tested, *rivals in policies:
        ours = bench.measure(tested)
        rows.append(_row(tested, ours, plain, batch))
        for policy in rivals:
            cost = bench.measure(policy)
            row = _row(policy, cost, plain, batch)
            row["demand_over_it"] = paired(ours.cross_entropy - cost.cross_entropy, batch)
            row["demand_over_it_kl"] = paired(ours.divergence - cost.divergence, batch)
            print(f"    demand over it: rise {_text(row['demand_over_it'])}, "
                  f"KL {_text(row['demand_over_it_kl'])}", flush=True)  # fmt: skip
            rows.append(row)
    return {"batch": batch, "windows": plain.divergence.size, "cross_entropy": entropy,
            "experts": plain.experts, "policies": rows}  # fmt: skip


def _row(policy: Policy, cost: Cost, plain: Cost, batch: int) -> dict[str, Any]:
    """One policy's result, which it prints too."""
    rise = paired(cost.cross_entropy - plain.cross_entropy, batch)
    divergence = paired(cost.divergence, batch)
    relative = rise["mean"] / plain.cross_entropy.mean()
    print(f"  {policy}: {cost.experts:.2f} experts ({cost.experts / plain.experts:.3f}), "
          f"rise {_text(rise)} ({relative:.2%}), KL {_text(divergence)}", flush=True)  # fmt: skip
    return {"policy": str(policy), "experts": cost.experts, "rise": rise, "divergence": divergence}


def _text(values: dict[str, float]) -> str:
    return "{mean:+.4f} +- {windows:.4f} (over batches {batches:.4f})".format(**values)


def main() -> None:
    parser = Parser(description=__doc__.split("\n")[0])
    parser.add_argument("--text", type=Path, required=True, help="JSON lines of domain and text")
    parser.add_argument(
        "--damped", action="store_true", help="all three damped by 0.5, Demand's rows weighed"
    )
    parser.add_argument(
        "--model", default="demo", help="with {} of {} experts (default: demo)".format(*ROUTER)
    )
    parser.add_argument(
        "--batch", type=int, nargs="+", choices=sorted(THRESHOLDS), default=sorted(THRESHOLDS)
    )
    parser.add_argument(
        "--windows", type=int, default=1920, help="a multiple of every batch, at least twice it"
    )
    parser.add_argument("--out", type=new_file, help="write the results as JSON too")
    args = parser.parse_args()
    for batch in args.batch:
        if args.windows < 2 * batch or args.windows % batch:
            parser.error(f"expected --windows of 2 or more times {batch}, got {args.windows}")
    try:
        run(args)
    except InputError as e:
        parser.error(str(e))


def run(args: Namespace) -> None:
    """Compare as the options ask; the results of each batch size are written as they come."""
    folder = resolve(args.model)
    check_router(folder)
    windows = windows_of(args.text, Tokenizer.from_folder(folder), args.windows)
    # One stacked array for all experts compiles several times faster than an array an expert.
    model = load_model(folder, backend=LoopBackend(split=False))
    results = []
    for batch in args.batch:
        policies = chosen(batch, damped=args.damped)
        results.append(compare(Bench(model, windows, batch), batch, policies))
        if args.out:
            args.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
