"""Measure an exported demo model with the library itself: losses, load balance, right answers."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from safetensors import safe_open

from demo_recipe import dataset, synthetic
from lynx_jax.generation import Generator
from lynx_jax.loading import LoadedModel, load
from lynx_jax.models.decoder import DecoderForCausalLM
from lynx_jax.policies import TopK
from lynx_jax.routing import Phase

WINDOWS = 64
WINDOW_LENGTH = 256
PROBLEMS = 200
_BATCH = 16


@dataclass(frozen=True)
class Load:
    """How evenly one layer's choices fall on its experts over the held-out text.

    Attributes:
      max_over_mean: the busiest expert's share over the even share.
      min_over_mean: the idlest expert's.
      variation: standard deviation over mean.
      entropy: of the shares, over that of even ones; 1 is even.
    """

    max_over_mean: float
    min_over_mean: float
    variation: float
    entropy: float


@dataclass(frozen=True)
class Results:
    """What the card reports.

    Attributes:
      losses: nats a token, by domain of held-out text.
      load: by layer.
      accuracy: share of exactly right answers, by kind of problem; ``chat`` asks in words.
    """

    losses: dict[str, float]
    load: list[Load]
    accuracy: dict[str, float]


@nnx.jit
def measure(model: DecoderForCausalLM, batch: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(sum of the tokens' cross-entropies, choices [layers, N]) of a batch [B, S + 1]."""
    tokens, targets = batch[:, :-1], batch[:, 1:]
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    live = jnp.ones(tokens.shape, bool)
    hidden, _, routings = model.forward(
        tokens, positions, live, None, phase=Phase.PREFILL, policy=TopK()
    )
    log_probabilities = jax.nn.log_softmax(model.logits(hidden), axis=-1)
    right = jnp.take_along_axis(log_probabilities, targets[..., None], axis=-1)
    experts = model.config.num_experts
    choices = [
        jnp.zeros(experts, jnp.int32).at[layer.routing.ids.reshape(-1)].add(1) for layer in routings
    ]
    return -jnp.sum(right), jnp.stack(choices)


def load_of(choices: np.ndarray) -> Load:
    """The measures of one layer's choices an expert."""
    share = choices / choices.sum()
    ratio = share * len(share)
    positive = share[share > 0]
    entropy = -float(np.sum(positive * np.log(positive))) / float(np.log(len(share)))
    return Load(float(ratio.max()), float(ratio.min()), float(ratio.std()), entropy)


def held_out(loaded: LoadedModel, data: Path) -> tuple[dict[str, float], list[Load]]:
    """Losses by domain and load by layer over windows of the held-out text."""
    losses: dict[str, float] = {}
    total = 0
    for domain, windows in dataset.held_out_windows(data, WINDOW_LENGTH, WINDOWS).items():
        summed = 0.0
        for start in range(0, len(windows), _BATCH):
            batch = windows[start : start + _BATCH]
            entropy, choices = measure(loaded.model, jnp.asarray(batch))
            summed += float(entropy)
            total = total + np.asarray(choices)
        losses[domain] = summed / (windows.shape[0] * WINDOW_LENGTH)
    return losses, [load_of(layer) for layer in np.asarray(total)]


def problems(kind: synthetic.Kind, count: int, seed: int = 1) -> list[synthetic.Problem]:
    """Distinct held-out problems of a kind (of ``mul`` the whole table, which is trained)."""
    rng = random.Random(f"{kind} {seed}")
    if kind == "mul":
        return [
            synthetic.Problem("mul", f"{a} * {b} =", f" {a * b}", False)
            for a in range(10)
            for b in range(10)
        ]
    found: dict[str, synthetic.Problem] = {}
    while len(found) < count:
        item = synthetic.sample(rng, held_out=True, kinds=(kind,))
        found[item.prompt] = item
    return list(found.values())


def accuracy(loaded: LoadedModel, count: int = PROBLEMS) -> dict[str, float]:
    """Share of problems answered exactly, greedily, with plain top-k routing."""
    generator = Generator(loaded, policy="off", max_batch=_BATCH)
    scores = {}
    for kind in synthetic.KINDS:
        items = problems(kind, count)
        batch = generator.generate([item.prompt for item in items], max_new_tokens=12, stop=("\n",))
        right = [
            r.text.strip() == i.answer.strip() for r, i in zip(batch.results, items, strict=True)
        ]
        scores[kind] = sum(right) / len(right)
    rng = random.Random(0)
    asked = [
        synthetic.as_question(item, rng)
        for kind in ("add", "sub", "compare", "trace")
        for item in problems(kind, count // 4, seed=2)
    ]
    batch = generator.generate(
        [[{"role": "user", "content": question}] for question, _ in asked], max_new_tokens=24
    )
    right = [r.text.strip() == a for r, (_, a) in zip(batch.results, asked, strict=True)]
    scores["chat"] = sum(right) / len(right)
    return scores


def trained(folder: Path) -> tuple[int, int]:
    """(steps, tokens) that an exported folder was trained for."""
    with safe_open(folder / "model.safetensors", "numpy") as opened:
        metadata = opened.metadata()
    return int(metadata["step"]), int(metadata["tokens"])


def evaluate(folder: Path, data: Path, count: int = PROBLEMS) -> Results:
    """All measures of the model in ``folder`` on the held-out side of ``data``."""
    loaded = load(folder)
    losses, load_by_layer = held_out(loaded, data)
    return Results(losses, load_by_layer, accuracy(loaded, count))
