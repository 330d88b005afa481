"""Reading safetensors files by plain positioned reads.

The format: 8 bytes of header length (little endian), a JSON header that maps each name to its
dtype, shape and byte range, then the data. A memory map would count every page read as resident
memory of the process, numpy has no dtype for some stored forms, and checking the header here allows
clear errors.
"""

import json
import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lynx_jax.convert.numerics import DTYPES, require_finite
from lynx_jax.errors import InputError

_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4,
    "U16": 16, "I16": 16, "F16": 16, "BF16": 16, "U32": 32, "I32": 32, "F32": 32,
    "U64": 64, "I64": 64, "F64": 64,
}  # fmt: skip
_READABLE = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
FLOAT_CODES = tuple(_READABLE)
_LONGEST_HEADER = 100_000_000


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a safetensors file.

    Attributes:
      name: its name there.
      file: the file.
      code: its dtype as safetensors names it, such as ``"BF16"``.
      shape: its shape.
      offset: where its data begins in the file, in bytes.
    """

    name: str
    file: Path
    code: str
    shape: tuple[int, ...]
    offset: int

    @property
    def dtype(self) -> np.dtype | None:
        """The dtype of the weights, or None if it is not one that weights can have."""
        name = _READABLE.get(self.code)
        return None if name is None else DTYPES[name]

    @property
    def num_rows(self) -> int:
        """How many rows it has; a row runs along the last axis."""
        return math.prod(self.shape[:-1])

    @property
    def nbytes(self) -> int:
        """Size of its data."""
        return math.prod(self.shape) * _BITS[self.code] // 8

    def read(self, start: int, stop: int, out: np.ndarray) -> None:
        """Read rows ``start`` to ``stop`` into ``out`` [stop - start, width] of the same dtype.

        Raises:
          InputError: the file cannot be read, or a tensor of floats holds NaN or infinity there.
        """
        row_bytes = self.shape[-1] * out.itemsize
        assert out.size == self.shape[-1] * (stop - start)
        self._read([(start * row_bytes, out)])
        self._require_finite(out)

    def read_columns(self, start: int, stop: int, low: int, high: int, out: np.ndarray) -> None:
        """Read columns ``low`` to ``high`` of rows ``start`` to ``stop`` into ``out``.

        Args:
          out: [stop - start, high - low], contiguous, of the same dtype.

        Raises:
          InputError: see ``read``.
        """
        assert out.shape == (stop - start, high - low)
        width = self.shape[-1]
        if (low, high) == (0, width):
            self.read(start, stop, out)
            return
        firsts = (row * width + low for row in range(start, stop))
        self._read((first * out.itemsize, part) for first, part in zip(firsts, out, strict=True))
        self._require_finite(out)

    def _require_finite(self, out: np.ndarray) -> None:
        if self.dtype is not None:
            require_finite(out, self.name)

    def _read(self, pieces: Iterable[tuple[int, np.ndarray]]) -> None:
        """Fill arrays from places in the data, given in bytes."""
        try:
            with open(self.file, "rb", buffering=0) as file:
                for place, out in pieces:
                    assert out.flags.c_contiguous
                    buffer = memoryview(out.reshape(-1).view(np.uint8))
                    _read_fully(file.fileno(), buffer, self.offset + place)
        except OSError as e:
            raise InputError(f"{self.file}: cannot be read ({e.strerror or e})") from e


def read_header(path: Path) -> list[StoredTensor]:
    """The tensors of a safetensors file.

    Raises:
      InputError: it cannot be read, is not such a file, or is shorter than its header says.
    """
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            prefix = file.read(8)
            length = int.from_bytes(prefix, "little")
            if prefix == b"version ":
                raise InputError(f"{path} is a Git LFS pointer, not weights; run 'git lfs pull'")
            if len(prefix) < 8 or not 2 <= length <= _LONGEST_HEADER:
                raise InputError(
                    f"{path} is not a safetensors file, or it is damaged; copy it again"
                )
            header = file.read(length)
    except OSError as e:
        raise InputError(f"{path}: cannot be read ({e.strerror})") from e
    if len(header) < length:
        raise InputError(_too_short(path, 8 + length, size))
    tensors = list(_parse(path, header, data=8 + length))
    _check_ranges(path, tensors, data=8 + length, size=size)
    return tensors


def _parse(path: Path, header: bytes, data: int) -> Iterator[StoredTensor]:
    try:
        entries = json.loads(header, object_pairs_hook=_without_repeats)
        if not isinstance(entries, dict):
            raise ValueError("the header is not an object")
        for name, entry in entries.items():
            if name != "__metadata__":
                yield _stored_tensor(path, name, entry, data)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as e:
        raise InputError(f"{path}: its safetensors header is damaged ({e}); copy it again") from e


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a name stands in it twice")
    return dict(pairs)


def _stored_tensor(path: Path, name: str, entry: dict[str, Any], data: int) -> StoredTensor:
    start, stop = entry["data_offsets"]
    shape = tuple(entry["shape"])
    if not all(type(n) is int and n >= 0 for n in (*shape, start, stop)):
        raise ValueError(f"shape or offsets of {name}")
    if (stop - start) * 8 != math.prod(shape) * _BITS[entry["dtype"]]:
        raise ValueError(f"the size of {name} does not fit its shape")
    return StoredTensor(name, path, entry["dtype"], shape, data + start)


def _check_ranges(path: Path, tensors: list[StoredTensor], data: int, size: int) -> None:
    """Each tensor must begin where the one before it ends, and the last one end the file."""
    end = data
    for tensor in sorted(tensors, key=lambda t: (t.offset, math.prod(t.shape))):
        if tensor.offset != end:
            raise InputError(
                f"{path}: data of {tensor.name} overlaps or leaves a gap; copy it again"
            )
        end += tensor.nbytes
    if size < end:
        raise InputError(_too_short(path, end, size))
    if size > end:
        raise InputError(f"{path}: {size - end} bytes follow the last tensor; copy it again")


def _too_short(path: Path, expected: int, size: int) -> str:
    return f"{path} is truncated: expected {expected} bytes, it has {size}; copy it again"


def _read_fully(descriptor: int, buffer: memoryview, offset: int) -> None:
    done = 0
    while done < len(buffer):
        count = os.preadv(descriptor, [buffer[done:]], offset + done)
        if count == 0:
            raise OSError("it became shorter while it was read")
        done += count
