"""The training loop: AdamW on a cosine schedule, resumable, logging JSON lines."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from safetensors import safe_open
from safetensors.numpy import save_file

from demo_recipe import dataset, fast_ops
from demo_recipe.training_model import LayerReport, Params, Shape, hidden_states, init_params

CHECKPOINT = "checkpoint.safetensors"
LOG = "log.jsonl"
EVALUATION_WINDOWS = 16


@dataclass(frozen=True)
class Settings:
    """What a run is: the model's sizes, the batches, the optimiser and the auxiliary losses."""

    shape: Shape = field(default_factory=Shape)
    steps: int = 3050
    tokens_per_step: int = 4096
    length: int = 256
    long_length: int = 1024
    long_share: float = 0.1
    peak_rate: float = 2.5e-3
    final_rate: float = 2e-5
    warmup: int = 200
    weight_decay: float = 0.1
    beta2: float = 0.95
    clip: float = 1.0
    balance_weight: float = 0.01
    z_weight: float = 0.001
    capacity_factor: float = 1.25
    seed: int = 0

    def length_at(self, step: int) -> int:
        """Window length of a step: the last ``long_share`` of the steps are long."""
        return self.long_length if step >= self.steps * (1 - self.long_share) else self.length


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """All that a checkpoint holds."""

    params: Params
    optimizer: Any
    step: Array
    tokens: Array


def make_optimizer(settings: Settings) -> optax.GradientTransformation:
    """AdamW with clipping; norms and the router's scale decay like the rest, as is usual."""
    schedule = optax.warmup_cosine_decay_schedule(
        0.0, settings.peak_rate, settings.warmup, settings.steps, settings.final_rate
    )
    return optax.chain(
        optax.clip_by_global_norm(settings.clip),
        optax.adamw(schedule, b2=settings.beta2, weight_decay=settings.weight_decay),
    )


def initial_state(settings: Settings) -> TrainState:
    """A state before the first step."""
    params = init_params(settings.shape, settings.seed)
    return TrainState(
        params,
        make_optimizer(settings).init(params),
        jnp.zeros((), jnp.int32),
        jnp.zeros((), jnp.int32),
    )


def losses(
    params: Params, batch: Array, settings: Settings, dtype: Any = jnp.bfloat16
) -> tuple[Array, tuple[Array, list[LayerReport]]]:
    """(training loss, (cross-entropy, reports)) of a batch [B, S + 1]; computed in ``dtype``."""
    cast = jax.tree.map(lambda leaf: leaf.astype(dtype), params)
    hidden, reports = hidden_states(cast, batch[:, :-1], settings.shape, settings.capacity_factor)
    entropy = fast_ops.tied_cross_entropy(hidden, cast["embed"], batch[:, 1:].reshape(-1))
    balance = sum(report.balance for report in reports) / len(reports)
    z = sum(report.z for report in reports) / len(reports)
    total = entropy + settings.balance_weight * balance + settings.z_weight * z
    return total, (entropy, reports)


@partial(jax.jit, static_argnames="settings", donate_argnums=0)
def train_step(
    state: TrainState, batch: Array, settings: Settings
) -> tuple[TrainState, dict[str, Array]]:
    """One update and its measurements."""
    gradient = jax.value_and_grad(losses, has_aux=True)
    (_, (entropy, reports)), grads = gradient(state.params, batch, settings)
    updates, optimizer = make_optimizer(settings).update(grads, state.optimizer, state.params)
    measured = {
        "loss": entropy,
        "balance": jnp.mean(jnp.stack([report.balance for report in reports])),
        "z": jnp.mean(jnp.stack([report.z for report in reports])),
        "dropped": jnp.mean(jnp.stack([report.dropped for report in reports])),
        "grad_norm": jnp.sqrt(sum(jnp.vdot(leaf, leaf) for leaf in jax.tree.leaves(grads))),
    }
    params = optax.apply_updates(state.params, updates)
    seen = state.tokens + (batch.shape[1] - 1) * batch.shape[0]
    return TrainState(params, optimizer, state.step + 1, seen), measured


@partial(jax.jit, static_argnames="settings")
def held_out_entropy(params: Params, batch: Array, settings: Settings) -> Array:
    """Cross-entropy of a batch, with the training step's capacity."""
    return losses(params, batch, settings)[1][0]


