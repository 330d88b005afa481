"""The sections of the GPU check at tiny shapes, interpreted on CPU."""

import itertools
import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compile_recipe.routing_cases import Layer
from gpu_recipe import decode_times, device, expert_times, kernel_checks, routing_times
from gpu_recipe.cases import Deadline
from gpu_recipe.report import failures, without_times
from gpu_recipe.settings import Family, Settings

from lynx_jax.errors import InputError
from lynx_jax.pallas_kernels.expert_shapes import FAMILIES, ExpertShape
from lynx_jax.policies import TopK
from lynx_jax.policy_forms import DEFAULT_POLICY
from lynx_jax.routers import Router
from lynx_jax.routing import route

TINY_FAMILY = Family(Layer(4, 2, Router("softmax", "renormalize")), ExpertShape(4, 2, 64, 64))
TINY = Settings(
    interpret=True,
    families={"tiny": TINY_FAMILY},
    batches=(2,),
    many=None,
    modes=("lynx",),
    measured=("tiny",),
    active=(1, 4),
    steps=1,
    repeats=1,
    seconds=0.0,
    copied=2**12,
    poisoned=2**16,
    model={
        "model_type": "qwen3_moe",
        "vocab_size": 32,
        "hidden_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "moe_intermediate_size": 64,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e4,
    },
    decode_batches=(2,),
    policies=("lynx:alpha=1,beta=1",),
    context=3,
    decode_steps=1,
)
TURNS = itertools.cycle((np.float32(0), np.float32(1)))


class Spoiled:
    """Plain JAX under the kernels' name, with something wrong in its results or nothing."""

    name, split = "mosaic", False

    def __init__(self, wrong):
        self.wrong = wrong

    def route(self, logits, live, **settings):
        routing = route(logits, live, **settings)
        combine, row = routing.combine_matrix(), jnp.argmax(live)
        match self.wrong:
            case "weights":
                combine = combine * (1 + 1e-5)
            case "id":
                swapped = routing.ids[row, ::-1]
                return replace(routing, ids=routing.ids.at[row].set(swapped), combine=combine)
            case "list":
                return replace(routing, num_active=routing.num_active - 1, combine=combine)
            case "unwritten":
                combine = combine.at[row, 0].set(jnp.nan)
        return replace(routing, combine=combine)

    def __call__(self, x, routing, weights, *, form, phase):
        y = TINY.loop(x, routing, weights, form=form, phase=phase)
        match self.wrong:
            case "element":
                return y.at[1, 63].add(0.1)
            case "unwritten":
                return y.at[0, 0].set(jnp.nan)
            case "unrepeatable":  # but close enough
                count = jax.ShapeDtypeStruct((), jnp.float32)
                more = 1 + 2.0**-7 * jax.pure_callback(lambda: next(TURNS), count)
                return y.at[0, 0].set((y[0, 0] * more).astype(y.dtype))
        return y


@pytest.fixture
def plain(monkeypatch):
    """For what asks nothing of the kernels: interpreting them takes long."""
    monkeypatch.setattr(Settings, "mosaic", Spoiled(None))


def rows_of(section, settings=TINY, seconds=1e4):
    """The section's rows by case, and checked that nothing failed."""
    rows = list(section.run(settings, 1, Deadline(seconds)))
    assert not failures(rows)
    kept = [without_times(row) for row in rows]
    assert all(row["gpu"] is False for row in kept)
    assert not any(word in key for row in kept for key in row for word in ("_us", "_ms", "gb_s"))
    return {row["case"]: row for row in kept}, rows


def test_device_is_described():
    _, (described, copy) = rows_of(device)
    assert described["jax"] == jax.__version__
    assert copy["copy_gb_s"] > 0


def test_kernels_are_checked():
    rows, _ = rows_of(kernel_checks)
    assert set(rows) == {"experts tiny, B=2", "routing tiny, B=2, lynx"}
    assert all(row["ok"] and row["repeatable"] for row in rows.values())
    assert rows["routing tiny, B=2, lynx"]["equal"]


def test_experts_of_many_rows_are_checked():
    row = kernel_checks.check_experts(TINY, TINY_FAMILY, 65, 1, Deadline(1e4))
    assert row["ok"]
    assert row["repeatable"]


