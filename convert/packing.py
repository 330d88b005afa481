"""What a quantised form of weights is: which tensors hold a matrix, and how they are read."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np

from lynx_jax.convert import sources
from lynx_jax.convert.numerics import DTYPES, require_finite
from lynx_jax.convert.safetensors_file import FLOAT_CODES, StoredTensor
from lynx_jax.convert.sources import Source, within_blocks

BFLOAT16 = DTYPES["bfloat16"]


@dataclass(frozen=True)
class Part:
    """A stored tensor that a form needs.

    Attributes:
      name: its name.
      shape: the shape that it must have.
      codes: safetensors dtypes that it may have.
    """

    name: str
    shape: tuple[int, ...]
    codes: tuple[str, ...] = FLOAT_CODES


class Packing(Protocol):
    """One quantised form; where and how it holds a matrix [..., outputs, inputs]."""

    @property
    def method(self) -> str:
        """What ``quantization_config`` calls it."""

    def parts(self, name: str, shape: tuple[int, ...]) -> Sequence[Part]:
        """The stored tensors of a matrix that has this name and shape in the plain form.

        Empty if no tensor of such a name or shape can be packed.
        """

    def source(self, tensors: Sequence[StoredTensor], shape: tuple[int, ...]) -> Source:
        """bfloat16 rows of the matrix, from the tensors of its ``parts`` in their order."""


type Dequantise = Callable[[int, int], np.ndarray]


def dequantised(
    tensors: Sequence[StoredTensor],
    shape: tuple[int, ...],
    dequantise: Dequantise,
    *,
    block_rows: int,
) -> Source:
    """A bfloat16 source whose rows are computed.

    Args:
      tensors: where they come from; the first one is named in errors.
      shape: that of the parameter.
      dequantise: float32 rows of a range that lies within one block.
      block_rows: rows of a block.
    """
    num_rows, width = math.prod(shape[:-1]), shape[-1]
    read = partial(_read, tensors[0].name, dequantise, block_rows)
    return Source(BFLOAT16, num_rows, width, sum(tensor.nbytes for tensor in tensors), read)


def _read(
    name: str, dequantise: Dequantise, block_rows: int, start: int, stop: int, out: np.ndarray
) -> None:
    step = max(1, sources.SCRATCH_BYTES // (out.shape[-1] * 4))
    for block, low, high in within_blocks(start, stop, block_rows, step):
        first, last = block * block_rows + low, block * block_rows + high
        with np.errstate(over="ignore", invalid="ignore"):
            out[first - start : last - start] = dequantise(first, last)
    require_finite(out, name)


def as_bfloat16(source: Source) -> Source:
    """A source in bfloat16, rounded to nearest even."""
    return Source(
        BFLOAT16,
        source.num_rows,
        source.width,
        source.stored_bytes,
        partial(_read_as_bfloat16, source),
    )


def _read_as_bfloat16(source: Source, start: int, stop: int, out: np.ndarray) -> None:
    step = max(1, sources.SCRATCH_BYTES // (source.width * source.dtype.itemsize))
    for first in range(start, stop, step):
        last = min(first + step, stop)
        stored = np.empty((last - first, source.width), source.dtype)
        source.read(first, last, stored)
        out[first - start : last - start] = stored


def float32(tensor: StoredTensor, start: int, stop: int, low: int, high: int) -> np.ndarray:
    """Columns ``low`` to ``high`` of rows ``start`` to ``stop`` of a float tensor."""
    assert tensor.dtype is not None
    part = np.empty((stop - start, high - low), tensor.dtype)
    tensor.read_columns(start, stop, low, high, part)
    return part.astype(np.float32)


def ceil_div(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)
