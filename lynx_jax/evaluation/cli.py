"""Command line of ``python -m lynx_jax.evaluate``."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from lynx_jax.arguments import Parser, whole_number
from lynx_jax.errors import InputError

_EXAMPLES = """\
examples:
  python -m lynx_jax.evaluate --demo-data --policies off,lynx,lynx:alpha=3,beta=2,oea:k0=4
  python -m lynx_jax.evaluate --demo-data --sweep --batch 16 --against oea:k0=3 --out results
  python -m lynx_jax.evaluate --model DIR --text held_out.jsonl --batch 8,32 --policies lynx
  python -m lynx_jax.evaluate --task arithmetic,chat --policies lynx,oea:k0=3

Exit codes: 0; 2 for bad input, with one line that says what is wrong; 130 after Ctrl-C.
"""

# Options that one kind of run has and the other has not, with their defaults.
_OF_TEXTS = {"batches": None, "composition": "mixed", "prompt_tokens": 64, "length": 256}
_OF_TASKS = {"questions": 1000}
_MOST_QUESTIONS = 100_000
_LONGEST = 2**31 - 1


def build_parser() -> argparse.ArgumentParser:
    """The command line's options."""
    parser = Parser(
        prog="python -m lynx_jax.evaluate",
        description="What expert selection policies cost a model: teacher-forced decode of\n"
        "held-out text under each policy, paired with plain top-k on the same tokens; or\n"
        "questions answered greedily, paired with plain top-k's answers.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--model", default="demo", metavar="DIR", help="checkpoint folder, or demo (the default)")
    subject = parser.add_mutually_exclusive_group(required=True)
    subject.add_argument(
        "--text",
        type=Path,
        nargs="+",
        metavar="FILE",
        help='text files, one document each, or .jsonl with lines {"text": ..., "domain": ...}',
    )
    subject.add_argument(
        "--demo-data",
        action="store_true",
        help="text that comes with the package and that the demo model was not trained on",
    )
    subject.add_argument(
        "--task",
        metavar="NAME,...",
        help="questions to answer: arithmetic, chat (both made for the demo model), or a .jsonl\n"
        'file with lines {"prompt": ..., "answer": ...}',
    )
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument(
        "--policies", metavar="LIST", help="policies, separated by commas: off,lynx,oea:k0=4"
    )
    chosen.add_argument("--sweep", action="store_true", help="a grid over every policy")
    add(
        "--against",
        metavar="POLICY",
        help="compare every policy with this one too, on the same tokens",
    )
    add("--batch", default="16", metavar="B,...", help="rows that decode together (default: 16)")
    add(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="of the order of texts; of questions and resampling (default: 0)",
    )
    add(
        "--backend",
        choices=("auto", "loop", "mosaic", "reference"),
        default="auto",
        help="how experts are computed; given text is routed in plain JAX (default: auto)",
    )
    add("--dtype", choices=("float32", "bfloat16"), help="(default: the checkpoint's)")
    add("--out", type=Path, metavar="DIR", help="write results.json and PNG plots there")
    add("--no-plots", action="store_true", help="with --out, write only results.json")
    _add_text_options(parser.add_argument_group("with --text or --demo-data"))
    tasks = parser.add_argument_group("with --task")
    tasks.add_argument(
        "--questions", type=int, metavar="N", help="of each made task (default: 1000)"
    )
    return parser


def _add_text_options(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--batches", type=int, metavar="N", help="batches of each size (default: all there is)")
    add(
        "--composition",
        choices=("mixed", "domain"),
        help="whether the domains take turns within a batch (the default) or each batch is of one",
    )
    add("--prompt-tokens", type=int, metavar="P", help="prefilled (default: 64)")
    add("--length", type=int, metavar="T", help="tokens a row (default: 256)")


def _fill_in(args: argparse.Namespace) -> None:
    """Give the options of this kind of run their defaults; refuse those of the other kind."""
    own, others = (_OF_TASKS, _OF_TEXTS) if args.task is not None else (_OF_TEXTS, _OF_TASKS)
    for name in others:
        if getattr(args, name) is not None:
            kind = "--task" if args.task is not None else "--text or --demo-data"
            raise InputError(f"--{name.replace('_', '-')} has no effect with {kind}; leave it out")
    for name, default in own.items():
        if getattr(args, name) is None:
            setattr(args, name, default)


def batch_sizes(text: str) -> list[int]:
    """The sizes of a list like ``8,16``.

    Raises:
      InputError: one is not a whole number of at least 1.
    """
    sizes = [whole_number(part) or 0 for part in text.split(",")]
    if not all(0 < size < 2**20 for size in sizes):
        raise InputError(f"expected --batch as whole numbers from 1, like 8,16, got {text!r:.60}")
    return sizes


def _check(args: argparse.Namespace) -> None:
    """Raise ``InputError`` for values out of range."""
    if args.seed < 0:
        raise InputError(f"expected --seed of at least 0, got {args.seed}")
    if args.task is not None:
        if not 0 < args.questions <= _MOST_QUESTIONS:
            raise InputError(
                f"expected --questions from 1 to {_MOST_QUESTIONS}, got {args.questions}"
            )
        return
    if not 2 <= args.length <= _LONGEST:
        raise InputError(f"expected --length from 2 to {_LONGEST}, got {args.length}")
    if not 0 < args.prompt_tokens < args.length:
        raise InputError(
            f"expected --prompt-tokens from 1 to one below --length={args.length}, "
            f"got {args.prompt_tokens}"
        )
    if args.batches is not None and args.batches < 1:
        raise InputError(f"expected --batches of at least 1, got {args.batches}")


def run(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    args = build_parser().parse_args(argv)
    try:
        _fill_in(args)
        _check(args)
        sizes = batch_sizes(args.batch)
        # Imports jax, which takes a second: not for --help or wrong options.
        from lynx_jax.evaluation.executing import execute

        execute(args, sizes)
    except (InputError, OSError) as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    return 0


def main() -> NoReturn:
    """Entry point."""
    sys.exit(run())
