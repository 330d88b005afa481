"""Can the constants of a policy follow from k/N alone? A study on four small trained routers.

    python scripts/train_demo.py data WORK
    python scripts/train_demo.py study WORK benchmarks/study
    python scripts/study_constants.py WORK [--models 2of8,4of32] [--stages grid,test,report]

``grid`` measures Lynx on a grid of constants, on the first half of the held-out text. ``test``
measures on the second half: Lynx with constants chosen on the first at given costs, with those of
formulas of k/N fitted on the other models, and the other policies. ``report`` prints tables and
draws plots. A stage reads what the ones before it wrote to ``--results``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from demo_recipe.study import ROUTERS, name_of
from study_recipe import plots, reporting, stages
from study_recipe.choosing import Router


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    routers = {name_of(k, experts): Router(k, experts) for k, experts in ROUTERS}
    parser.add_argument("work", type=Path, help="folder of the training runs")
    parser.add_argument("--models", default=",".join(routers), help="(default: %(default)s)")
    parser.add_argument("--stages", default="grid,test,report", help="(default: %(default)s)")
    parser.add_argument("--batch", type=int, default=16, help="rows that decode together")
    parser.add_argument("--choose", type=int, default=64, help="windows to choose on")
    parser.add_argument("--windows", type=int, default=96, help="windows to report on")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/study"))
    parser.add_argument("--plots", type=Path, default=Path("docs/quality"))
    args = parser.parse_args()
    chosen = [routers[name] for name in args.models.split(",")]
    study = stages.Study(args.work, args.results, tuple(routers.values()))
    if "grid" in args.stages:
        for router in chosen:
            study.grid(router, args.batch, args.choose)
    if "test" in args.stages:
        for router in chosen:
            study.test(router, args.batch, args.windows)
    if "report" in args.stages:
        tests = {router: study.read(router, f"test_{args.batch}") for router in study.routers}
        for name, router in routers.items():
            print(reporting.tables(name, tests[router]))
        plots.frontiers(tests, args.plots / f"study_frontier_{args.batch}.png")
        plots.constants(study.grids, args.plots / "study_constants.png")


if __name__ == "__main__":
    main()
