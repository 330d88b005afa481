"""Where the rows of a parameter come from: stored tensors, and the forms they are stored in.

Sources nest: all experts of a layer may be a stack of matrices that stand apart, or a transposed
tensor whose gate and up outputs alternate. Each reads any range of rows with bounded scratch
memory, so that a checkpoint streams whatever its form.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np

from lynx_jax.convert.numerics import bits
from lynx_jax.convert.safetensors_file import StoredTensor

SCRATCH_BYTES = 8 * 2**20


class ReadRows(Protocol):
    """Reads rows ``start`` to ``stop`` into ``out`` [stop - start, width], which is contiguous.

    Raises:
      InputError: they cannot be read, or hold NaN or infinity; the tensor is named.
    """

    def __call__(self, start: int, stop: int, out: np.ndarray) -> None: ...


@dataclass(frozen=True)
class Source:
    """Rows of a parameter; a row runs along its last axis.

    Attributes:
      dtype: the dtype that ``read`` gives.
      num_rows: how many rows there are.
      width: length of a row.
      stored_bytes: size of the stored tensors.
      read: reads a range of rows.
    """

    dtype: np.dtype
    num_rows: int
    width: int
    stored_bytes: int
    read: ReadRows


def plain(tensor: StoredTensor, dtype: np.dtype) -> Source:
    """A stored tensor as it is."""
    return Source(dtype, tensor.num_rows, tensor.shape[-1], tensor.nbytes, tensor.read)


def stacked(blocks: Sequence[Source]) -> Source:
    """Sources of one width and dtype, one behind another."""
    return replace(
        blocks[0],
        num_rows=sum(block.num_rows for block in blocks),
        stored_bytes=sum(block.stored_bytes for block in blocks),
        read=partial(_read_stacked, blocks),
    )


def transposed(tensor: StoredTensor, dtype: np.dtype) -> Source:
    """A stored tensor [..., inputs, outputs] as [..., outputs, inputs]."""
    inputs, outputs = tensor.shape[-2:]
    num_rows = math.prod(tensor.shape[:-2]) * outputs
    return Source(dtype, num_rows, inputs, tensor.nbytes, partial(_read_transposed, tensor))


def gates_first(source: Source, outputs: int) -> Source:
    """Matrices of so many rows, gate and up in turn, with the gates of each matrix first."""
    return replace(source, read=partial(_read_gates_first, source, outputs))


def gates_first_in_rows(source: Source) -> Source:
    """Rows whose entries are gate and up in turn, with the gates of each row first."""
    return replace(source, read=partial(_read_gates_first_in_rows, source))


def within_blocks(
    start: int, stop: int, block_rows: int, step: int
) -> Iterator[tuple[int, int, int]]:
    """Cut rows ``start`` to ``stop`` at the ends of blocks, and then into at most ``step`` rows.

    Yields:
      A block's index, and the first row and the one behind the last, counted within the block.
    """
    while start < stop:
        block, low = divmod(start, block_rows)
        high = min(block_rows, low + step, low + stop - start)
        yield block, low, high
        start += high - low


def _read_stacked(blocks: Sequence[Source], start: int, stop: int, out: np.ndarray) -> None:
    first = 0
    for block in blocks:
        low, high = max(start - first, 0), min(stop - first, block.num_rows)
        if low < high:
            at = first + low - start
            block.read(low, high, out[at : at + high - low])
        first += block.num_rows


def _read_transposed(tensor: StoredTensor, start: int, stop: int, out: np.ndarray) -> None:
    inputs, outputs = tensor.shape[-2:]
    step = max(1, SCRATCH_BYTES // (inputs * out.itemsize))
    for matrix, low, high in within_blocks(start, stop, outputs, step):
        strip = np.empty((inputs, high - low), out.dtype)
        tensor.read_columns(matrix * inputs, (matrix + 1) * inputs, low, high, strip)
        at = matrix * outputs + low - start
        bits(out)[at : at + high - low] = bits(strip).T


def _read_gates_first(source: Source, outputs: int, start: int, stop: int, out: np.ndarray) -> None:
    half = outputs // 2
    step = max(1, SCRATCH_BYTES // (2 * source.width * out.itemsize))
    for block, low, high in within_blocks(start, stop, half, step):
        matrix, is_up = divmod(block, 2)
        first = matrix * outputs + 2 * low + is_up
        pairs = np.empty((2 * (high - low) - 1, source.width), out.dtype)
        source.read(first, first + len(pairs), pairs)
        at = block * half + low - start
        bits(out)[at : at + high - low] = bits(pairs)[::2]


def _read_gates_first_in_rows(source: Source, start: int, stop: int, out: np.ndarray) -> None:
    pairs = np.empty_like(out)
    source.read(start, stop, pairs)
    half = source.width // 2
    bits(out)[:, :half] = bits(pairs)[:, ::2]
    bits(out)[:, half:] = bits(pairs)[:, 1::2]
