"""Experts of many rows, by grouped products, at the shapes of the supported families."""

from collections.abc import Iterator
from functools import partial

import jax
import jax.numpy as jnp

from compile_recipe.case import Case
from compile_recipe.expert_cases import weight_shapes
from lynx_jax.pallas_kernels.expert_shapes import FAMILIES, ExpertShape
from lynx_jax.pallas_kernels.grouped_product import ROWS
from lynx_jax.pallas_kernels.grouping import max_blocks
from lynx_jax.pallas_kernels.ragged import ragged_by_expert

_ROWS = 512


def grouped_cases() -> Iterator[Case]:
    """Every family's experts."""
    for name, family in FAMILIES.items():
        yield Case(
            f"grouped experts {name}, {_ROWS} rows",
            partial(ragged_by_expert, form=family.form),
            _shapes(family),
            activation_bytes=_activation_bytes(family),
            experts=(family.experts, family.width, family.hidden),
        )


def _activation_bytes(family: ExpertShape) -> int:
    """Each pair's inputs and outputs, in bfloat16 and float32, and hidden activations and outputs
    of all tiles in bfloat16, as if all were kept at once."""
    pairs = _ROWS * family.k
    tiled = ROWS * max_blocks(family.experts, pairs, ROWS)
    return 2 * 6 * (pairs + ROWS) * family.width + 2 * tiled * (family.hidden + family.width)


def _shapes(family: ExpertShape) -> tuple[object, ...]:
    pairs = (_ROWS, family.k)
    return (
        jax.ShapeDtypeStruct((_ROWS, family.width), jnp.bfloat16),
        jax.ShapeDtypeStruct(pairs, jnp.int32),
        jax.ShapeDtypeStruct(pairs, jnp.float32),
        jax.ShapeDtypeStruct((_ROWS,), bool),
        weight_shapes(family),
    )
