"""Experts of many rows, by grouped products, at the shapes of the supported families."""

from collections.abc import Iterator
from functools import partial

import jax
import jax.numpy as jnp

from compile_recipe.case import Case
from compile_recipe.expert_cases import grouped_bytes, weight_shapes
from lynx_jax.pallas_kernels.expert_shapes import FAMILIES, ExpertShape
from lynx_jax.pallas_kernels.ragged import ragged_by_expert

_ROWS = 512


def grouped_cases() -> Iterator[Case]:
    """Every family's experts."""
    for name, family in FAMILIES.items():
        yield Case(
            f"grouped experts {name}, {_ROWS} rows",
            partial(ragged_by_expert, form=family.form),
            _shapes(family),
            activation_bytes=grouped_bytes(_ROWS, family),
            experts=(family.experts, family.width, family.hidden),
        )


def _shapes(family: ExpertShape) -> tuple[object, ...]:
    pairs = (_ROWS, family.k)
    return (
        jax.ShapeDtypeStruct((_ROWS, family.width), jnp.bfloat16),
        jax.ShapeDtypeStruct(pairs, jnp.int32),
        jax.ShapeDtypeStruct(pairs, jnp.float32),
        jax.ShapeDtypeStruct((_ROWS,), bool),
        weight_shapes(family),
    )
