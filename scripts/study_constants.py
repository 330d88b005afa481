"""Can the constants of a policy follow from k/N alone? A study on four small trained routers.

    python scripts/train_demo.py data WORK
    python scripts/train_demo.py study WORK benchmarks/study
    python scripts/study_constants.py WORK [--models 2of8 4of32] [--stages grid test report]

``grid`` measures Lynx on a grid of constants, on the first half of the held-out text. ``test``
measures on the second half: Lynx with constants chosen on the first at given costs, with those of
formulas of k/N fitted on the other models, and the other policies. ``report`` prints tables and
draws plots. A stage reads what the ones before it wrote to ``--results``.
"""

from __future__ import annotations

from pathlib import Path

from demo_recipe.study import ROUTERS, name_of
from study_recipe import plots, reporting, stages
from study_recipe.choosing import Router

from lynx_jax.arguments import Parser
from lynx_jax.errors import InputError

_STAGES = ("grid", "test", "report")


def main() -> None:
    """Command line; 2 where an input is missing or impossible."""
    parser = Parser(description=__doc__.split("\n")[0])
    routers = {name_of(k, experts): Router(k, experts) for k, experts in ROUTERS}
    parser.add_argument("work", type=Path, help="folder of the training runs")
    parser.add_argument("--models", nargs="+", choices=routers, default=list(routers))
    parser.add_argument("--stages", nargs="+", choices=_STAGES, default=list(_STAGES))
    parser.add_argument("--batch", type=int, default=16, help="rows that decode together")
    parser.add_argument("--choose", type=int, default=64, help="windows to choose on")
    parser.add_argument("--windows", type=int, default=96, help="windows to report on")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/study"))
    parser.add_argument("--plots", type=Path, default=Path("docs/quality"))
    args = parser.parse_args()
    if not 0 < args.batch <= min(args.choose, args.windows):
        parser.error(f"expected a --batch from 1 to the number of windows, got {args.batch}")
    study = stages.Study(args.work, args.results, tuple(routers.values()))
    try:
        for name in args.models:
            if "grid" in args.stages:
                study.grid(routers[name], args.batch, args.choose)
        for name in args.models:
            if "test" in args.stages:
                study.test(routers[name], args.batch, args.windows)
        if "report" in args.stages:
            report(study, args.batch, args.plots)
    except InputError as e:
        parser.error(str(e))


def report(study: stages.Study, batch: int, folder: Path) -> None:
    """Print all tables and draw the plots."""
    tests = {router: study.read(router, f"test_{batch}") for router in study.routers}
    print(reporting.rule_table(tests.values()), "\n")
    for test in tests.values():
        print(reporting.tables(test))
    plots.frontiers(tests, folder / f"study_frontier_{batch}.png")
    plots.constants(study.grids, folder / "study_constants.png")


if __name__ == "__main__":
    main()