def test_every_family_is_checked_with_the_default_policy_and_last_with_lynx(monkeypatch):
    for check in ("check_routing", "check_experts"):
        monkeypatch.setattr(kernel_checks, check, lambda *_: {"ok": True})
    settings = Settings()
    cases = [row["case"] for row in kernel_checks.run(settings, 1, Deadline(1e4))]
    assert len(cases) == len(set(cases))
    first, *others = settings.families
    for family in settings.families:
        assert f"routing {family}, B=16, {DEFAULT_POLICY}" in cases
    assert f"routing {first}, B=16, lynx" in cases
    assert cases[-len(others) :] == [f"routing {family}, B=16, lynx" for family in others]
    for mode in settings.modes:
        assert f"routing Qwen3-30B-A3B, B=16, {mode}" in cases


@pytest.mark.usefixtures("plain")
def test_routing_and_its_layer_are_timed():
    rows, timed = rows_of(routing_times)
    layers, alone = ("lynx", "demand"), ("off", "oea", "xshare")
    assert set(rows) == {f"tiny, B=2, {mode}" for mode in layers + alone}
    for row in timed:
        assert row["routing_us"] > 0
        assert ("layer_us" in row) == (row["mode"] in layers)
        if "layer_us" in row:
            assert row["share_of_layer"] == row["routing_us"] / row["layer_us"]


@pytest.mark.usefixtures("plain")
def test_experts_are_timed_against_those_in_use():
    rows, timed = rows_of(expert_times)
    assert [row["case"] for row in timed] == [
        *(f"tiny, {n} experts" for n in (1, 4)),
        "tiny, line",
        "tiny, B=2",
    ]
    point = timed[1]
    read = 4 * 3 * 64 * 64 * 2
    assert point["mosaic_gb_s"] == pytest.approx(read / point["mosaic_us"] / 1e3)
    assert {"us_an_expert", "r2"} <= timed[2].keys()
    assert timed[3]["published_us"] is None
    assert rows["tiny, B=2"]["active"] == 4


@pytest.mark.usefixtures("plain")
def test_decode_steps_are_timed():
    rows, (weights, step) = rows_of(decode_times)
    assert weights["weight_bytes"] == 2 * sum(
        (2 * 32 * 64, 64, 2 * 64, 2 * 32, 64 * (64 + 64 + 2 * 32), 4 * 64, 4 * 3 * 64 * 64)
    )
    assert step["tpot_ms"] > 0
    kept = rows["B=2, lynx:alpha=1,beta=1"]
    assert 2 <= kept["experts"] <= kept["topk_experts"] <= 4


@pytest.mark.usefixtures("plain")
def test_sections_out_of_time_run_nothing():
    rows = list(routing_times.run(TINY, 1, Deadline(0)))
    assert {row.get("skipped") for row in rows} == {"out of time"}


def test_every_family_is_checked_with_its_own_router():
    families = Settings().families
    assert set(families) == set(FAMILIES)
    for family in families.values():
        assert (family.router.experts, family.router.k) == family.experts[:2]


def test_published_times_name_their_source():
    published = json.loads(expert_times.PUBLISHED.read_text(encoding="utf-8"))
    assert published["licence"] == "Apache-2.0"
    assert "moe_perf.parquet" in published["source"]
    assert set(published["microseconds"]) <= set(Settings().measured)


@pytest.mark.parametrize("wrong", ["weights", "id", "list", "unwritten"])
def test_wrong_routing_fails_the_check(wrong, monkeypatch):
    monkeypatch.setattr(Settings, "mosaic", Spoiled(wrong))
    row = kernel_checks.check_routing(TINY, TINY_FAMILY, 2, TopK(), 2, Deadline(60))
    assert row["ok"] is False


def test_what_no_kernel_routes_is_not_checked_off(monkeypatch):
    monkeypatch.setattr(Settings, "mosaic", Spoiled(None))
    with pytest.raises(InputError, match="take 32767 rows"):
        kernel_checks.check_routing(TINY, TINY_FAMILY, 2**15, TopK(), 2, Deadline(60))


@pytest.mark.parametrize("wrong", ["element", "unwritten", "unrepeatable"])
def test_wrong_experts_fail_the_check(wrong, monkeypatch):
    monkeypatch.setattr(Settings, "mosaic", Spoiled(wrong))
    row = kernel_checks.check_experts(TINY, TINY_FAMILY, 2, 2, Deadline(60))
    assert row["ok"] is False
    assert row["repeatable"] == (wrong == "element")