def save(state: TrainState, path: Path, settings: Settings) -> None:
    """Write a checkpoint; a reader sees the old one or the new one."""
    leaves = jax.tree_util.tree_leaves_with_path(state)
    arrays = {jax.tree_util.keystr(where): np.asarray(leaf) for where, leaf in leaves}
    partial_path = path.with_suffix(".partial")
    save_file(arrays, partial_path, {"settings": json.dumps(dataclasses.asdict(settings))})
    os.replace(partial_path, path)


def restore(path: Path, settings: Settings) -> TrainState:
    """The state that ``save`` wrote."""
    template = initial_state(settings)
    leaves, treedef = jax.tree_util.tree_flatten_with_path(template)
    with safe_open(path, "numpy") as opened:
        loaded = [jnp.asarray(opened.get_tensor(jax.tree_util.keystr(at))) for at, _ in leaves]
    return jax.tree_util.tree_unflatten(treedef, loaded)


class _Meter:
    """Means of the measurements since the last reading, and the time they took."""

    def __init__(self, step: int) -> None:
        self._step = step
        self._sums: dict[str, float] = {}
        self._since = time.time()

    def add(self, measured: dict[str, Array]) -> None:
        """Take in one step; waits for it."""
        for name, value in measured.items():
            self._sums[name] = self._sums.get(name, 0.0) + float(value)

    def read(self, step: int, tokens: int) -> dict[str, Any]:
        """The log's entry for the steps up to ``step``; begins anew."""
        count, now = step - self._step, time.time()
        entry = {"event": "train", "step": step, "tokens": tokens}
        entry |= {name: round(total / count, 5) for name, total in self._sums.items()}
        entry |= {"seconds": round(now - self._since, 2), "steps_timed": count}
        self._step, self._sums, self._since = step, {}, now
        return entry


class Trainer:
    """One run in a folder: trains to the last step, or until it is told to stop."""

    def __init__(self, data: Path, folder: Path, settings: Settings, *, checkpoint_seconds: float):
        self._data, self._folder, self._settings = data, folder, settings
        self._checkpoint_seconds = checkpoint_seconds
        self._stopped = False
        folder.mkdir(parents=True, exist_ok=True)
        self._windows = {
            length: dataset.Windows(data, length, settings.tokens_per_step // length, settings.seed)
            for length in {settings.length, settings.long_length}
        }
        self._held_out = dataset.held_out_windows(data, settings.length, EVALUATION_WINDOWS)

    def run(self, *, log_every: int = 20, evaluate_every: int = 250) -> TrainState:
        """Train from the folder's checkpoint, or from the start, and leave a checkpoint."""
        signal.signal(signal.SIGTERM, self._stop)
        path, settings = self._folder / CHECKPOINT, self._settings
        resumed = path.exists()
        state = restore(path, settings) if resumed else initial_state(settings)
        step = first = int(state.step)
        event = "resume" if resumed else "start"
        plan = {"settings": dataclasses.asdict(settings), "mixture": dataset.MIXTURE}
        self._log({"event": event, "step": step} | plan)
        meter = _Meter(step)
        saved_at = time.time()
        while step < settings.steps and not self._stopped:
            batch = self._windows[settings.length_at(step)].batch(step)
            state, measured = train_step(state, batch, settings)
            step += 1
            meter.add(measured)
            if step % log_every == 0 or step == first + 1:
                self._log(meter.read(step, int(state.tokens)))
            if step % evaluate_every == 0 or step == settings.steps:
                self._evaluate(state, step)
            if time.time() - saved_at > self._checkpoint_seconds:
                save(state, path, settings)
                saved_at = time.time()
        save(state, path, settings)
        self._log({"event": "finish" if step >= settings.steps else "stop", "step": step})
        return state

    def _evaluate(self, state: TrainState, step: int) -> None:
        losses_by_domain = {
            domain: round(float(held_out_entropy(state.params, batch, self._settings)), 4)
            for domain, batch in self._held_out.items()
        }
        self._log({"event": "held_out", "step": step, "loss": losses_by_domain})

    def _stop(self, *_: object) -> None:
        self._stopped = True

    def _log(self, entry: dict[str, Any]) -> None:
        with (self._folder / LOG).open("a") as log:
            log.write(json.dumps({"time": round(time.time(), 1)} | entry) + "\n")
