"""Which stored tensors make up a parameter; each is taken once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from lynx_jax.convert.numerics import bits
from lynx_jax.convert.packing import Packing, Part, as_bfloat16
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


@dataclass
class Matching:
    """Takes stored tensors out of ``left`` as parameters claim them; notes what does not fit."""

    left: dict[str, StoredTensor]
    packing: Packing | None
    problems: Problems = field(default_factory=Problems)
    num_packed: int = 0

    def claim(self, row: Row, layer: str, shape: tuple[int, ...]) -> Source | None:
        """The source of a parameter of this canonical shape, or None if a problem was noted."""
        if isinstance(row, Weight):
            names = [_named(name, layer) for name in row.sources]
            name = next((name for name in names if self._holds(name, shape)), names[0])
            return self._matrix(name, shape)
        fused = _named(row.fused, layer)
        blocks = [
            _named(name, layer, str(expert))
            for expert in range(shape[0])
            for name in row.per_expert
        ]
        if not blocks or self._holds(fused, shape):
            return self._fused(row, fused, shape)
        block = (shape[1] // len(row.per_expert), *shape[2:])
        if any(self._holds(name, block) for name in blocks):
            return self._together(blocks, block)
        self.problems.missing.append(f"{fused} or {blocks[0]} and so on")
        return None

    def drop_tied_head(self, table: WeightTable, embedding: StoredTensor | None) -> None:
        """Drop a stored output head that is a copy of the embedding."""
        head = self.left.get(table.output_head)
        if head is not None and embedding is not None and _same_data(head, embedding):
            del self.left[head.name]

    def drop_zero_biases(self, stored: Mapping[str, StoredTensor]) -> None:
        """Drop biases of zeros that packing adds to projections that have none."""
        for name, tensor in list(self.left.items()):
            projection, _, kind = name.rpartition(".")
            if kind == "bias" and f"{projection}.qweight" in stored and _is_zero(tensor):
                del self.left[name]

    def _holds(self, name: str, shape: tuple[int, ...]) -> bool:
        """Whether a matrix of this name is there in the plain form or packed."""
        return name in self.left or any(part.name in self.left for part in self._parts(name, shape))

    def _parts(self, name: str, shape: tuple[int, ...]) -> Sequence[Part]:
        return () if self.packing is None else self.packing.parts(name, shape)

    def _fused(self, row: ExpertStack, name: str, shape: tuple[int, ...]) -> Source | None:
        if len(shape) == 2:
            biases = self._matrix(name, shape)
            return gates_first_in_rows(biases) if biases and row.interleaved else biases
        weights = self._matrix(name, shape, row.axes)
        return gates_first(weights, shape[1]) if weights and row.interleaved else weights

    def _together(self, names: list[str], shape: tuple[int, ...]) -> Source | None:
        """The matrices of these names, each of this shape, as one source."""
        found = [self._matrix(name, shape) for name in names]
        blocks = [source for source in found if source is not None]
        dtypes = sorted({source.dtype.name for source in blocks})
        if len(dtypes) > 1:
            self.problems.dtypes.append(f"{names[0]} and so on mix {' and '.join(dtypes)}")
        return stacked(blocks) if len(blocks) == len(names) and len(dtypes) == 1 else None

    def _matrix(self, name: str, shape: tuple[int, ...], axes: Axes = Axes.OUT_IN) -> Source | None:
        """The matrix of a name and shape in its plain form or packed, or None after a problem."""
        parts = self._parts(name, shape)
        if self.packing is None or not any(self._is_packed(part, name) for part in parts):
            return self._plain(name, shape, axes)
        self.num_packed += 1
        tensors = [self._take(part) for part in parts]
        there = [tensor for tensor in tensors if tensor is not None]
        return self.packing.source(there, shape) if len(there) == len(parts) else None

    def _is_packed(self, part: Part, name: str) -> bool:
        """Whether a part is there that the plain form of a matrix does not have."""
        found = self.left.get(part.name)
        return found is not None and (part.name != name or found.code in part.codes)

    def _plain(self, name: str, shape: tuple[int, ...], axes: Axes) -> Source | None:
        flipped = (*shape[:-2], *reversed(shape[-2:]))
        if axes is Axes.EITHER and name in self.left:
            found = self.left[name].shape
            if shape == flipped:
                self.problems.ambiguous(name, found)
            axes = Axes.IN_OUT if found == flipped else Axes.OUT_IN
        tensor = self._take(Part(name, flipped if axes is Axes.IN_OUT else shape))
        if tensor is None or tensor.dtype is None:
            return None
        read_as = transposed if axes is Axes.IN_OUT else plain
        source = read_as(tensor, tensor.dtype)
        # Beside packed weights, which are read in bfloat16, so that the model has one dtype.
        return as_bfloat16(source) if self.packing and tensor.code == "F16" else source

    def _take(self, part: Part) -> StoredTensor | None:
        """The stored tensor of a part, or None if a problem was noted."""
        tensor = self.left.pop(part.name, None)
        if tensor is None:
            self.problems.missing.append(part.name)
        elif tensor.shape != part.shape:
            self.problems.wrong_shape(part.name, tensor.shape, part.shape)
        elif tensor.code not in part.codes:
            self.problems.wrong_dtype(part.name, tensor.code, part.codes)
        else:
            return tensor
        return None


def _named(template: str, layer: str, expert: str = "") -> str:
    return template.replace("{i}", layer).replace("{e}", expert)


def _is_zero(tensor: StoredTensor) -> bool:
    if tensor.dtype is None or len(tensor.shape) != 1:
        return False
    values = np.empty((1, *tensor.shape), tensor.dtype)
    tensor.read(0, 1, values)
    return not values.any()


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
