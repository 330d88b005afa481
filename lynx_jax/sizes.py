"""How large a model is, from its config.json alone: ``python -m lynx_jax.sizes FOLDER``."""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import jax

from lynx_jax.arguments import Parser
from lynx_jax.convert.folder import read_config
from lynx_jax.convert.reader import abstract_model, parameters_of
from lynx_jax.errors import InputError
from lynx_jax.models import get_family
from lynx_jax.models.decoder import DecoderForCausalLM

_MOST = 2**31 - 1  # rows, and tokens of one


@dataclass(frozen=True)
class Sizes:
    """What a model takes in bfloat16; parameters that its family keeps in float32 count as such.

    Attributes:
      parameters: how many numbers its weights are.
      weight_bytes: their size.
      cache_bytes_per_token: what the cache holds of one token, in all layers together.
    """

    parameters: int
    weight_bytes: int
    cache_bytes_per_token: int

    def cache_bytes(self, rows: int, length: int) -> int:
        """Size of the cache of ``rows`` sequences of ``length`` tokens."""
        return rows * length * self.cache_bytes_per_token


def sizes_of(model: DecoderForCausalLM) -> Sizes:
    """Sizes of a bfloat16 model, such as ``abstract_model`` makes of a config."""
    found = parameters_of(model).values()
    return Sizes(
        sum(math.prod(p.shape) for p in found),
        sum(math.prod(p.shape) * p.dtype.itemsize for p in found),
        model.cache_bytes_per_token(),
    )


def run(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code: 2 for bad input."""
    parser = Parser(
        prog="python -m lynx_jax.sizes",
        description="Memory that a model needs in bfloat16, from its config.json; the weights need "
        "not be there. Programs and their intermediate values come on top.",
    )
    parser.add_argument("folder", type=Path, help="folder with config.json")
    parser.add_argument("--rows", type=int, default=16, help="sequences at a time (default: 16)")
    parser.add_argument(
        "--length", type=int, default=4096, help="tokens of each, prompt included (default: 4096)"
    )
    args = parser.parse_args(argv)
    for name, value in (("--rows", args.rows), ("--length", args.length)):
        if not 1 <= value <= _MOST:
            parser.error(f"expected {name} from 1 to {_MOST}, got {value}")
    try:
        raw = read_config(args.folder)
        family = get_family(raw["model_type"])
        sizes = sizes_of(abstract_model(family, family.config_class.from_dict(raw)))
    except InputError as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    cache = sizes.cache_bytes(args.rows, args.length)
    print(
        f"parameters  {sizes.parameters:,}\n"
        f"weights     {sizes.weight_bytes / 1e9:.2f} GB\n"
        f"cache       {cache / 1e9:.2f} GB for {args.rows} rows of {args.length} tokens, "
        f"{sizes.cache_bytes_per_token:,} bytes a token\n"
        f"together    {(sizes.weight_bytes + cache) / 1e9:.2f} GB"
    )
    return 0


def main() -> NoReturn:
    """Entry point; nothing is put on an accelerator, so none is taken."""
    jax.config.update("jax_platforms", "cpu")  # type: ignore[no-untyped-call]
    sys.exit(run())


if __name__ == "__main__":
    main()
