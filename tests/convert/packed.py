"""Random packed tensors, and what each number of them means: one by one, from the definitions."""

import math

import ml_dtypes
import numpy as np

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
type Packed = dict[str, np.ndarray]  # by what follows the name of the matrix


def fp8(rng: np.random.Generator, shape: tuple[int, ...], block: int, scale_dtype) -> Packed:
    """Random finite bytes and scales of blocks."""
    grid = (*shape[:-2], *(math.ceil(n / block) for n in shape[-2:]))
    weight = rng.integers(0, 256, shape, np.uint8)
    weight[weight & 127 == 127] = 0  # NaN
    return {
        "": weight.view(ml_dtypes.float8_e4m3fn),
        "_scale_inv": rng.uniform(0.5, 2, grid).astype(scale_dtype),
    }


def fp8_values(packed: Packed, block: int) -> np.ndarray:
    weight, scale = packed[""].view(np.uint8), packed["_scale_inv"].astype(np.float64)
    values = np.empty(weight.shape, np.float64)
    for index, byte in np.ndenumerate(weight):
        row, column = index[-2:]
        at = (*index[:-2], row // block, column // block)
        values[index] = e4m3(int(byte)) * scale[at]
    return values


def e4m3(byte: int) -> float:
    sign, exponent, mantissa = byte >> 7, byte >> 3 & 15, byte & 7
    if exponent:
        magnitude = (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    else:
        magnitude = mantissa / 8 * 2.0**-6
    return -magnitude if sign else magnitude


def mxfp4(rng: np.random.Generator, shape: tuple[int, ...]) -> Packed:
    """Random bytes, and exponents around that of 1."""
    blocks = (*shape[:-1], shape[-1] // 32)
    return {
        "_blocks": rng.integers(0, 256, (*blocks, 16), np.uint8),
        "_scales": rng.integers(117, 135, blocks, np.uint8),
    }


def mxfp4_values(packed: Packed) -> np.ndarray:
    blocks, scales = packed["_blocks"], packed["_scales"]
    values = np.empty((*scales.shape[:-1], 32 * scales.shape[-1]), np.float64)
    for index in np.ndindex(values.shape):
        block, within = divmod(index[-1], 32)
        byte = int(blocks[*index[:-1], block, within // 2])
        nibble = byte >> 4 if within % 2 else byte & 15
        values[index] = e2m1(nibble) * 2.0 ** (int(scales[*index[:-1], block]) - 127)
    return values


def e2m1(nibble: int) -> float:
    sign, exponent, mantissa = nibble >> 3, nibble >> 1 & 3, nibble & 1
    magnitude = (1 + mantissa / 2) * 2.0 ** (exponent - 1) if exponent else mantissa / 2
    return -magnitude if sign else magnitude


def int4_parts(
    rng: np.random.Generator, outputs: int, inputs: int, group: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """q [inputs, outputs], zeros and float16 scales [groups, outputs]."""
    groups = math.ceil(inputs / group)
    q = rng.integers(0, 16, (inputs, outputs))
    zeros = rng.integers(0, 16, (groups, outputs))
    return q, zeros, rng.uniform(0.01, 0.1, (groups, outputs)).astype(np.float16)


def int4_values(q, zeros, scales, group_of_input) -> np.ndarray:
    """Weights [outputs, inputs]."""
    values = np.empty(q.T.shape, np.float64)
    for i, o in np.ndindex(q.shape):
        g = group_of_input[i]
        values[o, i] = (int(q[i, o]) - int(zeros[g, o])) * float(scales[g, o])
    return values


def gptq(q, zeros, scales, group_of_input, *, version: int) -> Packed:
    """Packed as the format says: weights along inputs, zero points along outputs."""
    stored = (zeros - 1) % 16 if version == 1 else zeros
    in_order = range(8)
    return {
        ".qweight": pack(q.T, in_order).T.copy(),
        ".qzeros": pack(stored, in_order),
        ".scales": scales,
        ".g_idx": np.asarray(group_of_input, np.int32),
    }


def awq(q, zeros, scales) -> Packed:
    """Packed as the format says: all along outputs, of eight first those with even numbers."""
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    return {".qweight": pack(q, order), ".qzeros": pack(zeros, order), ".scales": scales}


def pack(numbers: np.ndarray, order) -> np.ndarray:
    """Eight of the last axis in an int32; ``order`` says which is in the lowest bits and so on."""
    words = np.zeros((*numbers.shape[:-1], numbers.shape[-1] // 8), np.uint32)
    for index in np.ndindex(words.shape):
        for place, which in enumerate(order):
            number = int(numbers[*index[:-1], 8 * index[-1] + which])
            words[index] |= np.uint32(number << 4 * place)
    return words.view(np.int32)
