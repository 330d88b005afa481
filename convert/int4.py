"""4-bit integers with a scale and a zero point a group of inputs: GPTQ (arXiv 2210.17323), AWQ
(arXiv 2306.00978).

Both hold a projection as [inputs, outputs], eight numbers in an int32: w = (q - zero) * scale.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from lynx_jax.convert.packing import Part, ceil_div, dequantised, float32
from lynx_jax.convert.safetensors_file import StoredTensor
from lynx_jax.convert.sources import Source
from lynx_jax.errors import InputError

_PACK = 8  # numbers in an int32
_IN_ORDER = 4 * np.arange(_PACK, dtype=np.int32)  # bits below each number
_AWQ_ORDER = 4 * np.array([0, 4, 1, 5, 2, 6, 3, 7], np.int32)


@dataclass(frozen=True)
class Gptq:
    """``qweight`` packed along inputs, ``qzeros`` along outputs, ``scales`` and ``g_idx``.

    Attributes:
      group_size: inputs of a group, -1 for all.
      stored_zero: what a stored zero point lacks: 1 in the first version of the format, where
        zero points count modulo 16, and 0 in the second.
    """

    group_size: int
    stored_zero: int
    method: str = "gptq"

    def parts(self, name: str, shape: tuple[int, ...]) -> Sequence[Part]:
        """See ``Packing``."""
        base = _base(name, shape, packed=shape)
        if base is None:
            return ()
        outputs, inputs = shape
        return (
            Part(f"{base}.qweight", (inputs // _PACK, outputs), ("I32",)),
            *_group_parts(base, shape, self.group_size),
            Part(f"{base}.g_idx", (inputs,), ("I32",)),
        )

    def source(self, tensors: Sequence[StoredTensor], shape: tuple[int, ...]) -> Source:
        """See ``Packing``."""
        dequantise = partial(self._rows, tensors)
        return dequantised(tensors, shape, dequantise, block_rows=shape[0])

    def _rows(self, tensors: Sequence[StoredTensor], start: int, stop: int) -> np.ndarray:
        weights, zeros, scales, groups = tensors
        packed = _columns(weights, start, stop)
        q = (packed[:, None] >> _IN_ORDER[:, None] & 15).reshape(-1, stop - start)
        zero = (_unpacked_columns(zeros, start, stop, _IN_ORDER) + self.stored_zero) & 15
        scale = float32(scales, 0, scales.shape[0], start, stop)
        return _dequantise(q, zero, scale, _group_of_input(groups, scales.shape[0]))


@dataclass(frozen=True)
class Awq:
    """``qweight`` and ``qzeros`` packed along outputs, even ones first, and ``scales``.

    Attributes:
      group_size: inputs of a group, -1 for all.
    """

    group_size: int
    method: str = "awq"

    def parts(self, name: str, shape: tuple[int, ...]) -> Sequence[Part]:
        """See ``Packing``."""
        base = _base(name, shape, packed=shape[:1])
        if base is None:
            return ()
        outputs, inputs = shape
        qweight = Part(f"{base}.qweight", (inputs, outputs // _PACK), ("I32",))
        return (qweight, *_group_parts(base, shape, self.group_size))

    def source(self, tensors: Sequence[StoredTensor], shape: tuple[int, ...]) -> Source:
        """See ``Packing``."""
        dequantise = partial(self._rows, tensors)
        return dequantised(tensors, shape, dequantise, block_rows=shape[0])

    def _rows(self, tensors: Sequence[StoredTensor], start: int, stop: int) -> np.ndarray:
        weights, zeros, scales = tensors
        q = _unpacked_columns(weights, start, stop, _AWQ_ORDER)
        zero = _unpacked_columns(zeros, start, stop, _AWQ_ORDER)
        scale = float32(scales, 0, scales.shape[0], start, stop)
        return _dequantise(q, zero, scale, np.arange(len(q)) // _group(self.group_size, len(q)))


def _base(name: str, shape: tuple[int, ...], *, packed: tuple[int, ...]) -> str | None:
    """Name of the projection of a weight, or None if it is none or its sizes do not pack."""
    if len(shape) != 2 or not name.endswith(".weight") or any(n % _PACK for n in packed):
        return None
    return name.removesuffix(".weight")


def _group_parts(base: str, shape: tuple[int, ...], group_size: int) -> tuple[Part, Part]:
    outputs, inputs = shape
    groups = ceil_div(inputs, _group(group_size, inputs))
    zeros = Part(f"{base}.qzeros", (groups, outputs // _PACK), ("I32",))
    return zeros, Part(f"{base}.scales", (groups, outputs))


def _group(group_size: int, inputs: int) -> int:
    return inputs if group_size == -1 else group_size


def _columns(tensor: StoredTensor, start: int, stop: int) -> np.ndarray:
    """Columns ``start`` to ``stop`` of an int32 tensor."""
    out = np.empty((tensor.num_rows, stop - start), np.int32)
    tensor.read_columns(0, tensor.num_rows, start, stop, out)
    return out


def _unpacked_columns(tensor: StoredTensor, start: int, stop: int, order: np.ndarray) -> np.ndarray:
    """Columns ``start`` to ``stop`` of numbers 0 to 15 that are packed along columns."""
    first = start // _PACK
    packed = _columns(tensor, first, ceil_div(stop, _PACK))
    numbers: np.ndarray = (packed[..., None] >> order & 15).reshape(len(packed), -1)
    return numbers[:, start - first * _PACK : stop - first * _PACK]


def _group_of_input(groups: StoredTensor, num_groups: int) -> np.ndarray:
    out = np.empty(groups.shape, np.int32)
    groups.read(0, 1, out)
    if out.min() < 0 or out.max() >= num_groups:
        raise InputError(
            f"tensor {groups.name} holds group {out.max() if out.min() >= 0 else out.min()}, "
            f"expected 0 to {num_groups - 1}; the checkpoint is damaged"
        )
    return out


def _dequantise(
    q: np.ndarray, zero: np.ndarray, scale: np.ndarray, group: np.ndarray
) -> np.ndarray:
    """float32 [outputs, inputs] of q [inputs, outputs], and zero and scale [groups, outputs]."""
    weights: np.ndarray = (q - zero[group]).astype(np.float32)
    weights *= scale[group]
    return weights.T
