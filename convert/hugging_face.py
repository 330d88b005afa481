"""Reading a Hugging Face folder of safetensors files."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from lynx_jax.convert.packing import Packing
from lynx_jax.convert.plan import match
from lynx_jax.convert.reader import TensorInfo
from lynx_jax.convert.safetensors_file import StoredTensor, read_header
from lynx_jax.errors import InputError
from lynx_jax.files import read_json
from lynx_jax.models.weights import WeightTable

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"


class HuggingFaceReader:
    """A ``CheckpointReader`` of safetensors files under the names that transformers gives.

    Args:
      folder: the checkpoint.
      table: the family's weight table.
      shapes: canonical shape of every parameter of the model.
      packing: the quantised form that config.json names, if it names one.

    Raises:
      InputError: files or tensors are missing, damaged, left over or do not fit the model.
    """

    def __init__(
        self,
        folder: Path,
        table: WeightTable,
        shapes: Mapping[str, tuple[int, ...]],
        packing: Packing | None = None,
    ) -> None:
        self._sources = match(table, shapes, stored_tensors(folder), folder, packing)
        self.tensors = tuple(
            TensorInfo(path, shape, self._sources[path].dtype) for path, shape in shapes.items()
        )
        self.stored_bytes = sum(source.stored_bytes for source in self._sources.values())
        self.packing = None if packing is None else packing.method

    def read(self, info: TensorInfo, start: int, stop: int) -> np.ndarray:
        """See ``CheckpointReader.read``."""
        out = np.empty((stop - start, info.shape[-1]), info.dtype)
        self._sources[info.path].read(start, stop, out)
        return out


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """All tensors of a folder by name.

    The files are, as in transformers, model.safetensors, else those that the index lists; without
    either, all safetensors files of the folder.

    Raises:
      InputError: there are none, a file is missing or damaged, or a name stands in two of them.
    """
    tensors: dict[str, StoredTensor] = {}
    index = None if (folder / _SINGLE).exists() else _read_index(folder)
    for file in _files(folder, index):
        for tensor in read_header(file):
            if tensor.name in tensors:
                other = tensors[tensor.name].file.name
                raise InputError(
                    f"{folder}: tensor {tensor.name} is both in {other} and in {file.name}; "
                    "leave only the files of one checkpoint in the folder"
                )
            tensors[tensor.name] = tensor
    for name, shard in (index or {}).items():
        if name not in tensors or tensors[name].file.name != shard:
            raise InputError(f"{folder}: {_INDEX} says that {name} is in {shard}, but it is not")
    return tensors


def _read_index(folder: Path) -> dict[str, str] | None:
    """File of each tensor, or None if there is no index."""
    path = folder / _INDEX
    if not path.exists():
        return None
    weight_map = read_json(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise InputError(f"{path}: expected an object 'weight_map' of file names; it is damaged")
    for shard in weight_map.values():
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise InputError(f"{path}: expected names of files in this folder, got {shard!r}")
    return weight_map


def _files(folder: Path, index: dict[str, str] | None) -> list[Path]:
    if (folder / _SINGLE).exists():
        return [folder / _SINGLE]
    if index is not None:
        return _all_there(folder, sorted(set(index.values())))
    found = sorted(folder.glob("*.safetensors"))
    if not found:
        raise InputError(_nothing_to_read(folder))
    return found


def _all_there(folder: Path, names: list[str]) -> list[Path]:
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise InputError(
            f"{folder}: {len(missing)} of {len(names)} safetensors files are missing, "
            f"first {missing[0]}; download the checkpoint again"
        )
    return [folder / name for name in names]


def _nothing_to_read(folder: Path) -> str:
    others = sorted({p.suffix for p in folder.iterdir() if p.suffix in {".bin", ".pt", ".pth"}})
    if others:
        return (
            f"{folder}: has weights only as {' and '.join(others)} files, expected safetensors; "
            "save the model again with safe_serialization=True"
        )
    return f"{folder}: expected safetensors files, found none"
