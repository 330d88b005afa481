"""Loading a checkpoint: model, config, tokenizer and end-of-text ids."""

import importlib.resources
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from lynx_jax.backends import ExpertBackend, get_backend
from lynx_jax.convert.folder import Checkpoint, open_checkpoint, read_config
from lynx_jax.convert.numerics import cast, parse_dtype
from lynx_jax.convert.reader import TensorInfo, dotted
from lynx_jax.errors import InputError
from lynx_jax.files import read_json
from lynx_jax.models.config import DecoderConfig
from lynx_jax.models.decoder import DecoderForCausalLM
from lynx_jax.tokenizer import Tokenizer

DEMO = "demo"


@dataclass(frozen=True)
class LoadedModel:
    """A checkpoint that is ready to generate.

    Attributes:
      model: the NNX module, weights in place.
      config: its config.
      tokenizer: its tokenizer.
      eos_token_ids: every id that ends a text, by config, generation config or tokenizer.
      path: the folder.
      backend_name: how experts are computed in decode.
    """

    model: DecoderForCausalLM
    config: DecoderConfig
    tokenizer: Tokenizer
    eos_token_ids: frozenset[int]
    path: Path
    backend_name: str


def load(path: str | Path, *, backend: str = "auto", dtype: str | None = None) -> LoadedModel:
    """Load a checkpoint with its tokenizer.

    Args:
      path: a Hugging Face folder of safetensors, a converted folder, or ``"demo"`` for the model
        that comes with the package.
      backend: how experts are computed: ``"auto"``, ``"loop"`` or ``"reference"``.
      dtype: ``"float32"``, ``"bfloat16"`` or ``"float16"`` for all weights; None keeps each one's.
        Either way a router is in float32 where its family keeps it so.

    Raises:
      InputError: something is missing, damaged or not supported; one line that names it.
    """
    folder = resolve(path)
    raw = read_config(folder)
    tokenizer = Tokenizer.from_folder(folder)
    eos_token_ids = _eos_token_ids(folder, raw) | tokenizer.eos_token_ids
    chosen = get_backend(backend)
    model = load_model(folder, backend=chosen, dtype=dtype)
    return LoadedModel(model, model.config, tokenizer, eos_token_ids, folder, chosen.name)


def load_model(
    path: str | Path, *, backend: ExpertBackend, dtype: str | None = None
) -> DecoderForCausalLM:
    """Load only the model of a checkpoint; its arguments are those of ``load``.

    One tensor at a time goes to the device, so the host never holds the model twice.

    Raises:
      InputError: something is missing, damaged or not supported; one line that names it.
    """
    checkpoint = open_checkpoint(resolve(path))
    target = None if dtype is None else parse_dtype(dtype)
    compute = target if target is not None else _main_dtype(checkpoint)
    model = nnx.eval_shape(
        lambda: checkpoint.family.model_class(
            checkpoint.config, backend=backend, dtype=compute, rngs=nnx.Rngs(0)
        )
    )
    wanted = {dotted(path) for path, _ in nnx.to_flat_state(nnx.state(model))}
    arrays: dict[str, jax.Array] = {}
    for info in checkpoint.reader.tensors:
        kept = checkpoint.dtype_of(info, target)
        if info.path in wanted:
            stored = checkpoint.reader.read(info, 0, info.num_rows)
            arrays[info.path] = _on_device(stored.reshape(info.shape), info, kept)
            continue
        rows = info.shape[1]
        for expert in range(info.shape[0]):  # the backend wants an array an expert
            stored = checkpoint.reader.read(info, expert * rows, (expert + 1) * rows)
            arrays[f"{info.path}.{expert}"] = _on_device(stored, info, kept)
    return _filled(model, arrays)


def resolve(path: str | Path) -> Path:
    """The folder of a checkpoint; ``"demo"`` is the bundled one."""
    if path != DEMO:
        return Path(path)
    return Path(str(importlib.resources.files("lynx_jax.demo")))


def _main_dtype(checkpoint: Checkpoint) -> np.dtype:
    """The stored dtype that has the most weights."""
    sizes: Counter[np.dtype] = Counter()
    for info in checkpoint.reader.tensors:
        sizes[info.dtype] += math.prod(info.shape)
    return sizes.most_common(1)[0][0]


def _on_device(stored: np.ndarray, info: TensorInfo, dtype: np.dtype) -> jax.Array:
    """A stored array on the device; waits for it, so that host copies do not pile up."""
    array: jax.Array = jax.device_put(cast(stored, dtype, info.path))
    return array.block_until_ready()


def _filled(model: DecoderForCausalLM, arrays: Mapping[str, jax.Array]) -> DecoderForCausalLM:
    """The abstract model with an array for every parameter."""
    graphdef, state = nnx.split(model)
    filled = []
    for path, variable in nnx.to_flat_state(state):
        array = arrays[dotted(path)]
        assert variable.shape == array.shape, path
        filled.append((path, variable.replace(array)))
    return nnx.merge(graphdef, nnx.from_flat_state(filled))


def _eos_token_ids(folder: Path, raw_config: Mapping[str, Any]) -> frozenset[int]:
    """End-of-text ids of config.json and, where it is there, generation_config.json."""
    path = folder / "generation_config.json"
    generation = read_json(path) if path.exists() else {}
    found: set[int] = set()
    for name, raw in (("config.json", raw_config), (path.name, generation)):
        value = raw.get("eos_token_id")
        ids = [] if value is None else value if isinstance(value, list) else [value]
        if not all(type(i) is int and 0 <= i < 2**31 for i in ids):
            raise InputError(
                f"{folder / name}: expected eos_token_id as an id or a list of ids, got {value!r}"
            )
        found.update(ids)
    return frozenset(found)
