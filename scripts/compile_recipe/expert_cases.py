"""The expert kernels at the shapes of the supported families, to be compiled."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from compile_recipe.case import Case
from lynx_jax.pallas_kernels.expert_form import ExpertWeights
from lynx_jax.pallas_kernels.expert_kernels import expert_ffn
from lynx_jax.pallas_kernels.expert_limits import MAX_ROWS
from lynx_jax.pallas_kernels.expert_shapes import FAMILIES, ExpertShape
from lynx_jax.pallas_kernels.expert_tiles import ExpertTiles, TileKey, expert_tiles
from lynx_jax.pallas_kernels.grouped_product import ROWS
from lynx_jax.pallas_kernels.grouping import max_blocks


def expert_cases(rows: list[int]) -> Iterator[Case]:
    """Every family's experts for every batch size that the kernels take."""
    for name, family in FAMILIES.items():
        experts, _, width, hidden, form = family
        for batch in (size for size in rows if size <= MAX_ROWS):
            yield Case(
                f"experts {name}, B={batch}",
                partial(
                    expert_ffn,
                    form=form,
                    slots=family.slots(batch),
                    tiles=_tiles(batch, experts, width, hidden),
                ),
                _shapes(batch, family),
                activation_bytes=activation_bytes(batch, family),
                experts=(experts, width, hidden),
            )


def activation_bytes(rows: int, family: ExpertShape) -> int:
    """What a layer's experts have to keep of a batch, all of it at once.

    In the kernels, rows are padded to a multiple of 8. Hidden activations of every slot in bfloat16
    and, where their sums over D are split, the parts in float32; the parts of the down projection
    and their sum in float32; rows and combine weights, padded and transposed. More rows than the
    kernels take are grouped.
    """
    if rows > MAX_ROWS:
        return grouped_bytes(rows, family)
    experts, _, width, hidden, _ = family
    tiles = _tiles(rows, experts, width, hidden)
    padded, slots = _padded(rows), family.slots(rows)
    parts = tiles.gate_up_splits(slots, width, hidden)
    hidden_bytes = slots * padded * hidden * (2 if parts == 1 else 2 + 8 * parts)
    sums_bytes = 4 * (1 + tiles.down_splits(slots, width, hidden)) * width * padded
    return hidden_bytes + sums_bytes + 8 * padded * (width + experts)


def grouped_bytes(rows: int, family: ExpertShape) -> int:
    """What grouped products have to keep of rows, all of it at once.

    Inputs and outputs of each row's experts in bfloat16 and float32; hidden activations and outputs
    of all tiles in bfloat16.
    """
    pairs = rows * family.k
    tiled = ROWS * max_blocks(family.experts, pairs, ROWS)
    return 2 * 6 * (pairs + ROWS) * family.width + 2 * tiled * (family.hidden + family.width)


def _padded(rows: int) -> int:
    return -(-rows // 8) * 8


def _tiles(rows: int, experts: int, width: int, hidden: int) -> ExpertTiles:
    return expert_tiles(TileKey("H200", "bfloat16", experts, width, hidden, _padded(rows)))


def _shapes(rows: int, family: ExpertShape) -> tuple[Any, ...]:
    experts, width = family.experts, family.width
    return (
        jax.ShapeDtypeStruct((rows, width), jnp.bfloat16),
        jax.ShapeDtypeStruct((rows, experts), jnp.float32),
        jax.ShapeDtypeStruct((experts,), jnp.int32),
        jax.ShapeDtypeStruct((), jnp.int32),
        weight_shapes(family),
    )


def weight_shapes(family: ExpertShape) -> ExpertWeights:
    """Shapes of a layer's stacks of experts."""
    experts, _, width, hidden, _ = family
    shape = partial(jax.ShapeDtypeStruct, dtype=jnp.bfloat16)
    return ExpertWeights(
        shape((experts, 2 * hidden, width)),
        shape((experts, width, hidden)),
        shape((experts, 2 * hidden)) if family.biased else None,
        shape((experts, width)) if family.biased else None,
    )
