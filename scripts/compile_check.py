"""Compile kernels and whole decode steps for an H200 on a machine without a GPU.

    pip install -e '.[compile]' && python scripts/compile_check.py

What only a GPU's compiler refuses shows here, and so do spilled registers, temporaries larger than
the activations and copies of expert weights. Nothing is run, so nothing is said about speed or
results.
"""

import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator
from itertools import chain

from compile_recipe import h200

h200.prepare()

from compile_recipe.case import Case, problems, report  # noqa: E402
from compile_recipe.expert_cases import expert_cases  # noqa: E402
from compile_recipe.grouped_cases import grouped_cases  # noqa: E402
from compile_recipe.routing_cases import MODES, routing_cases  # noqa: E402
from compile_recipe.step_cases import BACKENDS, step_cases  # noqa: E402

from lynx_jax.arguments import Parser  # noqa: E402
from lynx_jax.errors import InputError  # noqa: E402
from lynx_jax.pallas_kernels.expert_limits import MAX_ROWS  # noqa: E402
from lynx_jax.pallas_kernels.routing_tiling import MOST_ROWS_OF_BLOCKS  # noqa: E402


def check(cases: Iterable[Case]) -> Iterator[str]:
    """Compiles every case, prints what became of it, and yields what is wrong."""
    for case in cases:
        compiled = h200.compile_for_h200(case.function, *case.arguments, donate=case.donate)
        for line in report(case, compiled):
            print(line, flush=True)
        yield from problems(case, compiled)


def build_parser() -> Parser:
    """The command line's options."""
    parser = Parser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--parts",
        nargs="+",
        default=["steps", "routing", "experts", "grouped"],
        choices=["steps", "routing", "experts", "grouped"],
        help="what to compile (default: all): decode steps, routing kernel, expert kernels, and "
        "experts of 512 rows by grouped products",
    )
    parser.add_argument(
        "--rows",
        type=int,
        nargs="+",
        default=[16],
        help=f"batch sizes (default: 16); expert kernels are left out beyond {MAX_ROWS}",
    )
    parser.add_argument(
        "--policies",
        nargs="+",
        default=["off", "demand", "lynx", "oea:k0=4", "xshare:budget=32"],
        help="of decode steps",
    )
    parser.add_argument(
        "--modes",
        nargs="+",
        default=["lynx", "demand"],
        choices=MODES,
        help="of the routing kernel (default: lynx demand)",
    )
    parser.add_argument(
        "--backend", default="mosaic", choices=sorted(BACKENDS), help="of decode steps"
    )
    return parser


def cases_of(options: Namespace) -> list[Case]:
    """All that the options ask for.

    Raises:
      InputError: an option is out of range, or leaves nothing to compile.
    """
    for rows in options.rows:
        if not 1 <= rows <= MOST_ROWS_OF_BLOCKS:
            raise InputError(f"expected --rows from 1 to {MOST_ROWS_OF_BLOCKS}, got {rows}")
    cases = {
        "steps": step_cases(options.rows, options.policies, options.backend),
        "routing": routing_cases(options.rows, options.modes),
        "experts": expert_cases(options.rows),
        "grouped": grouped_cases(),
    }
    found = list(chain.from_iterable(cases[part] for part in options.parts))
    if not found:
        raise InputError(
            f"expected --rows from 1 to {MAX_ROWS} for expert kernels, got {min(options.rows)}; "
            "give smaller ones, or other --parts"
        )
    return found


def main() -> int:
    """Command line; 1 if something is wrong with what was compiled, 2 for bad options."""
    parser = build_parser()
    try:
        cases = cases_of(parser.parse_args())
    except InputError as e:
        parser.error(str(e))
    found = list(check(cases))
    for problem in found:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
