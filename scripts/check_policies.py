"""What each policy costs a model: distinct experts saved against cross-entropy lost.

    python scripts/check_policies.py --data FOLDER [--model DIR|demo] [--policies 'off;lynx;...']

Teacher-forced decode: rows of held-out text go through the decode program token by token, B rows
together, the first --prompt-tokens with plain top-k (as prefill routes) and the rest under the
policy. That gives exactly the logits of decoding the given text. Cross-entropy differences are
paired with plain top-k on the same tokens; the standard error is over rows. FOLDER holds
``held_out_<domain>_tokens.npy`` and their ``tokenizer.json``, as ``scripts/train_demo.py data``
prepares them.
"""

import argparse
import json
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import tokenizers
from flax import nnx
from tqdm import tqdm

from lynx_jax.loading import load
from lynx_jax.policies import Policy, TopK
from lynx_jax.policy_spec import parse_policy
from lynx_jax.routing import Phase
from lynx_jax.tokenizer import Tokenizer

DEFAULT = (
    "off;lynx;lynx:alpha=2.25,beta=3;lynx:alpha=1.5,beta=2;lynx:alpha=3,beta=2;lynx:alpha=1,beta=1;"
    "lynx:alpha=0.7,beta=1;lynx:alpha=4,beta=5;oea:k0=3;oea:k0=4;oea:k0=5;oea:k0=6;"
    "xshare:budget=24;xshare:budget=32"
)


def held_out(folder: Path, tokenizer: Tokenizer) -> list[np.ndarray]:
    """Token ids of each domain, by the model's own tokenizer whichever made the files."""
    stored = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    texts = [
        stored.decode(np.load(path).tolist(), skip_special_tokens=False)
        for path in sorted(folder.glob("held_out_*_tokens.npy"))
    ]
    return [np.array(tokenizer.encode(text, add_special_tokens=False)) for text in texts]


def windows(domains: list[np.ndarray], rows: int, length: int, seed: int = 0) -> np.ndarray:
    """[rows, length] token ids: random windows, the domains taking turns, so that batches mix."""
    rng = np.random.default_rng(seed)
    domains = [tokens for tokens in domains if len(tokens) > length]
    if not domains:
        raise SystemExit(f"expected held_out_*_tokens.npy of more than {length} tokens")
    starts = [(tokens, rng.integers(len(tokens) - length)) for tokens in domains * rows][:rows]
    return np.stack([tokens[at : at + length] for tokens, at in starts]).astype(np.int32)


@partial(jax.jit, static_argnames=("graph", "policy", "prompt"))
def forced_decode(graph, state, ids, policy: Policy, prompt: int):
    """Cross-entropy [T, B] and experts used [T, 2] (policy, top-k; mean of layers) after prompt."""
    model = nnx.merge(graph, state)
    rows, length = ids.shape
    live = jnp.ones((rows, 1), bool)

    def step(cache, position, used: Policy):
        at = jnp.full((rows, 1), position)
        hidden, cache, layers = model.forward(
            ids[:, position, None], at, live, cache, phase=Phase.DECODE, policy=used
        )
        scores = jax.nn.log_softmax(model.logits(hidden[:, 0]))
        loss = -jnp.take_along_axis(scores, ids[:, position + 1, None], axis=-1)[:, 0]
        counts = [[x.routing.num_active, x.routing.num_active_topk] for x in layers]
        return cache, (loss, jnp.mean(jnp.array(counts, jnp.float32), axis=0))

    cache = model.init_cache(rows, length)
    cache, _ = jax.lax.scan(partial(step, used=TopK()), cache, jnp.arange(prompt))
    _, results = jax.lax.scan(partial(step, used=policy), cache, jnp.arange(prompt, length - 1))
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of held-out tokens")
    parser.add_argument("--model", default="demo")
    parser.add_argument("--policies", default=DEFAULT, help="policies, separated by ';'")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--batches", type=int, default=16)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--out", type=Path, help="write the table as JSON too")
    args = parser.parse_args()

    loaded = load(args.model)
    graph, state = nnx.split(loaded.model)
    k, num_experts = loaded.config.num_experts_per_tok, loaded.config.num_experts
    ids = windows(held_out(args.data, loaded.tokenizer), args.batch * args.batches, args.length + 1)
    groups = ids.reshape(args.batches, args.batch, -1)

    def measure(policy: Policy, name: str) -> tuple[np.ndarray, np.ndarray]:
        runs = [
            forced_decode(graph, state, jnp.asarray(group), policy, args.prompt_tokens)
            for group in tqdm(groups, desc=name, leave=False)
        ]
        losses = np.concatenate([np.asarray(loss).mean(0) for loss, _ in runs])
        return losses, np.mean([np.asarray(counts).mean(0) for _, counts in runs], axis=0)

    baseline, (_, top_k) = measure(TopK(), "off")
    print(f"B={args.batch}, {baseline.size} rows of {args.length - args.prompt_tokens} tokens; "
          f"plain top-{k} of {num_experts}: cross-entropy {baseline.mean():.4f}, "
          f"{top_k:.2f} experts a layer-step")  # fmt: skip
    print(f"{'policy':34} experts  share  CE rise +- s.e.     relative")
    table = []
    for text in args.policies.split(";"):
        losses, (used, _) = measure(parse_policy(text, k, num_experts), text)
        rise = losses - baseline
        error = rise.std(ddof=1) / np.sqrt(rise.size)
        relative = rise.mean() / baseline.mean()
        print(f"{text:34} {used:7.2f} {used / top_k:6.2f} {rise.mean():9.4f} +- {error:.4f} "
              f"{relative:11.2%}", flush=True)  # fmt: skip
        table.append({"policy": text, "experts": float(used), "share": float(used / top_k),
                      "rise": float(rise.mean()), "error": float(error)})  # fmt: skip
    if args.out:
        args.out.write_text(json.dumps(table, indent=2) + "\n")


if __name__ == "__main__":
    main()
