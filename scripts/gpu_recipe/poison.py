"""Buffers that hold NaN before a kernel writes to them, so that what it leaves out shows."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array


def poisoned(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, compiled so that its results land in buffers full of NaN or large numbers.

    They are donated to it; a result of the same shape and dtype takes a donated buffer over.
    """

    def into(results: Any, *arguments: Any) -> Any:
        del results
        return function(*arguments)

    program = jax.jit(into, donate_argnums=0, keep_unused=True)

    def call(*arguments: Any) -> Any:
        shapes = jax.eval_shape(function, *arguments)
        return program(jax.tree.map(_poison, shapes), *arguments)

    return call


def fill_memory(size: int) -> None:
    """Fills free device memory with NaN and frees it again, for what programs hold in between.

    Args:
      size: bytes, about; in blocks from 4 KiB on, as programs ask for blocks of many sizes.
    """
    held = []
    block = 2**12
    while block <= size // 4:
        held += [jnp.full(block // 4, jnp.nan, jnp.float32) for _ in range(2)]
        block *= 2
    jax.block_until_ready(held)


def _poison(shape: jax.ShapeDtypeStruct) -> Array:
    kind = jnp.dtype(shape.dtype)
    if jnp.issubdtype(kind, jnp.floating):
        return jnp.full(shape.shape, jnp.nan, kind)
    return jnp.full(shape.shape, True if kind.kind == "b" else jnp.iinfo(kind).max - 7, kind)
