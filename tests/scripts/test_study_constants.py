"""The study of constants: choosing, comparing and plain top-k0."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from study_recipe import reporting, texts
from study_recipe.choosing import Router, at_cost, best_shape, fit_width, fitted_formula, floor_of
from study_recipe.comparing import at_experts
from study_recipe.measuring import Measured
from study_recipe.reduced import with_top_k0
from study_recipe.settings import WIDTHS, lynx, rivals, shapes
from study_recipe.settings import family as family_of
from study_recipe.stages import Study

from lynx_jax.errors import InputError
from lynx_jax.models.moe import SparseMoeBlock
from lynx_jax.policies import TopK
from lynx_jax.policy_spec import parse_policy
from lynx_jax.teacher_forced import TeacherForced
from tests.models import golden

ROOT = Path(__file__).parents[2]
ROUTERS = [Router(2, 8), Router(4, 32), Router(6, 64), Router(8, 64)]


def made_grid(router, exponent, factor=1.0, best=2):
    """Divergence (0.1 * factor * (N/k)^exponent / width)^2; shapes of the best beta read least."""
    scale = factor * 2 ** (exponent * router.halvings)
    made = {}
    for shape in shapes(router.k):
        for width in WIDTHS:
            share = 1 - 0.1 / width - (0.05 if shape[0] == best else 0)
            made[lynx(width, *shape)] = {
                "share": share,
                "divergence": {"mean": (0.1 * scale / width) ** 2},
            }
    return {"settings": made}


@given(st.floats(-0.15, 0.15), st.floats(0.9, 1.1), st.sampled_from(["1", "k/4"]))
@settings(max_examples=30, deadline=None)
def test_a_power_of_the_ratio_is_found_from_the_other_routers(exponent, factor, floor):
    grids = {router: made_grid(router, exponent, factor) for router in ROUTERS}
    for router in ROUTERS:
        others = {other: grid for other, grid in grids.items() if other != router}
        beta, width = fitted_formula(others, 0.012, floor, slope=True)
        expected = 0.1 * factor * 2 ** (exponent * router.halvings) / 0.012**0.5
        assert beta == 2
        assert width(router) == pytest.approx(expected, rel=1e-6)


def test_one_width_is_the_middle_of_the_others():
    width = fit_width({ROUTERS[0]: 1.0, ROUTERS[1]: 4.0}, slope=False)
    assert width(ROUTERS[2]) == pytest.approx(2.0)


def test_floors_are_at_least_one_and_below_k():
    assert [floor_of("k/4", router) for router in ROUTERS] == [1, 1, 1, 2]


def test_a_slope_needs_two_ratios_and_costs_that_nobody_has_give_nothing():
    same = {router: made_grid(router, 0.0) for router in (Router(4, 32), Router(8, 64))}
    assert fitted_formula(same, 0.012, "1", slope=True) is None
    assert fitted_formula(same, 0.012, "1", slope=False) is not None
    assert best_shape(made_grid(ROUTERS[1], 0.0), 4, 50.0) is None


def test_only_the_branch_up_to_the_mildest_width_counts():
    curve = [(0.5, 0.6, 0.04), (1.0, 0.8, 0.01), (2.0, 0.7, 0.03)]
    point = at_cost(curve, 0.02)
    assert point.width == pytest.approx(0.5**0.5)
    assert point.share == pytest.approx(0.7)
    assert at_cost(curve, 0.009) is None


def test_the_best_shape_reads_least_at_the_cost():
    (beta, _), point = best_shape(made_grid(Router(8, 64), 0.0), 8, 0.012)
    assert beta == 2
    assert point.width == pytest.approx(0.1 / 0.012**0.5)


def test_losses_at_equal_experts_lie_between_the_nearest_members():
    def member(experts, loss):
        return Measured(np.full(4, loss), np.zeros(4), experts)

    family = [member(10.0, 3.0), member(20.0, 2.0), member(40.0, 1.0)]
    np.testing.assert_allclose(at_experts(family, 12.5), 2.75)
    np.testing.assert_allclose(at_experts(family, 40.0), 1.0)
    assert at_experts(family, 9.9) is None


@pytest.mark.parametrize("router", ROUTERS, ids=str)
def test_every_setting_of_the_grids_is_possible(router):
    names = [lynx(width, *shape) for shape in shapes(router.k) for width in WIDTHS]
    for family, members in rivals(router.k, router.num_experts).items():
        names += members if family != "topk0" else []
    assert {family_of(name) for name in names} == {"lynx", "oea", "xshare", "demand"}
    for name in names:
        policy = parse_policy(name, router.k, router.num_experts)
        assert type(policy).__name__.lower() == family_of(name)


def test_the_halves_share_no_text(tmp_path):
    np.save(tmp_path / "held_out_a_tokens.npy", np.arange(2000, dtype=np.uint16))
    np.save(tmp_path / "held_out_b_tokens.npy", np.arange(2000, 5000, dtype=np.uint16))
    choose, report = (texts.windows(tmp_path, half) for half in ("choose", "report"))
    seen = np.concatenate([choose.tokens.ravel(), report.tokens.ravel()])
    assert len(np.unique(seen)) == seen.size
    assert set(choose.domains) == set(report.domains) == {"a", "b"}
    (batch,) = texts.groups(tmp_path, "report", 4, 4)
    assert batch.tokens.shape == (4, texts.LENGTH + 1)
    assert batch.domains.count("a") == 2


def test_plain_top_k0_leaves_prompts_alone_and_uses_k0_in_decode():
    model = nnx.clone(golden.load("qwen3_moe", "reference").model)
    mixture = next(layer for layer in model.layers if isinstance(layer.mlp, SparseMoeBlock))
    model.layers = nnx.List([mixture])
    plain, k = mixture.mlp, mixture.mlp.k
    x = jax.random.normal(jax.random.key(0), (3, 6, model.config.hidden_size))
    live = jnp.ones((3, 6), bool)

    @nnx.jit
    def run(block):
        y, chosen = block(x, live, phase=TeacherForced(4), policy=TopK())
        return y, chosen.steps.active

    as_trained, _ = run(plain)
    same, fewer = (run(with_top_k0(model, k0).layers[0].mlp) for k0 in (k, 1))
    np.testing.assert_array_equal(same[0], as_trained)
    np.testing.assert_array_equal(fewer[0][:, :4], as_trained[:, :4])
    assert (jnp.abs(fewer[0] - as_trained)[:, 4:].max(axis=-1) > 0).all()
    assert fewer[1][4:].sum(axis=1).max() <= 3
    assert model.layers[0].mlp is plain


def test_the_docs_show_the_results_that_are_kept():
    study = Study(ROOT, ROOT / "benchmarks" / "study", tuple(ROUTERS))
    tests = [study.read(router, "test_16") for router in ROUTERS]
    table = reporting.rule_table(tests)
    assert table in (ROOT / "docs" / "study.md").read_text(encoding="utf-8")
    for test in tests:
        printed = reporting.tables(test)
        assert all(f"| `{setting}` |" in printed for setting in test["settings"])


def test_what_is_missing_is_one_line(tmp_path):
    with pytest.raises(InputError, match=r"earlier stage in .*constants_2of8_test_16\.json"):
        Study(tmp_path, tmp_path, tuple(ROUTERS)).read(ROUTERS[0], "test_16")
    with pytest.raises(InputError, match="expected held_out"):
        texts.windows(tmp_path, "choose")
