"""``python -m lynx_jax.convert SRC DST``: the command line of the converter."""

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, NoReturn, Self

from tqdm import tqdm

from lynx_jax.arguments import Parser
from lynx_jax.convert.numerics import DTYPES
from lynx_jax.errors import InputError

if TYPE_CHECKING:
    from lynx_jax.convert.conversion import ConversionResult


def build_parser() -> argparse.ArgumentParser:
    """The command line's options."""
    parser = Parser(
        prog="lynx-convert",
        description="Convert a Hugging Face MoE checkpoint (safetensors) for lynx_jax. Memory use "
        "is bounded whatever the model's size; DST appears complete or not at all.",
    )
    parser.add_argument("source", metavar="SRC", help="folder with config.json and safetensors")
    parser.add_argument("destination", metavar="DST", help="folder to create; must not exist")
    parser.add_argument(
        "--dtype", choices=sorted(DTYPES), help="dtype of all weights (default: as they are)"
    )
    parser.add_argument(
        "--verify", action="store_true", help="read everything back and compare it bit for bit"
    )
    return parser


class Interrupted(BaseException):
    """A signal asked for the end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


class _Reporter:
    """Progress bars, and the place where a signal ends the conversion.

    Signals are noted and acted upon between two parts, so that none strikes inside Orbax; a second
    one acts at once.
    """

    def __init__(self) -> None:
        self._bar: tqdm | None = None
        self._stage = ""
        self._signal: int | None = None
        self._handlers = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}

    def __enter__(self) -> Self:
        for number in self._handlers:
            signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()
        self._restore_handlers()

    def __call__(self, stage: str, done: int, total: int) -> None:
        if self._signal is not None:
            raise Interrupted(self._signal)
        if stage != self._stage:
            if self._bar is not None:
                self._bar.close()
            self._stage = stage
            self._bar = tqdm(total=total, desc=stage, unit="B", unit_scale=True, disable=None)
        assert self._bar is not None
        self._bar.update(done - self._bar.n)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._signal = number
        self._restore_handlers()

    def _restore_handlers(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)


def run(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code: 2 for bad input, 128 + n after signal n."""
    args = build_parser().parse_args(argv)
    began = time.perf_counter()
    try:
        with _Reporter() as reporter:
            # Imports jax, which takes a second: not for --help, and under the signal handlers.
            from lynx_jax.convert.conversion import convert

            result = convert(
                args.source,
                args.destination,
                dtype=args.dtype,
                verify=args.verify,
                progress=reporter,
            )
    except (InputError, OSError) as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    except (Interrupted, KeyboardInterrupt) as e:
        print("error: interrupted; nothing was kept", file=sys.stderr)
        return e.exit_code if isinstance(e, Interrupted) else 128 + signal.SIGINT
    _report(result, time.perf_counter() - began, verified=args.verify)
    return 0


def _report(result: "ConversionResult", seconds: float, *, verified: bool) -> None:
    if not result.has_tokenizer:
        print(
            "warning: the source has no tokenizer.json; generating text needs one in "
            f"{result.destination}",
            file=sys.stderr,
        )
    source = (
        ""
        if result.source_packing is None
        else f"{result.source_bytes / 1e9:.2f} GB {result.source_packing} to "
    )
    print(
        f"converted{' and verified' if verified else ''} {result.num_tensors} tensors, {source}"
        f"{result.num_bytes / 1e9:.2f} GB {result.dtype}, in {seconds:.1f} s: {result.destination}"
    )


def main() -> NoReturn:
    """Entry point of the console script; converting needs no accelerator, so none is taken."""
    os.environ["JAX_PLATFORMS"] = "cpu"  # jax is not imported yet
    sys.exit(run())
