"""Kernels over any number of rows: a thread block of one warpgroup for each tile of R = 4 rows.

What is added up over the batch, blocks leave as parts [T, N], one of each of the T blocks; the next
launch adds them up, in the same order in every block. Blocks never wait for one another.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.typing import DTypeLike
from jaxtyping import Array

from lynx_jax.pallas_kernels.router_tiles import router_scores
from lynx_jax.pallas_kernels.row_tiles import (
    COMPILER_PARAMS,
    ROWS,
    along_experts,
    load_per_row,
    load_tile,
    zeros,
)
from lynx_jax.pallas_kernels.selection import RouterRule


def launch(
    body: Callable[..., None],
    blocks: int,
    outputs: Sequence[tuple[tuple[int, ...], DTypeLike]],
    *,
    name: str,
    scratch: Sequence[Any] = (),
    interpret: Any,
) -> Callable[..., list[Array]]:
    """A kernel of so many blocks, from the shapes and dtypes of its outputs."""
    out_type = [
        jax.ShapeDtypeStruct(shape, dtype)  # type: ignore[no-untyped-call]
        for shape, dtype in outputs
    ]
    kernel: Callable[..., list[Array]] = plgpu.kernel(
        body,
        out_type=out_type,
        scratch_types=list(scratch),
        grid=(blocks,),
        grid_names=("block",),
        kernel_name=name,
        compiler_params=COMPILER_PARAMS,
        interpret=interpret,
    )
    return kernel


def block_index() -> Array:
    index: Array = lax.axis_index("block")
    return index


def block_rows() -> Any:
    """The rows of this block, as a slice of the batch."""
    return pl.ds(block_index() * ROWS, ROWS)


def load_live(live_ref: Any, width: int) -> Array:
    """bool [R, N]: which rows of this block are live."""
    return along_experts(load_per_row(live_ref.at[block_rows()]), width) != 0


def store_row_sums(x: Array, sums_ref: Any, out_ref: Any) -> None:
    """Writes the sums of this block's rows [R, N] to ``out_ref`` [B], through shared memory [R]."""
    sums_ref[...] = jnp.sum(x, axis=1)
    for row in range(ROWS):  # one by one: a store of R at once is too small for the compiler
        out_ref[block_index() * ROWS + row] = sums_ref[row]


def sum_of_parts(parts_ref: Any) -> Array:
    """int32 [N] from [T, N], T a multiple of R."""
    parts, width = parts_ref.shape

    def add(step: Array, so_far: Array) -> Array:
        return so_far + load_tile(parts_ref.at[pl.ds(step * ROWS, ROWS)])

    tile = lax.fori_loop(0, parts // ROWS, add, zeros(width))
    return jnp.sum(tile, axis=0)


@dataclass(frozen=True)
class RouterTile:
    """How the router scores the rows of a block.

    Attributes:
      router: the family's rule.
      experts: N as the caller has it.
      biased: whether the kernel's inputs hold a selection bias.
    """

    router: RouterRule
    experts: int
    biased: bool

    def scores(self, logits_ref: Any, live_ref: Any, bias_ref: Any | None) -> tuple[Array, ...]:
        """(live, choice, confidence, weight) of this block's rows, [R, N] each."""
        live = load_live(live_ref, logits_ref.shape[1])
        logits = load_tile(logits_ref.at[block_rows()]).astype(jnp.float32)
        logits = jnp.where(live, logits, 0.0)
        return live, *router_scores(logits, bias_ref, self.router, self.experts)

    def split(self, refs: tuple[Any, ...]) -> tuple[Any | None, tuple[Any, ...]]:
        """The bias, if there is one, and the other references after it."""
        return (refs[0], refs[1:]) if self.biased else (None, refs)
