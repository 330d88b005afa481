"""Matching the tensors of a Hugging Face checkpoint with a model's parameters, strict both ways."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from lynx_jax.convert.numerics import bits
from lynx_jax.convert.problems import Problems
from lynx_jax.convert.safetensors_file import StoredTensor
from lynx_jax.models.weights import Row, Weight, WeightTable

_COMPARED = 1 << 24  # bytes compared at a time


class Source(Protocol):
    """Where one parameter comes from."""

    @property
    def dtype(self) -> np.dtype:
        """The dtype it is stored in."""

    def read(self, start: int, stop: int) -> np.ndarray:
        """Rows ``start`` to ``stop``, [stop - start, width]."""


@dataclass(frozen=True)
class StoredBlocks:
    """A parameter whose rows are those of stored tensors, one after another."""

    blocks: tuple[StoredTensor, ...]
    dtype: np.dtype

    def read(self, start: int, stop: int) -> np.ndarray:
        """See ``Source.read``."""
        out = np.empty((stop - start, self.blocks[0].shape[-1]), self.dtype)
        first = 0
        for block in self.blocks:
            low, high = max(start - first, 0), min(stop - first, block.num_rows)
            if low < high:
                at = first + low - start
                block.read(low, high, out[at : at + high - low])
            first += block.num_rows
        return out


@dataclass
class _Matching:
    """Takes stored tensors out of ``left`` as parameters claim them; notes what does not fit."""

    left: dict[str, StoredTensor]
    problems: Problems

    def claim(self, row: Row, layer: str, shape: tuple[int, ...]) -> Source | None:
        """The source of a parameter of this canonical shape, or None if a problem was noted."""
        if isinstance(row, Weight):
            names = [_named(name, layer) for name in row.sources]
            name = next((name for name in names if name in self.left), names[0])
            return self._together([name], shape)
        fused = _named(row.fused, layer)
        blocks = [
            _named(name, layer, str(expert))
            for expert in range(shape[0])
            for name in row.per_expert
        ]
        if fused in self.left:
            return self._together([fused], shape)
        if any(name in self.left for name in blocks):
            return self._together(blocks, (shape[1] // len(row.per_expert), shape[2]))
        self.problems.missing.append(f"{fused} or {blocks[0]} and so on")
        return None

    def drop_tied_head(self, table: WeightTable, embedding: StoredTensor | None) -> None:
        """Drop a stored output head that is a copy of the embedding."""
        head = self.left.get(table.output_head)
        if head is not None and embedding is not None and _same_data(head, embedding):
            del self.left[head.name]

    def _together(self, names: list[str], shape: tuple[int, ...]) -> Source | None:
        """The stored tensors of these names, each of this shape, as one source."""
        found = [self._take(name, shape) for name in names]
        blocks = tuple(tensor for tensor in found if tensor is not None)
        codes = sorted({tensor.code for tensor in blocks})
        if len(codes) > 1:
            self.problems.dtypes.append(f"{names[0]} and so on mix {' and '.join(codes)}")
        if len(blocks) < len(names) or len(codes) > 1 or blocks[0].dtype is None:
            return None
        return StoredBlocks(blocks, blocks[0].dtype)

    def _take(self, name: str, shape: tuple[int, ...]) -> StoredTensor | None:
        """The stored tensor of a name if it is there and of the expected shape."""
        tensor = self.left.pop(name, None)
        if tensor is None:
            self.problems.missing.append(name)
            return None
        if tensor.shape != shape:
            self.problems.wrong_shape(name, tensor.shape, shape)
            return None
        if tensor.dtype is None:
            self.problems.dtypes.append(f"{name} is {tensor.code}, expected F32, BF16 or F16")
        return tensor


def match(
    table: WeightTable,
    shapes: Mapping[str, tuple[int, ...]],
    stored: Mapping[str, StoredTensor],
    where: object,
) -> dict[str, Source]:
    """The source of every parameter; every stored tensor is claimed exactly once.

    Args:
      table: the family's weight table.
      shapes: canonical shape of every parameter of the model.
      stored: the checkpoint's tensors by name.
      where: the checkpoint, for the error.

    Raises:
      InputError: tensors are missing, left over (among them an output head that differs from the
        embedding it is tied to), of a wrong shape or of a wrong dtype.
    """
    matching = _Matching(dict(stored), Problems())
    claimed = {}
    for path, shape in shapes.items():
        row, layer = table.find(path)
        claimed[path] = matching.claim(row, layer, shape)
    matching.drop_tied_head(table, stored.get(table.embedding))
    left = [name for name in matching.left if not table.is_ignored(name)]
    matching.problems.unexpected.extend(_explained(name, table, shapes) for name in left)
    matching.problems.raise_if_any(where)
    return {path: source for path, source in claimed.items() if source is not None}


def _named(template: str, layer: str, expert: str = "") -> str:
    return template.replace("{i}", layer).replace("{e}", expert)


def _explained(name: str, table: WeightTable, shapes: Mapping[str, tuple[int, ...]]) -> str:
    if name != table.output_head or "lm_head.weight" in shapes:
        return name
    return f"{name}, which differs from {table.embedding} although config.json ties them"


def _same_data(a: StoredTensor, b: StoredTensor) -> bool:
    """Whether two stored tensors are equal bit for bit; reads them in parts."""
    if a.dtype is None or len(a.shape) != 2 or (a.code, a.shape) != (b.code, b.shape):
        return False
    step = max(1, _COMPARED // max(1, a.shape[-1] * a.dtype.itemsize))
    for start in range(0, a.num_rows, step):
        stop = min(start + step, a.num_rows)
        parts = [StoredBlocks((tensor,), a.dtype).read(start, stop) for tensor in (a, b)]
        if not np.array_equal(bits(parts[0]), bits(parts[1])):
            return False
    return True
