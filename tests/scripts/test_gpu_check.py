"""The GPU check without a GPU: its sections at tiny shapes, interpreted, and what runs them."""

from pathlib import Path

import jax
import pytest
from compile_recipe.routing_cases import Layer
from gpu_recipe import decode_times, device, expert_times, kernel_checks, routing_times
from gpu_recipe.cases import Deadline
from gpu_recipe.report import failures, without_times
from gpu_recipe.settings import Family, Settings

from lynx_jax.pallas_kernels.expert_shapes import ExpertShape
from lynx_jax.routers import Router

SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu_check.py"
TINY_FAMILY = Family(Layer(8, 2, Router("softmax", "renormalize")), ExpertShape(8, 2, 64, 64))
TINY = Settings(
    interpret=True,
    families={"tiny": TINY_FAMILY},
    batches=(4,),
    many=None,
    modes=("lynx",),
    measured=("tiny",),
    active=(1, 2, 8),
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
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e4,
    },
    decode_batches=(4,),
    policies=("lynx:alpha=1,beta=1",),
    context=3,
    decode_steps=1,
)


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
    assert set(rows) == {"experts tiny, B=4", "routing tiny, B=4, lynx"}
    assert all(row["ok"] and row["repeatable"] for row in rows.values())
    assert rows["routing tiny, B=4, lynx"]["equal"]


def test_routing_and_its_layer_are_timed():
    rows, (timed,) = rows_of(routing_times)
    assert set(rows) == {"tiny, B=4"}
    assert timed["share_of_layer"] == timed["routing_us"] / timed["layer_us"]


def test_experts_are_timed_against_those_in_use():
    rows, timed = rows_of(expert_times)
    assert [row["case"] for row in timed] == [
        *(f"tiny, {n} experts" for n in (1, 2, 8)),
        "tiny, line",
        "tiny, B=4",
    ]
    point = timed[2]
    read = 8 * 3 * 64 * 64 * 2
    assert point["mosaic_gb_s"] == pytest.approx(read / point["mosaic_us"] / 1e3)
    assert {"us_an_expert", "r2"} <= timed[3].keys()
    assert timed[4]["published_us"] is None
    assert rows["tiny, B=4"]["active"] == 8


def test_decode_steps_are_timed():
    rows, (weights, step) = rows_of(decode_times)
    assert weights["weight_bytes"] == 2 * sum(
        (2 * 32 * 64, 64, 2 * 64, 2 * 32, 64 * (64 + 64 + 2 * 32), 8 * 64, 8 * 3 * 64 * 64)
    )
    assert step["tpot_ms"] > 0
    kept = rows["B=4, lynx:alpha=1,beta=1"]
    assert 2 <= kept["experts"] <= kept["topk_experts"] <= 8
