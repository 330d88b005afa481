"""How tiles of operands lie in shared memory, and how long they stay there."""

from typing import Any

import jax.numpy as jnp
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.typing import DTypeLike

# Steps whose products may still be running when a step ends: their operands stay in shared memory.
IN_FLIGHT = 1


def swizzled(columns: int, dtype: DTypeLike) -> tuple[Any, Any]:
    """Transforms of a tile whose rows have ``columns`` values: the widest swizzle that they fill.

    Args:
      columns: their bytes are a multiple of 32.
      dtype: of the values.
    """
    size = jnp.dtype(dtype).itemsize
    swizzle = next(width for width in (128, 64, 32) if columns * size % width == 0)
    return plgpu.TilingTransform((8, swizzle // size)), plgpu.SwizzleTransform(swizzle)
