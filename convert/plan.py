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
        """The part ``start`` to ``stop`` along the first axis."""


@dataclass(frozen=True)
class WholeTensor:
    """A parameter that is one stored tensor."""

    tensor: StoredTensor
    dtype: np.dtype

    def read(self, start: int, stop: int) -> np.ndarray:
        """See ``Source.read``."""
        out = np.empty((stop - start, *self.tensor.shape[1:]), self.dtype)
        self.tensor.read(start, stop, out)
        return out


@dataclass(frozen=True)
class StackedExperts:
    """A parameter [N, rows, columns] put together from the tensors of each expert."""

    experts: tuple[tuple[StoredTensor, ...], ...]
    dtype: np.dtype

    def read(self, start: int, stop: int) -> np.ndarray:
        """See ``Source.read``."""
        blocks = self.experts[0]
        rows = sum(block.shape[0] for block in blocks)
        out = np.empty((stop - start, rows, blocks[0].shape[1]), self.dtype)
        for target, stored in zip(out, self.experts[start:stop], strict=True):
            row = 0
            for block in stored:
                block.read(0, block.shape[0], target[row : row + block.shape[0]])
                row += block.shape[0]
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
            return self._whole(name, shape)
        fused = _named(row.fused, layer)
        blocks = [
            [_named(name, layer, str(expert)) for name in row.per_expert]
            for expert in range(shape[0])
        ]
        if fused in self.left:
            return self._whole(fused, shape)
        if any(name in self.left for names in blocks for name in names):
            return self._stacked(blocks, (shape[1] // len(row.per_expert), shape[2]))
        self.problems.missing.append(f"{fused} or {blocks[0][0]} and so on")
        return None

    def drop_tied_head(self, table: WeightTable, embedding: StoredTensor | None) -> None:
        """Drop a stored output head that is a copy of the embedding."""
        head = self.left.get(table.output_head)
        if head is not None and embedding is not None and _same_data(head, embedding):
            del self.left[head.name]

    def _stacked(self, blocks: list[list[str]], shape: tuple[int, ...]) -> Source | None:
        found = [[self._take(name, shape) for name in names] for names in blocks]
        complete = [tuple(t for t in stored if t is not None) for stored in found]
        if [len(stored) for stored in complete] != [len(names) for names in blocks]:
            return None
        codes = sorted({tensor.code for stored in complete for tensor in stored})
        if len(codes) > 1:
            self.problems.dtypes.append(f"{blocks[0][0]} and so on mix {' and '.join(codes)}")
            return None
        dtype = complete[0][0].dtype
        return None if dtype is None else StackedExperts(tuple(complete), dtype)

    def _whole(self, name: str, shape: tuple[int, ...]) -> Source | None:
        tensor = self._take(name, shape)
        if tensor is None or tensor.dtype is None:
            return None
        return WholeTensor(tensor, tensor.dtype)

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
    if a.dtype is None or (a.code, a.shape) != (b.code, b.shape):
        return False
    step = max(1, _COMPARED // max(1, a.row_bytes))
    for start in range(0, a.shape[0], step):
        stop = min(start + step, a.shape[0])
        parts = [np.empty((stop - start, *a.shape[1:]), a.dtype) for _ in range(2)]
        a.read(start, stop, parts[0])
        b.read(start, stop, parts[1])
        if not np.array_equal(bits(parts[0]), bits(parts[1])):
            return False
    return True
