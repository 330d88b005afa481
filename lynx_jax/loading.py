"""Loading a checkpoint: model, config, tokenizer and end-of-text ids."""

import importlib.resources
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from lynx_jax.backends import ExpertBackend, ExpertSizes, LayerRouter, get_backend
from lynx_jax.convert.folder import Checkpoint, open_checkpoint, read_config
from lynx_jax.convert.numerics import parse_dtype
from lynx_jax.convert.reader import abstract_model, dotted
from lynx_jax.errors import InputError
from lynx_jax.files import read_json
from lynx_jax.models.config import DecoderConfig, text_part
from lynx_jax.models.decoder import DecoderForCausalLM
from lynx_jax.models.moe import SparseMoeBlock
from lynx_jax.placing import ShardingOf, Stored
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
      backend: how experts are computed: ``"auto"``, ``"loop"``, ``"mosaic"`` or ``"reference"``.
      dtype: ``"float32"``, ``"bfloat16"`` or ``"float16"`` for all weights; None keeps each one's.
        Either way a router is in float32 where its family keeps it so.

    Raises:
      InputError: something is missing, damaged or not supported; one line that names it.
    """
    folder = resolve(path)
    raw = read_config(folder)
    tokenizer = Tokenizer.from_folder(folder)
    eos_token_ids = _eos_token_ids(folder, raw) | tokenizer.eos_token_ids
    checkpoint = open_checkpoint(folder)
    target = _target(dtype)
    chosen = get_backend(backend, _experts(checkpoint, target), _routers(checkpoint))
    model = _model(checkpoint, chosen, target, None)
    return LoadedModel(model, model.config, tokenizer, eos_token_ids, folder, chosen.name)


def load_model(
    path: str | Path,
    *,
    backend: ExpertBackend,
    dtype: str | None = None,
    sharding: ShardingOf | None = None,
) -> DecoderForCausalLM:
    """Load only the model of a checkpoint.

    One parameter at a time goes to its devices, so the host never holds the model twice.

    Args:
      path: see ``load``.
      backend: how experts are computed.
      dtype: see ``load``.
      sharding: the sharding of each parameter by its path and shape, such as ``NamedSharding`` of a
        mesh; each device's part is read for itself. None for the default device.

    Raises:
      InputError: something is missing, damaged or not supported; one line that names it.
    """
    return _model(open_checkpoint(resolve(path)), backend, _target(dtype), sharding)


def _target(dtype: str | None) -> np.dtype | None:
    return None if dtype is None else parse_dtype(dtype)


def _experts(checkpoint: Checkpoint, target: np.dtype | None) -> set[ExpertSizes]:
    """Sizes of the layers' experts and their dtype once loaded."""
    return {
        ExpertSizes(info.shape[1], info.shape[2], checkpoint.dtype_of(info, target))
        for info in checkpoint.reader.tensors
        if info.path.endswith(".experts.down_proj")
    }


def _routers(checkpoint: Checkpoint) -> Iterator[LayerRouter]:
    """The layers' routers; begins by building the model in shapes alone."""
    config = checkpoint.config
    for _, module in nnx.iter_modules(abstract_model(checkpoint.family, config)):
        if isinstance(module, SparseMoeBlock):
            yield LayerRouter(module.router, module.k, config.num_experts)


def _model(
    checkpoint: Checkpoint,
    backend: ExpertBackend,
    target: np.dtype | None,
    sharding: ShardingOf | None,
) -> DecoderForCausalLM:
    compute = target if target is not None else _main_dtype(checkpoint)
    model = abstract_model(checkpoint.family, checkpoint.config, backend=backend, dtype=compute)
    wanted = {dotted(path) for path, _ in nnx.to_flat_state(nnx.state(model))}
    arrays: dict[str, jax.Array] = {}
    for info in checkpoint.reader.tensors:
        whole = Stored(checkpoint.reader, info, checkpoint.dtype_of(info, target))
        for stored in [whole] if info.path in wanted else whole.experts():
            arrays[stored.path] = stored.place(sharding)
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
    parts = (
        ("config.json", raw_config),
        ("config.json", text_part(raw_config)),
        (path.name, generation),
    )
    for name, raw in parts:
        value = raw.get("eos_token_id")
        ids = [] if value is None else value if isinstance(value, list) else [value]
        if not all(type(i) is int and 0 <= i < 2**31 for i in ids):
            raise InputError(
                f"{folder / name}: expected eos_token_id as an id or a list of ids, got {value!r}"
            )
        found.update(ids)
    return frozenset(found)
