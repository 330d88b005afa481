"""Experts of many rows, by grouped products, at the shapes of the supported families."""

from collections.abc import Iterator
from functools import partial

import jax
import jax.numpy as jnp

from compile_recipe.case import Case
from compile_recipe.expert_cases import weight_shapes
from lynx_jax.pallas_kernels.expert_shapes import FAMILIES, ExpertShape
from lynx_jax.pallas_kernels.ragged import MAX_EXPERTS, ragged_by_expert

_ROWS = 512


def grouped_cases() -> Iterator[Case]:
    """Every family whose layers have no more experts than the products take."""
    for name, family in FAMILIES.items():
        if family.experts <= MAX_EXPERTS:
            yield Case(
                f"grouped experts {name}, {_ROWS} rows",
                partial(ragged_by_expert, form=family.form),
                _shapes(family),
                activation_bytes=_activation_bytes(family),
                experts=(family.experts, family.width, family.hidden),
            )


def _activation_bytes(family: ExpertShape) -> int:
    """Inputs, hidden activations before and after the activation function, and outputs of every
    row and expert, in bfloat16 and float32, as if all were kept at once."""
    return 6 * _ROWS * family.k * (2 * family.width + 3 * family.hidden)


def _shapes(family: ExpertShape) -> tuple[object, ...]:
    pairs = (_ROWS, family.k)
    return (
        jax.ShapeDtypeStruct((_ROWS, family.width), jnp.bfloat16),
        jax.ShapeDtypeStruct(pairs, jnp.int32),
        jax.ShapeDtypeStruct(pairs, jnp.float32),
        jax.ShapeDtypeStruct((_ROWS,), bool),
        weight_shapes(family),
    )
