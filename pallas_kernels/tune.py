"""Choose tile sizes of the expert kernels by timing: ``python -m lynx_jax.pallas_kernels.tune``."""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
from jaxtyping import Array
from tqdm import tqdm

from lynx_jax.arguments import Parser
from lynx_jax.errors import InputError
from lynx_jax.pallas_kernels.expert_ffn import dense_over_active
from lynx_jax.pallas_kernels.expert_form import ExpertWeights
from lynx_jax.pallas_kernels.expert_kernels import expert_ffn
from lynx_jax.pallas_kernels.expert_limits import device_refusal, layer_refusal, rows_refusal
from lynx_jax.pallas_kernels.expert_shapes import FAMILIES, ExpertShape
from lynx_jax.pallas_kernels.expert_tiles import (
    ExpertTiles,
    TileKey,
    device_family,
    entry,
    expert_tiles,
)
from lynx_jax.pallas_kernels.measure import (
    ROUNDINGS,
    Work,
    chain,
    error,
    microseconds_a_step,
    noise,
    random_experts,
    residual,
    rotating_work,
)
from lynx_jax.pallas_kernels.tile_candidates import best_tiles, down_candidates, gate_up_candidates
from lynx_jax.pallas_kernels.tile_table import PACKAGED, read_table, with_row, write_table


class Bench:
    """A layer of random experts and a batch for it, to time tiles with.

    As many experts are in use as evenly spread choices would use on average.

    Args:
      shape: of the experts.
      rows: of the batch.
      steps: of the program that is timed.
      repeats: how often it is timed.
      seed: of weights and rows.
      interpret: ``plgpu.InterpretGPUParams`` to run on CPU, where a time means nothing.
    """

    def __init__(
        self,
        shape: ExpertShape,
        rows: int,
        *,
        steps: int = 16,
        repeats: int = 7,
        seed: int = 0,
        interpret: Any = None,
    ) -> None:
        self.slots, self.form, self.interpret = shape.slots(rows), shape.form, interpret
        self.repeats = repeats
        self.weights = random_experts(shape, seed)
        self.x = noise(seed, (rows, shape.width), jnp.bfloat16, 1.0)
        self.work = rotating_work(shape, rows, shape.expected_active(rows), steps)
        reference = jax.jit(partial(dense_over_active, form=shape.form))
        self.wanted = reference(self.x, *self.work[0], self.weights)

    def measure(self, tiles: ExpertTiles) -> float | None:
        """Microseconds of the layer's experts with these tiles; None where they fail."""
        run = partial(
            expert_ffn, form=self.form, slots=self.slots, tiles=tiles, interpret=self.interpret
        )

        def step(x: Array, work: Work, weights: ExpertWeights) -> Array:
            return residual(x, run(x, *work, weights))

        try:
            got = jax.jit(run)(self.x, *self.work[0], self.weights)
            if not error(got, self.wanted) <= ROUNDINGS:  # nor NaN
                return None
            return microseconds_a_step(
                jax.jit(chain(step), donate_argnums=0),
                self.x,
                self.work,
                self.weights,
                steps=len(self.work),
                repeats=self.repeats,
            )
        except jax.errors.JaxRuntimeError:
            return None


def build_parser() -> ArgumentParser:
    """The command line's options."""
    parser = Parser(
        prog="python -m lynx_jax.pallas_kernels.tune",
        description="Time tile sizes of the expert kernels on this GPU and write the fastest into "
        "the table. Tiles whose result differs from plain JAX are not taken. A shape takes a "
        "minute or two.",
    )
    parser.add_argument(
        "--family", nargs="+", choices=FAMILIES, default=[], help="shapes of published models"
    )
    parser.add_argument("--experts", type=int, metavar="N", help="or one shape: experts of a layer")
    parser.add_argument("--width", type=int, metavar="D", help="model width")
    parser.add_argument("--hidden", type=int, metavar="F", help="width of an expert")
    parser.add_argument("--top-k", type=int, default=8, metavar="K", help="(default: 8)")
    parser.add_argument(
        "--rows",
        type=int,
        nargs="+",
        default=[8, 16, 32, 64],
        help="batch sizes, rounded up to multiples of 8 (default: 8 16 32 64)",
    )
    parser.add_argument("--dtype", default="bfloat16", help="of weights and rows; bfloat16")
    parser.add_argument(
        "--out", type=Path, help="table to write, made if missing (default: the package's own)"
    )
    parser.add_argument("--dry-run", action="store_true", help="list candidates; needs no GPU")
    return parser


