"""Is policy demand better than OEA and Lynx where they read as many experts?

    python scripts/compare_policies.py --data FOLDER [--batch 8,16,32] [--windows 384] [--out FILE]

A test whose settings were fixed beforehand, on other text (the first halves of FOLDER's held-out
domains): for each batch size OEA's k0 sets the number of distinct experts, and Demand's threshold
and Lynx's best constants were chosen to read about as many. It runs on windows from the last two
fifths of each domain, none of which overlap. Differences are paired: the same windows in the same
batches. FOLDER is what ``scripts/train_demo.py data`` prepares.
"""

import argparse
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import tokenizers
from tqdm import tqdm

from lynx_jax.backends import LoopBackend
from lynx_jax.evaluation.forced import ForcedBatch, ForcedDecoder
from lynx_jax.loading import load, load_model
from lynx_jax.models.decoder import DecoderForCausalLM
from lynx_jax.policies import OEA, Demand, Lynx, Policy, TopK
from lynx_jax.tokenizer import Tokenizer

PROMPT, SCORED = 64, 128
# Batch size -> (policy that is tested, those that it is compared with).
CHOSEN: dict[int, tuple[Demand, tuple[OEA, Lynx]]] = {
    8: (Demand(0.1238), (OEA(3), Lynx(6.823, 4, floor=2))),
    16: (Demand(0.1315), (OEA(3), Lynx(6.744, 4, floor=2))),
    32: (Demand(0.1433), (OEA(3), Lynx(6.706, 4, floor=2))),
}


def held_out_windows(folder: Path, tokenizer: Tokenizer, rows: int) -> np.ndarray:
    """[rows, prompt + scored + 1] token ids, as many of each domain as it has, shuffled."""
    rng = np.random.default_rng(0)
    stored = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    length = PROMPT + SCORED + 1
    dealt = []
    for domain, path in enumerate(sorted(folder.glob("held_out_*_tokens.npy"))):
        text = stored.decode(np.load(path).tolist(), skip_special_tokens=False)
        tokens = np.array(tokenizer.encode(text, add_special_tokens=False), np.int32)
        tokens = tokens[len(tokens) * 3 // 5 :]
        windows = tokens[: len(tokens) // length * length].reshape(-1, length)
        dealt += [(turn, domain, row) for turn, row in enumerate(rng.permutation(windows))]
    dealt.sort(key=lambda item: item[:2])
    if len(dealt) < rows:
        raise SystemExit(f"expected at most {len(dealt)} windows of this text, got {rows}")
    return rng.permutation(np.stack([row for _, _, row in dealt[:rows]]))


class Bench:
    """Losses and experts of a model on fixed windows, B at a time."""

    def __init__(self, model: DecoderForCausalLM, windows: np.ndarray, batch: int) -> None:
        self._decode = ForcedDecoder(model)
        self._loss = jax.jit(lambda hidden, after: _losses(model.logits(hidden), after))
        self._groups = windows.reshape(-1, batch, windows.shape[1])

    def measure(self, policy: Policy) -> tuple[np.ndarray, float]:
        """Mean cross-entropy of each window in nats, and distinct experts a layer-step."""
        losses, experts = [], []
        for group in tqdm(self._groups, desc=str(policy), leave=False):
            passed = self._decode(ForcedBatch.of_windows(group[:, :-1], PROMPT), policy)
            losses.append(self._loss(passed.hidden, jnp.asarray(group[:, PROMPT + 1 :])))
            experts.append(np.mean([np.sum(steps.active, axis=-1) for steps in passed.layers]))
        return np.concatenate(losses), float(np.mean(experts))


def _losses(logits: jax.Array, after: jax.Array) -> jax.Array:
    scores = jax.nn.log_softmax(logits.astype(jnp.float32))
    return -jnp.mean(jnp.take_along_axis(scores, after[..., None], axis=-1)[..., 0], axis=-1)


def paired(differences: np.ndarray, batch: int) -> dict[str, float]:
    """Mean, and its standard errors over windows and over batches, whose rows share experts."""
    by_batch = differences.reshape(-1, batch).mean(axis=1)
    errors = [x.std(ddof=1) / np.sqrt(x.size) for x in (differences, by_batch)]
    return {"mean": float(differences.mean()), "windows": float(errors[0]),
            "batches": float(errors[1])}  # fmt: skip


def compare(bench: Bench, batch: int) -> dict[str, object]:
    """One batch size: every policy's rise over plain top-k, and Demand's over the others."""
    tested, rivals = CHOSEN[batch]
    plain, plain_experts = bench.measure(TopK())
    results = {policy: bench.measure(policy) for policy in (tested, *rivals)}
    print(f"B={batch}: top-k {plain.mean():.4f} nats, {plain_experts:.2f} experts")
    rows = []
    for policy, (losses, experts) in results.items():
        rise = paired(losses - plain, batch)
        row = {"policy": str(policy), "experts": experts, "rise": rise}
        print(f"  {policy}: {experts:.2f} experts ({experts / plain_experts:.3f}), {_text(rise)} "
              f"({rise['mean'] / plain.mean():.2%})", flush=True)  # fmt: skip
        if policy is not tested:
            row["demand_over_it"] = paired(results[tested][0] - losses, batch)
            print(f"    demand over it: {_text(row['demand_over_it'])}", flush=True)
        rows.append(row)
    return {"batch": batch, "windows": len(plain), "cross_entropy": float(plain.mean()),
            "experts": plain_experts, "policies": rows}  # fmt: skip


def _text(values: dict[str, float]) -> str:
    return "{mean:+.4f} +- {windows:.4f} (over batches {batches:.4f})".format(**values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of held-out tokens")
    parser.add_argument("--model", default="demo")
    parser.add_argument("--batch", default="8,16,32", help="out of 8, 16 and 32")
    parser.add_argument("--windows", type=int, default=384, help="a multiple of every batch")
    parser.add_argument("--out", type=Path, help="write the results as JSON too")
    args = parser.parse_args()
    # One stacked array for all experts compiles several times faster than an array an expert.
    model = load_model(args.model, backend=LoopBackend(split=False))
    windows = held_out_windows(args.data, load(args.model).tokenizer, args.windows)
    results = []
    for batch in map(int, args.batch.split(",")):
        results.append(compare(Bench(model, windows, batch), batch))
        if args.out:
            args.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
