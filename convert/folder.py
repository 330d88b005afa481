"""Opening a checkpoint folder of either form."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lynx_jax.convert.converted import ConvertedReader, is_converted
from lynx_jax.convert.hugging_face import HuggingFaceReader
from lynx_jax.convert.quantization import read_packing
from lynx_jax.convert.reader import CheckpointReader, TensorInfo, abstract_model, parameters_of
from lynx_jax.convert.workspace import SUFFIX
from lynx_jax.errors import InputError
from lynx_jax.files import read_json
from lynx_jax.models import Family, get_family
from lynx_jax.models.config import DecoderConfig


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint: every tensor's name, shape and dtype is known to fit the model.

    Attributes:
      folder: where it is.
      raw_config: content of its config.json.
      family: the architecture.
      config: the model's config.
      reader: gives the tensors.
      float32: parameters that the family keeps in float32 whatever dtype the others have.
    """

    folder: Path
    raw_config: dict[str, Any]
    family: Family
    config: DecoderConfig
    reader: CheckpointReader
    float32: frozenset[str]

    def dtype_of(self, info: TensorInfo, asked: np.dtype | None) -> np.dtype:
        """The dtype that a parameter gets where ``asked`` is asked for all, or none is."""
        if info.path in self.float32:
            return np.dtype(np.float32)
        return info.dtype if asked is None else asked


def open_checkpoint(folder: Path) -> Checkpoint:
    """Open a Hugging Face folder of safetensors or a converted folder.

    Raises:
      InputError: it is no such folder, is damaged, incomplete or not supported.
    """
    raw = read_config(folder)
    family = get_family(raw["model_type"])
    config = family.config_class.from_dict(raw)
    parameters = parameters_of(abstract_model(family, config))
    shapes = {path: parameter.shape for path, parameter in parameters.items()}
    reader: CheckpointReader
    if is_converted(folder):
        reader = ConvertedReader(folder, shapes)
    else:
        reader = HuggingFaceReader(folder, family.weights, shapes, read_packing(raw))
    float32 = frozenset(path for path, p in parameters.items() if p.dtype == np.float32)
    return Checkpoint(folder, raw, family, config, reader, float32)


def read_config(folder: Path) -> dict[str, Any]:
    """The content of a checkpoint's config.json; it names a ``model_type``.

    Raises:
      InputError: the folder or the file is missing, or the form of the weights is not supported.
    """
    if folder.is_file():
        hint = "; GGUF is not supported" if folder.suffix == ".gguf" else ""
        raise InputError(f"{folder} is a file, expected a folder with config.json{hint}")
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; give one that holds a checkpoint")
    if folder.resolve().name.endswith(SUFFIX):
        raise InputError(f"{folder} is an unfinished conversion; convert again")
    path = folder / "config.json"
    if not path.exists():
        gguf = any(folder.glob("*.gguf"))
        found = "GGUF files, which are not supported" if gguf else "none"
        raise InputError(f"{folder}: expected config.json of a checkpoint, found {found}")
    raw = read_json(path)
    if not isinstance(raw.get("model_type"), str):
        raise InputError(f"{path}: lacks the field 'model_type'; take the published config.json")
    return raw
