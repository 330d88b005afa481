"""Reading a converted folder, and writing one."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from lynx_jax.convert.groups import GROUPS_FOLDER, restore_group, save_group, stored_bytes
from lynx_jax.convert.manifest import MANIFEST, Manifest, ManifestTensor, Part
from lynx_jax.convert.numerics import DTYPES, bits, require_finite
from lynx_jax.convert.problems import Problems
from lynx_jax.convert.reader import TensorInfo
from lynx_jax.errors import InputError

GROUP_BYTES = 64 * 2**20


def is_converted(folder: Path) -> bool:
    """Whether a folder is, or was to become, the result of a conversion."""
    return (folder / MANIFEST).exists() or (folder / GROUPS_FOLDER).is_dir()


class ConvertedReader:
    """A ``CheckpointReader`` of a converted folder.

    The group read last is kept, since neighbouring small tensors share one.

    Args:
      folder: the converted folder.
      shapes: canonical shape of every parameter of the model.

    Raises:
      InputError: the manifest is missing, damaged or of a newer format, or does not fit the model.
    """

    def __init__(self, folder: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
        if not (folder / MANIFEST).exists():
            raise InputError(f"{folder}: has converted weights but no {MANIFEST}; convert again")
        manifest = Manifest.read(folder)
        self._entries = manifest.tensors
        _compare(self._entries, shapes, folder)
        _require_complete(folder, manifest)
        self.tensors = tuple(
            TensorInfo(path, shape, DTYPES[self._entries[path].dtype])
            for path, shape in shapes.items()
        )
        self.stored_bytes = sum(info.nbytes for info in self.tensors)
        self.packing = None
        self._folder = folder
        self._group: tuple[str, dict[str, np.ndarray]] = ("", {})

    def read(self, info: TensorInfo, start: int, stop: int) -> np.ndarray:
        """See ``CheckpointReader.read``."""
        found = [
            part
            for part in self._entries[info.path].parts
            if part.start < stop and part.stop > start
        ]
        if [(part.start, part.stop) for part in found] == [(start, stop)]:
            return self._read_part(info, found[0])
        out = np.empty((stop - start, info.shape[-1]), info.dtype)
        for part in found:
            first, last = max(part.start, start), min(part.stop, stop)
            source = self._read_part(info, part)[first - part.start : last - part.start]
            bits(out)[first - start : last - start] = bits(source)
        return out

    def _read_part(self, info: TensorInfo, part: Part) -> np.ndarray:
        if self._group[0] != part.group:
            self._group = ("", {})  # so that two groups are never held at once
            tensors = restore_group(self._folder, part.group)
            for path, tensor in tensors.items():
                if tensor.dtype in DTYPES.values():
                    require_finite(tensor, path)
            self._group = (part.group, tensors)
        found = self._group[1].get(info.path)
        shape = (part.stop - part.start, info.shape[-1])
        if found is None or found.shape != shape or found.dtype != info.dtype:
            raise InputError(
                f"{self._folder}: group {part.group} does not hold {info.path} as "
                f"{info.dtype.name}{list(shape)}, as {MANIFEST} says; convert again"
            )
        return found


def _compare(
    entries: Mapping[str, ManifestTensor], shapes: Mapping[str, tuple[int, ...]], folder: Path
) -> None:
    problems = Problems()
    problems.missing.extend(path for path in shapes if path not in entries)
    problems.unexpected.extend(path for path in entries if path not in shapes)
    for path, entry in entries.items():
        if path in shapes and entry.shape != shapes[path]:
            problems.wrong_shape(path, entry.shape, shapes[path])
        if entry.dtype not in DTYPES:
            problems.dtypes.append(f"{path} is {entry.dtype}, expected {', '.join(DTYPES)}")
    problems.raise_if_any(folder)


def _require_complete(folder: Path, manifest: Manifest) -> None:
    """Find what was cut off or left out in copying, before anything is read."""
    for name, expected in manifest.groups.items():
        size = stored_bytes(folder, name)
        if size != expected:
            raise InputError(
                f"{folder / GROUPS_FOLDER / name} is damaged: expected {expected} bytes in its "
                f"files, they have {size}; copy or convert again"
            )


class GroupWriter:
    """Collects parts of tensors into groups of about ``GROUP_BYTES`` and saves full ones.

    Args:
      folder: the folder that is being converted into.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pending: dict[str, np.ndarray] = {}
        self.groups: dict[str, int] = {}
        self.tensors: dict[str, ManifestTensor] = {}

    def add(self, info: TensorInfo, start: int, stop: int, part: np.ndarray) -> None:
        """Take rows ``start`` to ``stop`` of a tensor; they come in order."""
        if info.path in self._pending or self._size + part.nbytes > GROUP_BYTES:
            self.flush()
        self._pending[info.path] = part
        entry = Part(f"{len(self.groups):05}", start, stop)
        before = self.tensors[info.path].parts if info.path in self.tensors else ()
        self.tensors[info.path] = ManifestTensor(info.shape, part.dtype.name, (*before, entry))
        if 2 * self._size > GROUP_BYTES:  # so that little is held while the next part is read
            self.flush()

    @property
    def _size(self) -> int:
        return sum(x.nbytes for x in self._pending.values())

    def flush(self) -> None:
        """Save what has been collected."""
        if self._pending:
            name = f"{len(self.groups):05}"
            save_group(self._folder, name, self._pending)
            self._pending = {}
            self.groups[name] = stored_bytes(self._folder, name)
