"""MXFP4 of gpt-oss: 4-bit floats that share a power of two (OCP Microscaling Formats v1.0, 5.3)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from lynx_jax.convert.packing import Part, dequantised
from lynx_jax.convert.safetensors_file import StoredTensor
from lynx_jax.convert.sources import Source

_BLOCK = 32  # numbers that share a scale
_MAGNITUDES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)  # E2M1
_NUMBERS = np.concatenate([_MAGNITUDES, -_MAGNITUDES])
_PAIRS = np.stack([_NUMBERS[np.arange(256) & 15], _NUMBERS[np.arange(256) >> 4]], axis=-1)
# Exponents E8M0 with a bias of 127; the highest one means NaN.
_SCALES = np.append(np.ldexp(np.float32(1), np.arange(255) - 127), np.float32(np.nan))


@dataclass(frozen=True)
class Mxfp4:
    """``X_blocks`` [..., outputs, inputs / 32, 16], low half of a byte first, and ``X_scales``.

    Outputs come before inputs here, also where the family's plain form has them the other way.
    """

    method: str = "mxfp4"

    def parts(self, name: str, shape: tuple[int, ...]) -> Sequence[Part]:
        """See ``Packing``."""
        if len(shape) < 3 or shape[-1] % _BLOCK:
            return ()
        blocks = (*shape[:-1], shape[-1] // _BLOCK)
        return (
            Part(f"{name}_blocks", (*blocks, _BLOCK // 2), ("U8",)),
            Part(f"{name}_scales", blocks, ("U8",)),
        )

    def source(self, tensors: Sequence[StoredTensor], shape: tuple[int, ...]) -> Source:
        """See ``Packing``."""
        return dequantised(tensors, shape, partial(_rows, tensors), block_rows=shape[-2])


def _rows(tensors: Sequence[StoredTensor], start: int, stop: int) -> np.ndarray:
    blocks, scales = tensors
    per_row = scales.shape[-1]
    stored = np.empty((stop - start, per_row, _BLOCK // 2), np.uint8)
    blocks.read(start * per_row, stop * per_row, stored)
    exponents = np.empty((stop - start, per_row), np.uint8)
    scales.read(start, stop, exponents)
    numbers = _PAIRS[stored].reshape(stop - start, per_row, _BLOCK)
    numbers *= _SCALES[exponents][..., None]
    return numbers.reshape(stop - start, -1)
