"""The command on the demo model: identity costs exactly nothing, ruin costs much."""

import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lynx_jax.errors import InputError
from lynx_jax.evaluation import cli
from lynx_jax.evaluation.choice import parse_policies, sweep
from lynx_jax.evaluation.estimates import Estimate, clustered
from lynx_jax.evaluation.report import BatchSizeResult, Difference, PolicyResult, summarise
from lynx_jax.evaluation.scoring import BatchScores
from lynx_jax.evaluation.table import table
from lynx_jax.evaluation.texts import Windows
from lynx_jax.policies import OEA, Lynx, TopK

_SMALL = [
    "--demo-data",
    "--batch",
    "4",
    "--batches",
    "2",
    "--length",
    "12",
    "--prompt-tokens",
    "4",
    "--backend",
    "reference",
]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A small run: the identity, a ruinous policy and a mild one."""
    out = tmp_path_factory.mktemp("out")
    policies = "off,oea:k0=8,xshare:budget=8,lynx:alpha=3,beta=4"
    arguments = [*_SMALL, "--policies", policies, "--out", str(out), "--no-plots"]
    arguments += ["--against", "xshare:budget=8"]
    assert cli.run(arguments) == 0
    return json.loads((out / "results.json").read_text())


def _policy(report, name):
    (result,) = report["results"]
    return next(policy for policy in result["policies"] if policy["policy"] == name)


@pytest.mark.parametrize("name", ["off", "oea:k0=8"])
def test_identity_makes_exactly_no_difference(report, name):
    found = _policy(report, name)
    for name in ("rise", "relative_rise", "divergence"):
        assert found[name] == {"value": 0, "error": 0}
        assert all(domain[name]["value"] == 0 for domain in found["domains"].values())
    assert found["agreement"]["value"] == found["retained"]["value"] == found["share"] == 1
    assert found["worst_retained"]["value"] == 1
    assert found["saved"]["value"] == 0


def test_a_budget_of_k_is_ruinous(report):
    found = _policy(report, "xshare:budget=8")
    assert found["experts"]["value"] == 8
    assert found["rise"]["value"] > 0.03
    assert found["divergence"]["value"] > 0.05
    assert found["agreement"]["value"] < 0.9
    assert found["worst_retained"]["value"] < found["retained"]["value"] < 0.9


def test_a_mild_policy_lies_between(report):
    (result,) = report["results"]
    found = _policy(report, "lynx:alpha=3,beta=4")
    assert 8 < found["experts"]["value"] < result["experts"]
    np.testing.assert_allclose(
        found["saved"]["value"], result["experts"] - found["experts"]["value"]
    )
    np.testing.assert_allclose(np.mean(found["experts_per_layer"]), found["experts"]["value"])
    np.testing.assert_allclose(
        np.sum(found["use"], axis=1), found["experts_per_layer"], atol=64 * 5e-5
    )
    assert 0 < found["divergence"]["value"] < 0.1
    assert result["scored_tokens"] == 2 * 4 * 8
    assert sum(domain["windows"] for domain in found["domains"].values()) == 8


def test_differences_from_a_named_policy_are_paired(report):
    (result,) = report["results"]
    assert result["against"] == "xshare:budget=8"
    other = _policy(report, "xshare:budget=8")
    assert other["difference"]["rise"] == {"value": 0, "error": 0}
    # Against a policy that changes nothing, what it costs itself is left, with the same errors.
    mirrored = _policy(report, "off")["difference"]
    for name in ("rise", "divergence"):
        np.testing.assert_allclose(mirrored[name]["value"], -other[name]["value"], atol=1e-6)
        np.testing.assert_allclose(mirrored[name]["error"], other[name]["error"], atol=1e-6)
    mild = _policy(report, "lynx:alpha=3,beta=4")
    for name in ("experts", "rise", "divergence"):
        np.testing.assert_allclose(
            mild["difference"][name]["value"], mild[name]["value"] - other[name]["value"], atol=1e-6
        )
    apart = np.hypot(mild["rise"]["error"], other["rise"]["error"])
    assert 0 < mild["difference"]["rise"]["error"] != pytest.approx(apart, rel=1e-3)


def test_the_table_gives_differences_in_errors():
    def policy(name, rise):
        nothing = Estimate(0.0, 0.0)
        return PolicyResult(
            policy=name,
            experts=nothing,
            saved=nothing,
            share=1.0,
            rise=nothing,
            relative_rise=nothing,
            divergence=nothing,
            agreement=nothing,
            retained=nothing,
            worst_retained=nothing,
            experts_per_layer=[],
            domains={},
            use=[],
            difference=Difference(nothing, rise, nothing),
        )

    policies = [policy("lynx", Estimate(-0.03, 0.01)), policy("oea:k0=3", Estimate(0.0, 0.0))]
    result = BatchSizeResult(4, "mixed", 1, 1, 1.0, 1.0, [], [], "oea:k0=3", policies)
    below = table(result).split("less oea:k0=3")[1].splitlines()[2:]
    assert [line.split()[0] for line in below] == ["lynx"]
    assert below[0].split()[-4:-2] == ["±0.0100", "-3.0"]


def test_kinds_of_text_have_their_own_rise_and_divergence():
    def scores(loss, divergence):
        loss, divergence = np.array(loss), np.array(divergence)
        one = np.ones(1)
        return [BatchScores(loss, divergence, divergence, divergence, 1.0, one, one, one[None])]

    batch = Windows(np.zeros((4, 2), np.int32), np.arange(4), ("a", "b", "a", "c"))
    plain, others = scores([2, 4, 3, 8], [0.0] * 4), scores([2.1, 4.4, 3.2, 8], [0.2, 0.1, 0.4, 0])
    found = summarise("x", [batch], plain, others)
    first = found.domains["a"]
    assert first.cross_entropy == 2.5
    for estimate, value, error in [
        (found.relative_rise, 0.175 / 4.25, np.std([0.1, 0.4, 0.2, 0], ddof=1) / 2 / 4.25),
        (first.rise, 0.15, 0.05),
        (first.relative_rise, 0.06, 0.02),
        (first.divergence, 0.3, 0.1),
    ]:
        assert (estimate.value, estimate.error) == pytest.approx((value, error))
    assert found.domains["b"].divergence == Estimate(0.1, None)
    lines = table(BatchSizeResult(4, "mixed", 4, 4, 4.25, 1.0, [], [], None, [found])).splitlines()
    assert lines[2].split()[5:7] == ["4.12%", "±2.01%"]
    assert lines[3].split() == ["a", "0.1500", "±0.0500", "6.00%", "±2.00%", "0.3000", "±0.1000"]
    assert lines[4].split() == ["b", "0.4000", "10.00%", "0.1000"]


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=20))
def test_errors_of_independent_values_are_ordinary(values):
    found = clustered(np.array(values), np.arange(len(values)))
    np.testing.assert_allclose(found.value, np.mean(values), atol=1e-12)
    ordinary = np.std(values, ddof=1) / np.sqrt(len(values))
    np.testing.assert_allclose(found.error, ordinary, atol=1e-12)


def test_repeated_values_add_nothing_within_a_document():
    once = clustered(np.array([1.0, 2.0, 4.0]), np.arange(3))
    assert clustered(np.repeat([1.0, 2.0, 4.0], 5), np.repeat([7, 3, 9], 5)).error == pytest.approx(
        once.error
    )
    assert clustered(np.array([1.0, 2.0]), np.zeros(2, int)).error is None


def test_settings_follow_their_policy():
    found = parse_policies("off, lynx:alpha=3,beta=4 ,oea:k0=4,min_rows=3", 8, 64)
    assert found == {
        "off": TopK(),
        "lynx:alpha=3,beta=4": Lynx(3, 4),
        "oea:k0=4,min_rows=3": OEA(4, min_rows=3),
    }
    with pytest.raises(InputError, match="--policies"):
        parse_policies(" ,", 8, 64)


@pytest.mark.parametrize(("k", "num_experts"), [(1, 16), (2, 8), (8, 64), (6, 160), (4, 128)])
def test_the_grid_fits_every_router(k, num_experts):
    assert len(sweep(k, num_experts)) > 8


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--demo-data"], "--policies"),
        (["--policies", "off"], "--text"),
        (["--demo-data", "--policies", "none"], "not known"),
        (["--demo-data", "--policies", "oea:k0=9"], "at most k=8"),
        (["--demo-data", "--policies", "off", "--against", "lynx,off"], "lynx,off"),
        (["--demo-data", "--policies", "off", "--batch", "0"], "--batch"),
        (["--demo-data", "--policies", "off", "--batch", "9999"], "smaller --batch"),
        (["--demo-data", "--policies", "off", "--batch", "8," + "9" * 5000], "--batch"),
        (["--demo-data", "--policies", "off", "--batch", "1_6"], "--batch"),
        (["--demo-data", "--policies", "off", "--length", "9" * 30], "--length from 2 to"),
        (["--demo-data", "--policies", "off", "--batches", "0"], "--batches"),
        (["--demo-data", "--policies", "off", "--prompt-tokens", "256"], "--prompt-tokens"),
        (["--demo-data", "--policies", "off", "--seed", "-1"], "--seed"),
        (["--text", "no/such/file", "--policies", "off"], "no/such/file"),
        (["--demo-data", "--policies", "off", "--model", "no/such"], "no/such"),
        (["--demo-data", "--policies", "off", "--backend", "mosaic"], "--backend loop takes any"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(capsys, arguments, says):
    try:
        code = cli.run(arguments)
    except SystemExit as e:
        code = e.code
    assert code == 2
    error = capsys.readouterr().err
    assert re.fullmatch(r"error: [^\n]+\n", error), error
    assert says in error


def test_plots_without_matplotlib_are_refused_first(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert cli.run([*_SMALL, "--policies", "off", "--out", str(tmp_path / "out")]) == 2
    assert "--no-plots" in capsys.readouterr().err
