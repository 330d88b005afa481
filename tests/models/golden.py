"""The reference checkpoints of tests/golden, and our models run on them layer by layer."""

import functools
import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from safetensors.numpy import load_file

import lynx_jax
from lynx_jax.loading import LoadedModel
from lynx_jax.models.decoder import DecoderForCausalLM
from lynx_jax.models.moe import LayerRouting
from lynx_jax.policies import TopK
from lynx_jax.routing import Phase

GOLDEN = Path(__file__).parent.parent / "golden"
TOKENIZER = GOLDEN / "qwen3_moe"
CASES = {case["name"]: case for case in json.loads((GOLDEN / "manifest.json").read_text())["cases"]}


@dataclass(frozen=True)
class FullPass:
    """One pass over whole sequences.

    Attributes:
      hidden: the stream behind each layer, [rows, tokens, width].
      routings: by layer; only sparse layers are in it.
      logits: [rows, tokens, vocab].
    """

    hidden: list[jax.Array]
    routings: dict[int, LayerRouting]
    logits: jax.Array


@functools.cache
def expected(case: str) -> dict[str, np.ndarray]:
    """What the reference computes."""
    return load_file(GOLDEN / CASES[case]["expected"])


@functools.cache
def load(case: str, backend: str, dtype: str = "float32") -> LoadedModel:
    """The case's checkpoint in a dtype, with the config.json of the case.

    A folder without a tokenizer gets one that has nothing to do with the model.
    """
    folder = GOLDEN / CASES[case]["folder"]
    with tempfile.TemporaryDirectory() as name:
        complete = Path(name) / "checkpoint"
        if not (folder / "tokenizer.json").exists():
            shutil.copytree(TOKENIZER, complete, ignore=shutil.ignore_patterns("*.safetensors*"))
        shutil.copytree(folder, complete, dirs_exist_ok=True)
        if CASES[case]["config"] is not None:
            shutil.copy(GOLDEN / CASES[case]["config"], complete / "config.json")
        return lynx_jax.load(complete, backend=backend, dtype=dtype)


def full_pass(model: DecoderForCausalLM, ids: np.ndarray, live: np.ndarray | None = None):
    """Run whole sequences in prefill; ``live`` is False at padding."""
    live = np.ones(ids.shape, bool) if live is None else live
    x = model.embed_tokens(ids)
    hidden, routings = [], {}
    for index, layer in enumerate(model.layers):
        x, routing = _layer(layer, x, live)
        hidden.append(x)
        if routing is not None:
            routings[index] = routing
    return FullPass(hidden, routings, model.logits(model.norm(x)))


@nnx.jit  # layers of one form compile once
def _layer(layer, x, live):
    positions = jnp.broadcast_to(jnp.arange(x.shape[1]), x.shape[:2])
    x, _, routing = layer(x, positions, live, None, phase=Phase.PREFILL, policy=TopK())
    return x, routing


@nnx.jit
def decode(model, ids, live):
    """Logits [rows, tokens, vocab] of feeding ``ids`` token by token through the cache."""
    rows, length = ids.shape

    def step(cache, inputs):
        tokens, position = inputs
        hidden, cache, _ = model.forward(
            tokens[:, None],
            jnp.full((rows, 1), position),
            live[:, None],
            cache,
            phase=Phase.DECODE,
            policy=TopK(),
        )
        return cache, model.logits(hidden[:, 0])

    _, logits = jax.lax.scan(step, model.init_cache(rows, length + 3), (ids.T, jnp.arange(length)))
    return logits.swapaxes(0, 1)
