"""The pictures show what was measured and are written."""

import dataclasses

import numpy as np
import pytest

from lynx_jax.evaluation import plots
from lynx_jax.evaluation.estimates import Estimate
from lynx_jax.evaluation.report import BatchSizeResult, DomainResult, PolicyResult

pytest.importorskip("matplotlib", reason="the extra 'plot' is missing")

_USE = [[1.0, 0.5, 0.25, 0.0], [0.5, 0.5, 0.5, 0.5]]


def _policy(name: str, experts: float, rise: float) -> PolicyResult:
    nothing = Estimate(0.0, None)
    return PolicyResult(
        policy=name,
        experts=Estimate(experts, 0.1),
        saved=nothing,
        share=experts / 4,
        rise=Estimate(rise, 0.02),
        relative_rise=Estimate(rise / 2, 0.01),
        divergence=nothing,
        agreement=nothing,
        retained=nothing,
        worst_retained=nothing,
        experts_per_layer=[experts - 0.5, experts + 0.5],
        domains={
            "plays": DomainResult(4.0, nothing, Estimate(rise / 4, rise / 40), nothing, 3),
            "sums": DomainResult(1.0, nothing, Estimate(rise / 2, rise / 20), nothing, 3),
        },
        use=(np.array(_USE) * experts / 4).tolist(),
        difference=None,
    )


@pytest.fixture(scope="module")
def result() -> BatchSizeResult:
    policies = [_policy("oea:k0=1", 1.5, 0.4), _policy("lynx", 2.5, 0.01), _policy("off", 4.0, 0.0)]
    policies.append(_policy("oea:k0=2", 1.0, 0.8))
    return BatchSizeResult(16, "mixed", 100, 6, 2.0, 4.0, [3.5, 4.5], _USE, None, policies)


def test_the_frontier_has_a_line_with_errors_for_each_kind_of_policy(result):
    (axes,) = plots.pictures(result)["frontier"].axes
    lines = {bars.get_label(): bars.lines for bars in axes.containers}
    assert set(lines) == {"oea", "lynx", "off"}
    line, _, (errors,) = lines["oea"]
    np.testing.assert_allclose(line.get_xydata(), [[1.0, 40.0], [1.5, 20.0]])
    np.testing.assert_allclose(np.array(errors.get_segments())[:, :, 1], [[39, 41], [19, 21]])
    assert "4.0" in axes.get_xlabel()


def test_experts_are_drawn_layer_by_layer(result):
    (axes,) = plots.pictures(result)["experts_per_layer"].axes
    drawn = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
    assert drawn.pop("top-k") == [[0, 3.5], [1, 4.5]]
    assert drawn == {p.policy: [[0, p.experts_per_layer[0]], [1, p.experts_per_layer[1]]]
                     for p in result.policies}  # fmt: skip


def test_each_domain_has_a_bar_for_each_policy_that_changes_something(result):
    (axes,) = plots.pictures(result)["loss_per_domain"].axes
    drawn = {c.get_label(): c for c in axes.containers if hasattr(c, "patches")}
    bars = {label: [bar.get_height() for bar in c] for label, c in drawn.items()}
    assert set(bars) == {"oea:k0=1", "oea:k0=2", "lynx"}
    np.testing.assert_allclose(bars["oea:k0=1"], [10.0, 20.0])
    (errors,) = drawn["oea:k0=1"].errorbar.lines[2]
    np.testing.assert_allclose(np.array(errors.get_segments())[:, :, 1], [[9, 11], [18, 22]])
    assert [text.get_text() for text in axes.get_xticklabels()] == ["plays", "sums"]


def test_each_of_many_policies_has_a_colour_of_its_own(result):
    many = [_policy(f"oea:k0={k}", k, 0.1) for k in range(21)]
    (axes,) = plots.pictures(dataclasses.replace(result, policies=many))["experts_per_layer"].axes
    colours = {tuple(np.asarray(line.get_color()).ravel()) for line in axes.lines[1:]}
    assert len(colours) == 21


def test_use_is_shown_of_the_mild_policy_with_the_fewest_experts(result):
    upper, lower, _ = plots.pictures(result)["expert_use"].axes
    assert (upper.get_title(), lower.get_title()) == ("top-k", "lynx")
    np.testing.assert_allclose(upper.images[0].get_array(), _USE)
    np.testing.assert_allclose(lower.images[0].get_array(), result.policies[1].use)


def test_pictures_are_written_as_png(result, tmp_path):
    paths = plots.draw(dataclasses.replace(result, batch=32), tmp_path)
    assert sorted(path.name for path in paths) == [
        "expert_use_32.png",
        "experts_per_layer_32.png",
        "frontier_32.png",
        "loss_per_domain_32.png",
    ]
    assert all(path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n") for path in paths)
