"""The command line of ``python -m lynx_jax.generate`` and ``lynx-generate``."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from lynx_jax.arguments import Parser
from lynx_jax.errors import InputError
from lynx_jax.policy_forms import DEFAULT_POLICY, POLICY_FORMS
from lynx_jax.prompts import Prompt, as_messages, read_prompts, read_stdin
from lynx_jax.requests import SamplingParams

_INTERRUPTED = 130
_BROKEN_PIPE = 141

_EXAMPLES = """\
examples:
  lynx-generate --prompt "def add(a, b):" --max-new-tokens 48 --stats
  lynx-generate --prompts questions.jsonl --chat --policy lynx --compare
  lynx-generate --model DIR --prompt "Once" --temperature 0.8 --top-p 0.95 --stop $'\\n\\n'
  echo "To be, or not" | lynx-generate --policy oea:k0=4 --json

Exit codes: 0; 2 for bad input, with one line that says what is wrong; 130 after Ctrl-C.
"""


def build_parser() -> argparse.ArgumentParser:
    """The command line's options."""
    parser = Parser(
        prog="lynx-generate",
        description="Generate text with a Mixture-of-Experts checkpoint. Several prompts decode\n"
        "as one batch. Text goes to standard output, everything else to standard error.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_input(parser)
    _add_sampling(parser.add_argument_group("choice of tokens"))
    _add_execution(parser.add_argument_group("execution"))
    _add_output(parser.add_argument_group("output"))
    return parser


def _add_input(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("input")
    group.add_argument(
        "--model",
        default="demo",
        metavar="DIR",
        help="folder of a Hugging Face or converted checkpoint, or 'demo' for the model that comes "
        "with the package (default: demo)",
    )
    source = group.add_mutually_exclusive_group()
    source.add_argument(
        "--prompt", action="append", metavar="TEXT", help="prompt; may be given several times"
    )
    source.add_argument(
        "--prompts",
        type=Path,
        metavar="FILE.jsonl",
        help='a prompt a line: "text", {"prompt": "text"} or {"messages": [{"role": "user", '
        '"content": "text"}]}; without --prompt and --prompts, standard input is one prompt',
    )
    group.add_argument(
        "--chat",
        action="store_true",
        help="pass each prompt through the checkpoint's chat template as a user's message",
    )


def _add_sampling(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--max-new-tokens", type=int, default=128, metavar="N", help="(default: 128)"
    )
    group.add_argument(
        "--temperature",
        type=float,
        default=0.0,
        metavar="T",
        help="0 takes the likeliest token, above 0 samples (default: 0)",
    )
    group.add_argument(
        "--top-k", type=int, metavar="K", help="sample from the K likeliest tokens (default: all)"
    )
    group.add_argument(
        "--top-p",
        type=float,
        metavar="P",
        help="sample from the fewest tokens that together have probability P (default: 1, all)",
    )
    group.add_argument(
        "--min-p",
        type=float,
        metavar="P",
        help="leave out tokens less likely than P times the likeliest one (default: 0)",
    )
    group.add_argument(
        "--seed", type=int, default=0, metavar="N", help="prompt i takes seed N + i (default: 0)"
    )
    group.add_argument(
        "--repetition-penalty",
        type=float,
        default=1.0,
        metavar="R",
        help="above 1, tokens of prompt and text become less likely (default: 1)",
    )
    group.add_argument(
        "--stop",
        action="append",
        default=[],
        metavar="TEXT",
        help="end a text before this string; may be given several times",
    )
    group.add_argument("--ignore-eos", action="store_true", help="go on past end-of-text tokens")


def _add_execution(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--policy",
        default=DEFAULT_POLICY,
        metavar="POLICY",
        help=f"expert selection in decode: {POLICY_FORMS}; each with "
        "damping=D, 0 to 1, so that substitutes weigh less (default: %(default)s). It acts "
        "where at least two prompts decode together, and makes a text depend on its batch mates",
    )
    group.add_argument(
        "--compare",
        action="store_true",
        help="run with the policy off and on; print both texts, the ratios of time per output "
        "token and of experts, and how far the texts agree",
    )
    group.add_argument(
        "--backend",
        choices=("auto", "loop", "mosaic", "reference"),
        default="auto",
        help="how layers are routed and their experts computed; mosaic by name is refused where "
        "its kernels do not take the device or the model (default: auto)",
    )
    group.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        help="dtype of the weights (default: the checkpoint's)",
    )
    group.add_argument(
        "--max-batch",
        type=int,
        default=16,
        metavar="B",
        help="prompts that decode together; others wait for a place (default: 16)",
    )


def _add_output(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--json", action="store_true", help="print one JSON object: texts, token ids, statistics"
    )
    group.add_argument(
        "--stats",
        action="store_true",
        help="print compile and prefill time, time per output token and experts read to standard "
        "error (--json holds them in any case)",
    )


def sampling_params(args: argparse.Namespace) -> SamplingParams:
    """The sampling options of the command line.

    Raises:
      InputError: a value is out of range, or has no effect without a temperature.
    """
    given = {name: getattr(args, name) for name in ("top_k", "top_p", "min_p")}
    filters = {name: value for name, value in given.items() if value is not None}
    params = SamplingParams(
        temperature=args.temperature,
        seed=args.seed,
        repetition_penalty=args.repetition_penalty,
        **filters,
    )
    if filters and params.temperature == 0:
        flag = "--" + next(iter(filters)).replace("_", "-")
        raise InputError(f"{flag} has no effect at temperature 0; add --temperature")
    return params


def _check_options(args: argparse.Namespace) -> None:
    """Raise ``InputError`` for options that contradict one another or are out of range."""
    for name in ("max_new_tokens", "max_batch"):
        if getattr(args, name) < 1:
            flag = "--" + name.replace("_", "-")
            raise InputError(f"expected {flag} of at least 1, got {getattr(args, name)}")
    if "" in args.stop:
        raise InputError("expected --stop with at least one character, got an empty text")


def _read_prompts(args: argparse.Namespace) -> list[Prompt]:
    prompts: list[Prompt]
    if args.prompt is not None:
        prompts = args.prompt
    elif args.prompts is not None:
        prompts = read_prompts(args.prompts)
    else:
        prompts = [read_stdin(sys.stdin.buffer, is_terminal=sys.stdin.isatty())]
    return as_messages(prompts) if args.chat else prompts


def run(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    args = build_parser().parse_args(argv)
    try:
        _check_options(args)
        sampling = sampling_params(args)
        prompts = _read_prompts(args)
        # Imports jax, which takes a second: not for --help or wrong options.
        from lynx_jax.generate_run import execute

        execute(args, prompts, sampling)
    except InputError as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:
        _drop_output()  # whoever read the text has left
        return _BROKEN_PIPE
    except OSError as e:
        _drop_output()
        print(f"error: {e}", file=sys.stderr)
        return 2
    return 0


def _drop_output() -> None:
    """Send what is left for standard output nowhere; Python would complain at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main() -> NoReturn:
    """Entry point of the console script."""
    sys.exit(run())
