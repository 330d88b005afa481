"""Small models at several ratios k/N, to see how policies and their constants fare on each.

All have the same width, depth, text and batches, and as many active parameters a token; they differ
in how many experts these are cut into and how many a token uses.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from demo_recipe.export import export
from demo_recipe.trainer import LOG, Settings, Trainer
from demo_recipe.training_model import Shape

WIDTH = 192
ACTIVE_WIDTH = 384  # hidden units of the experts that a token uses, all together
ROUTERS = ((2, 8), (4, 32), (6, 64), (8, 64))
STEPS = 1800
TOKENS_PER_STEP = 2048


def settings_for(k: int, num_experts: int) -> Settings:
    """The run of the model whose tokens use ``k`` of ``num_experts`` experts."""
    shape = Shape(
        hidden_size=WIDTH,
        num_attention_heads=3,
        num_key_value_heads=1,
        num_experts=num_experts,
        num_experts_per_tok=k,
        moe_intermediate_size=ACTIVE_WIDTH // k,
    )
    return replace(
        Settings(shape=shape),
        steps=STEPS,
        tokens_per_step=TOKENS_PER_STEP,
        long_share=0.0,
        warmup=100,
    )


def name_of(k: int, num_experts: int) -> str:
    """Name of a model's folder and log."""
    return f"{k}of{num_experts}"


def train(work: Path, logs: Path, k: int, num_experts: int, *, checkpoint_seconds: float) -> Path:
    """Train on ``work/data``, or go on from the checkpoint; returns the exported folder."""
    name, settings = name_of(k, num_experts), settings_for(k, num_experts)
    folder = work / "study" / name
    Trainer(work / "data", folder, settings, checkpoint_seconds=checkpoint_seconds).run()
    target = folder / "model"
    export(folder, target, settings, data=work / "data")
    logs.mkdir(parents=True, exist_ok=True)
    shutil.copy(folder / LOG, logs / f"{name}.jsonl")
    return target
