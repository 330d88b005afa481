"""The expert kernels at the shapes of the supported families, to be compiled."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from lynx_jax.pallas_kernels.expert_form import ExpertWeights
from lynx_jax.pallas_kernels.expert_kernels import expert_ffn
from lynx_jax.pallas_kernels.expert_shapes import FAMILIES, ExpertShape
from lynx_jax.pallas_kernels.expert_tiles import TileKey, expert_tiles


def expert_cases(rows: list[int]) -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...], int]]:
    """Name, function, argument shapes and bytes of the largest activations of every case.

    Args:
      rows: batch sizes.
    """
    for name, family in FAMILIES.items():
        experts, _, width, hidden, form = family
        for batch in rows:
            padded, slots = -(-batch // 8) * 8, family.slots(batch)
            tiles = expert_tiles(TileKey("H200", "bfloat16", experts, width, hidden, padded))
            run = partial(expert_ffn, form=form, slots=slots, tiles=tiles)
            splits = tiles.gate_up_splits(slots, width, hidden)
            hidden_bytes = slots * padded * hidden * (2 if splits == 1 else 2 + 8 * splits)
            sums_bytes = 4 * (1 + tiles.down_splits(slots, width, hidden)) * width * padded
            yield (
                f"{name}, experts, B={batch}",
                run,
                _shapes(batch, family),
                hidden_bytes + sums_bytes + 8 * padded * (width + experts),
            )


def _shapes(rows: int, family: ExpertShape) -> tuple[Any, ...]:
    experts, _, width, hidden, _ = family

    def shape(*sizes: int, dtype: Any = jnp.bfloat16) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(sizes, dtype)

    return (
        shape(rows, width),
        shape(rows, experts, dtype=jnp.float32),
        shape(experts, dtype=jnp.int32),
        shape(dtype=jnp.int32),
        ExpertWeights(
            shape(experts, 2 * hidden, width),
            shape(experts, width, hidden),
            shape(experts, 2 * hidden) if family.biased else None,
            shape(experts, width) if family.biased else None,
        ),
    )
