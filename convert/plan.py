"""Matching the tensors of a Hugging Face checkpoint with a model's parameters, strict both ways."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from lynx_jax.convert.numerics import bits
from lynx_jax.convert.problems import Problems
from lynx_jax.convert.safetensors_file import StoredTensor
from lynx_jax.convert.sources import (
    Source,
    gates_first,
    gates_first_in_rows,
    plain,
    stacked,
    transposed,
)
from lynx_jax.models.weights import Axes, ExpertStack, Row, Weight, WeightTable

_COMPARED = 1 << 24  # bytes compared at a time

_log = logging.getLogger(__name__)


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
            return self._matrix(name, shape, Axes.OUT_IN)
        fused = _named(row.fused, layer)
        blocks = [
            _named(name, layer, str(expert))
            for expert in range(shape[0])
            for name in row.per_expert
        ]
        if fused in self.left or not blocks:
            return self._fused(row, fused, shape)
        if any(name in self.left for name in blocks):
            return self._together(blocks, (shape[1] // len(row.per_expert), shape[2]))
        self.problems.missing.append(f"{fused} or {blocks[0]} and so on")
        return None

    def _fused(self, row: ExpertStack, name: str, shape: tuple[int, ...]) -> Source | None:
        if len(shape) == 2:
            biases = self._matrix(name, shape, Axes.OUT_IN)
            return gates_first_in_rows(biases) if biases and row.interleaved else biases
        weights = self._matrix(name, shape, row.axes)
        return gates_first(weights, shape[1]) if weights and row.interleaved else weights

    def _together(self, names: list[str], shape: tuple[int, ...]) -> Source | None:
        """The stored tensors of these names, each of this shape, as one source."""
        found = [self._matrix(name, shape, Axes.OUT_IN) for name in names]
        blocks = [source for source in found if source is not None]
        dtypes = sorted({source.dtype.name for source in blocks})
        if len(dtypes) > 1:
            self.problems.dtypes.append(f"{names[0]} and so on mix {' and '.join(dtypes)}")
        return stacked(blocks) if len(blocks) == len(names) and len(dtypes) == 1 else None

    def _matrix(self, name: str, shape: tuple[int, ...], axes: Axes) -> Source | None:
        """The stored tensor of a name as a source of this shape, or None if a problem was noted."""
        tensor = self.left.pop(name, None)
        if tensor is None:
            self.problems.missing.append(name)
            return None
        flipped = (*shape[:-2], *reversed(shape[-2:]))
        if axes is Axes.EITHER:
            if shape == flipped:
                self.problems.ambiguous(name, tensor.shape)
                return None
            axes = Axes.IN_OUT if tensor.shape == flipped else Axes.OUT_IN
        expected = flipped if axes is Axes.IN_OUT else shape
        if tensor.shape != expected:
            self.problems.wrong_shape(name, tensor.shape, expected)
            return None
        if tensor.dtype is None:
            self.problems.dtypes.append(f"{name} is {tensor.code}, expected F32, BF16 or F16")
            return None
        read_as = transposed if axes is Axes.IN_OUT else plain
        return read_as(tensor, tensor.dtype)

    def drop_tied_head(self, table: WeightTable, embedding: StoredTensor | None) -> None:
        """Drop a stored output head that is a copy of the embedding."""
        head = self.left.get(table.output_head)
        if head is not None and embedding is not None and _same_data(head, embedding):
            del self.left[head.name]


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
    table = table.named_as_in(stored)
    matching = _Matching(dict(stored), Problems())
    claimed = {}
    for path, shape in shapes.items():
        row, layer = table.find(path)
        claimed[path] = matching.claim(row, layer, shape)
    matching.drop_tied_head(table, stored.get(table.embedding))
    skipped = table.skipped_names(matching.left)
    left = {name for name in matching.left if not table.is_ignored(name)}.difference(skipped)
    matching.problems.unexpected.extend(_explained(name, table, shapes) for name in sorted(left))
    matching.problems.raise_if_any(where)
    if skipped:
        _log.info("%s: %d tensors not used, such as %s", where, len(skipped), skipped[0])
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
        parts = np.empty((2, stop - start, a.shape[-1]), a.dtype)
        a.read(start, stop, parts[0])
        b.read(start, stop, parts[1])
        if not np.array_equal(bits(parts[0]), bits(parts[1])):
            return False
    return True
