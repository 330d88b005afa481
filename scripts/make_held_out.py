"""The held-out text that comes with the package, out of the demo recipe's held-out split.

    python scripts/make_held_out.py --data DATA --out lynx_jax/demo/held_out.jsonl

DATA is what ``scripts/train_demo.py data`` prepared. Each long file gives its beginning, as many
windows from each file of a domain; short generated texts are taken whole, in order.
"""

import json
from pathlib import Path

import numpy as np
from demo_recipe.dataset import MIXTURE, SHORT_DOMAINS
from tokenizers import Tokenizer

from lynx_jax.arguments import Parser, new_file

WINDOW = 257
WINDOWS_A_DOMAIN = 68


def excerpts(data: Path, domain: str, tokenizer: Tokenizer) -> list[str]:
    """The texts of one domain."""
    tokens = np.load(data / f"held_out_{domain}_tokens.npy")
    starts = np.load(data / f"held_out_{domain}_starts.npy")
    documents = [part[:-1] for part in np.split(tokens, starts[1:])]  # without end-of-text
    total = WINDOWS_A_DOMAIN * WINDOW
    if domain in SHORT_DOMAINS:
        ends = np.cumsum([len(document) + 1 for document in documents])
        chosen = documents[: int(np.searchsorted(ends, total + WINDOW)) + 1]
    else:
        each = -(-WINDOWS_A_DOMAIN // len(documents)) * WINDOW + 8
        chosen = [document[:each] for document in documents]
    return [tokenizer.decode(ids.tolist(), skip_special_tokens=False) for ids in chosen]


def main() -> None:
    parser = Parser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=new_file, required=True)
    args = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(args.data / "tokenizer.json"))
    lines = [
        json.dumps({"domain": domain, "text": text}, ensure_ascii=False)
        for domain in MIXTURE
        for text in excerpts(args.data, domain, tokenizer)
    ]
    args.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
