"""The study's pictures show its results and are written."""

from pathlib import Path

import pytest
from study_recipe.choosing import Router
from study_recipe.stages import Study

plots = pytest.importorskip("study_recipe.plots", reason="the extra 'plot' is missing")

RESULTS = Path(__file__).parents[2] / "benchmarks" / "study"
ROUTERS = (Router(2, 8), Router(4, 32), Router(6, 64), Router(8, 64))


@pytest.fixture(scope="module")
def study():
    return Study(RESULTS, RESULTS, ROUTERS)


@pytest.fixture
def drawn(monkeypatch):
    """Figures in the order in which they are saved."""
    figures = []
    saved = plots.Figure.savefig

    def save(figure, path, **options):
        figures.append(figure)
        saved(figure, path, **options)

    monkeypatch.setattr(plots.Figure, "savefig", save)
    return figures


def test_frontiers_hold_every_setting(study, drawn, tmp_path):
    tests = {router: study.read(router, "test_16") for router in ROUTERS}
    plots.frontiers(tests, tmp_path / "frontier.png")
    assert (tmp_path / "frontier.png").read_bytes().startswith(b"\x89PNG")
    for axes, test in zip(drawn[0].axes, tests.values(), strict=True):
        shares = [x for line in axes.get_lines() for x in line.get_xdata()]
        assert {s["share"] for s in test["settings"].values()} <= set(shares)


def test_constants_are_a_curve_a_shape(study, drawn, tmp_path):
    plots.constants(study.grids, tmp_path / "constants.png")
    assert (tmp_path / "constants.png").read_bytes().startswith(b"\x89PNG")
    for axes, grid in zip(drawn[0].axes, study.grids.values(), strict=True):
        drawn_points = {tuple(xy) for line in axes.get_lines() for xy in line.get_xydata()}
        wanted = {(s["share"], s["divergence"]["mean"]) for s in grid["settings"].values()}
        assert drawn_points == wanted
