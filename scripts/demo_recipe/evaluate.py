"""Measure an exported demo model with the library itself: losses, load balance, right answers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from safetensors import safe_open

from demo_recipe import dataset, synthetic
from lynx_jax.generation import GenerationBatch, Generator
from lynx_jax.loading import LoadedModel, load
from lynx_jax.models.decoder import DecoderForCausalLM
from lynx_jax.policies import TopK
from lynx_jax.routing import Phase

WINDOWS = 64
WINDOW_LENGTH = 256
PROBLEMS = 100
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
class Score:
    """Share of exactly right answers to problems of one kind and side.

    Attributes:
      kind: of the problems.
      held_out: whether training never showed them.
      count: how many were asked.
      plain: share right as a line to go on with.
      chat: share right as a question through the chat template.
    """

    kind: synthetic.Kind
    held_out: bool
    count: int
    plain: float
    chat: float


@dataclass(frozen=True)
class Results:
    """What the card reports.

    Attributes:
      losses: nats a token, by domain of held-out text.
      load: by layer.
      accuracy: scores by kind of problem and side.
    """

    losses: dict[str, float]
    load: list[Load]
    accuracy: list[Score]


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


def problems(kind: synthetic.Kind, *, held_out: bool) -> list[synthetic.Problem]:
    """Up to ``PROBLEMS`` distinct problems of one side, in a random but fixed order."""
    rng = random.Random(kind)
    if kind == "trace":
        found: dict[str, synthetic.Problem] = {}
        while len(found) < PROBLEMS:
            item = synthetic.sample(rng, held_out=held_out, kinds=(kind,))
            found[item.prompt] = item
        return list(found.values())
    items = [item for item in synthetic.all_facts(kind) if item.held_out == held_out]
    rng.shuffle(items)
    return items[:PROBLEMS]


def accuracy(loaded: LoadedModel) -> list[Score]:
    """Scores of greedy answers with plain top-k routing, on both sides and in both wordings."""
    generator = Generator(loaded, policy="off", max_batch=_BATCH)
    rng = random.Random(0)
    scores = []
    for kind in synthetic.KINDS:
        for held_out in (False, True):
            items = problems(kind, held_out=held_out)
            if not items:
                continue
            asked = [synthetic.as_question(item, rng) for item in items]
            lines = generator.generate([i.prompt for i in items], max_new_tokens=12, stop=("\n",))
            chats = generator.generate(
                [[{"role": "user", "content": question}] for question, _ in asked],
                max_new_tokens=24,
            )
            plain = _share_right(lines, [item.answer for item in items])
            chat = _share_right(chats, [answer for _, answer in asked])
            scores.append(Score(kind, held_out, len(items), plain, chat))
    return scores


def _share_right(batch: GenerationBatch, answers: Sequence[str]) -> float:
    pairs = zip(batch.results, answers, strict=True)
    return sum(result.text.strip() == answer.strip() for result, answer in pairs) / len(answers)


def trained(folder: Path) -> tuple[int, int]:
    """(steps, tokens) that an exported folder was trained for."""
    with safe_open(folder / "model.safetensors", "numpy") as opened:
        metadata = opened.metadata()
    return int(metadata["step"]), int(metadata["tokens"])


def evaluate(folder: Path, data: Path) -> Results:
    """All measures of the model in ``folder`` on the held-out side of ``data``."""
    loaded = load(folder)
    losses, load_by_layer = held_out(loaded, data)
    return Results(losses, load_by_layer, accuracy(loaded))