def run(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code: 1 if a shape got no tiles, 2 for bad input."""
    args = build_parser().parse_args(argv)
    try:
        shapes, rows = _shapes(args), _rows(args)
        if args.dry_run:
            _list(shapes, rows, args.dtype)
            return 0
        device = _device()
        out = args.out or PACKAGED
        table = read_table(out if out.exists() else PACKAGED)
        complete = True
        for name, shape in shapes.items():
            for batch in rows:
                row = _tune(name, shape, _key(device, args.dtype, shape, batch))
                if row is None:
                    complete = False
                    continue
                table = with_row(table, row)
                write_table(out, table)
    except InputError as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    return 0 if complete else 1


def _shapes(args: Namespace) -> dict[str, ExpertShape]:
    sizes = (args.experts, args.width, args.hidden)
    shapes = {name: FAMILIES[name] for name in args.family}
    if any(size is not None for size in sizes):
        if None in sizes or min(*sizes, args.top_k) < 1 or args.top_k > args.experts:
            raise InputError(
                "expected --experts, --width and --hidden of at least 1 together, and a --top-k of "
                f"1 to --experts; got {args.experts}, {args.width}, {args.hidden}, {args.top_k}"
            )
        shape = ExpertShape(args.experts, args.top_k, args.width, args.hidden)
        shapes["this shape"] = shape
    if not shapes:
        raise InputError("nothing to tune: give --family, or --experts, --width and --hidden")
    try:
        refusals = [
            layer_refusal(shape.width, shape.hidden, args.dtype) for shape in shapes.values()
        ]
    except TypeError:
        raise InputError(f"expected --dtype bfloat16, got {args.dtype}") from None
    _refuse(refusals)
    return shapes


def _rows(args: Namespace) -> list[int]:
    _refuse([rows_refusal(rows, args.dtype) for rows in args.rows])
    return sorted({-(-rows // 8) * 8 for rows in args.rows})


def _refuse(refusals: Sequence[str | None]) -> None:
    for refusal in refusals:
        if refusal is not None:
            raise InputError(f"expert kernels: {refusal}")


def _device() -> str:
    device = jax.devices()[0]
    capability = str(getattr(device, "compute_capability", ""))
    _refuse([device_refusal(device.platform, device.device_kind, capability)])
    return device_family(device.device_kind)


def _key(device: str, dtype: str, shape: ExpertShape, rows: int) -> TileKey:
    return TileKey(device, dtype, shape.experts, shape.width, shape.hidden, rows)


def _list(shapes: dict[str, ExpertShape], rows: list[int], dtype: str) -> None:
    for name, shape in shapes.items():
        for batch in rows:
            key = _key("any device", dtype, shape, batch)
            base = expert_tiles(key)
            print(f"{name}, B={batch}:")
            for tiles in gate_up_candidates(base, key):
                sizes = tiles.gate_up_block, tiles.gate_up_stages, tiles.gate_up_blocks
                print("  gate_up: block {}, {} stages, {} thread blocks".format(*sizes))
            for tiles in down_candidates(base, key):
                sizes = tiles.down_block, tiles.down_stages, tiles.down_blocks
                print(
                    f"  down: {tiles.down_rows} rows, block {{}}, {{}} stages, "
                    "{} thread blocks".format(*sizes)
                )


def _tune(name: str, shape: ExpertShape, key: TileKey) -> dict[str, Any] | None:
    """The table's row for a shape, or None if no tiles gave a right result; says what it finds."""
    base = expert_tiles(key)
    bench = Bench(shape, key.rows)
    count = len(gate_up_candidates(base, key)) + len(down_candidates(base, key))
    wrong = 0
    with tqdm(total=count, desc=f"{name}, B={key.rows}", unit="tiles", disable=None) as bar:

        def measure(tiles: ExpertTiles) -> float | None:
            nonlocal wrong
            time = bench.measure(tiles)
            wrong += time is None
            bar.update()
            return time

        found = best_tiles(base, key, measure)
    if wrong:
        print(
            f"warning: {name}, B={key.rows}: {wrong} tilings gave wrong results or did not run",
            file=sys.stderr,
        )
    if found is None:
        print(f"error: {name}, B={key.rows}: no tiling gave a right result", file=sys.stderr)
        return None
    tiles, time = found
    print(f"{name}, B={key.rows}: {time:.1f} us with {tiles}")
    return entry(key, tiles, round(time, 2))


def main() -> NoReturn:
    """Entry point."""
    sys.exit(run())


if __name__ == "__main__":
    main()
