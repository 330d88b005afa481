"""Block-scaled fp8: DeepSeek-V3 (arXiv 2412.19437, section 3.3) and Qwen3-FP8."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import ml_dtypes
import numpy as np

from lynx_jax.convert.packing import Part, ceil_div, dequantised, float32
from lynx_jax.convert.safetensors_file import StoredTensor
from lynx_jax.convert.sources import Source

_VALUES = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)


@dataclass(frozen=True)
class BlockFp8:
    """``X`` in F8_E4M3 and ``X_scale_inv``, by which its blocks are multiplied.

    Attributes:
      block: outputs and inputs of one block; the last blocks of a matrix may be cut.
    """

    block: tuple[int, int]
    method: str = "fp8"

    def parts(self, name: str, shape: tuple[int, ...]) -> Sequence[Part]:
        """See ``Packing``."""
        if len(shape) < 2:
            return ()
        grid = tuple(map(ceil_div, shape[-2:], self.block))
        scale = Part(f"{name}_scale_inv", (*shape[:-2], *grid))
        return (Part(name, shape, ("F8_E4M3",)), scale)

    def source(self, tensors: Sequence[StoredTensor], shape: tuple[int, ...]) -> Source:
        """See ``Packing``."""
        dequantise = partial(self._rows, tensors)
        return dequantised(tensors, shape, dequantise, block_rows=shape[-2])

    def _rows(self, tensors: Sequence[StoredTensor], start: int, stop: int) -> np.ndarray:
        weight, scale = tensors
        outputs, inputs = weight.shape[-2:]
        stored = np.empty((stop - start, inputs), np.uint8)
        weight.read(start, stop, stored)
        matrix, low = divmod(start, outputs)
        high = low + stop - start
        first, last = low // self.block[0], ceil_div(high, self.block[0])
        above = matrix * scale.shape[-2]
        grid = float32(scale, above + first, above + last, 0, scale.shape[-1])
        block_of_row = np.arange(low, high) // self.block[0] - first
        block_of_input = np.arange(inputs) // self.block[1]
        rows: np.ndarray = _VALUES[stored]
        rows *= grid[:, block_of_input][block_of_row]
        return rows
