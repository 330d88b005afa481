"""Down projection of the experts in use, summed over them, as a Mosaic GPU kernel.

The hidden activations carry their combine weights already, so the layer's result is one matrix
product with a sum over (expert in use, F). A thread block takes one tile of outputs and an equal
part of that sum, whatever the number of experts in use; a second pass adds the parts in their
order. Who adds what depends on ``num_active`` alone, so a result is the same in every run.

Axes in comments: B rows, a multiple of 8 up to 64; S slots for experts in use; P parts of the sum.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float, Int

from lynx_jax.pallas_kernels.expert_tiles import ExpertTiles
from lynx_jax.pallas_kernels.operand_tiles import IN_FLIGHT, swizzled


def down(
    hidden: Float[Array, "slots rows hidden"],
    active: Int[Array, " slots"],
    num_active: Int[Array, ""],
    weight: Float[Array, "experts width hidden"],
    *,
    tiles: ExpertTiles,
    interpret: Any = None,
) -> Float[Array, "width rows"]:
    """Sum over the experts in use of their down projections, in float32.

    Args:
      hidden: weighted activations, bfloat16; arbitrary past ``num_active``. Rows: a multiple of 8
        up to 64.
      active: the expert of each slot.
      num_active: how many slots count.
      weight: bfloat16; D and F are multiples of 64.
      tiles: sizes that fit D and F.
      interpret: ``plgpu.InterpretGPUParams`` to run on CPU.
    """
    slots, rows, inputs = hidden.shape
    width = weight.shape[1]
    splits = tiles.down_splits(slots, width, inputs)
    out_type = jax.ShapeDtypeStruct((splits, width, rows), jnp.float32)  # type: ignore[no-untyped-call]
    parts = plgpu.kernel(
        functools.partial(down_kernel, tiles=tiles, splits=splits),
        out_type=out_type,
        scratch_types=[
            plgpu.SMEM((tiles.down_rows, rows), jnp.float32, transforms=swizzled(rows, jnp.float32))
        ],
        grid=(splits, width // tiles.down_rows),
        grid_names=("part", "tile"),
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Lane),
        kernel_name="down",
        interpret=interpret,
    )(hidden, active, num_active.reshape(1), weight)
    total: Array = functools.reduce(jnp.add, [parts[p] for p in range(splits)])
    return total


def down_reference(
    hidden: Float[Array, "slots rows hidden"],
    active: Int[Array, " slots"],
    num_active: Int[Array, ""],
    weight: Float[Array, "experts width hidden"],
) -> Float[Array, "width rows"]:
    """``down`` in float32 on any device."""
    counts = jnp.arange(active.shape[0]) < num_active
    clean = jnp.where(counts[:, None, None], hidden, 0).astype(jnp.float32)
    used = weight[active].astype(jnp.float32)
    return jnp.einsum("sbf,sdf->db", clean, used, precision=lax.Precision.HIGHEST)


def down_kernel(
    hidden_ref: Any,  # [S, B, F]
    active_ref: Any,  # [S]
    num_active_ref: Any,  # [1]
    weight_ref: Any,  # [N, D, F]
    out_ref: Any,  # [P, D, B]
    out_smem: Any,
    *,
    tiles: ExpertTiles,
    splits: int,
) -> None:
    part, tile = lax.axis_index("part"), lax.axis_index("tile")
    rows = hidden_ref.shape[1]
    steps_an_expert = hidden_ref.shape[2] // tiles.down_block
    steps = num_active_ref[0] * steps_an_expert
    start = lax.div(part * steps, splits)
    count = lax.div((part + 1) * steps, splits) - start

    def position(i: Array) -> tuple[Array, Array]:
        """Slot and block of F of this part's step ``i``."""
        return lax.div(start + i, steps_an_expert), lax.rem(start + i, steps_an_expert)

    def weight_block(i: Array) -> tuple[Array, Array, Array]:
        slot, block = position(i)
        return active_ref[slot], tile, block

    def hidden_block(i: Array) -> tuple[Array, int, Array]:
        slot, block = position(i)
        return slot, 0, block

    def spec(size: int, index: Any) -> Any:
        return plgpu.BlockSpec(
            (None, size, tiles.down_block),
            index,
            transforms=swizzled(tiles.down_block, weight_ref.dtype),
            delay_release=IN_FLIGHT,
        )

    def sums(acc: Any) -> Array:
        def step(_: Any, weight: Any, hidden: Any) -> None:
            plgpu.wgmma(acc, weight, hidden.transpose((1, 0)))
            plgpu.wgmma_wait(IN_FLIGHT)

        plgpu.emit_pipeline(
            step,
            grid=(count,),
            in_specs=[spec(tiles.down_rows, weight_block), spec(rows, hidden_block)],
            max_concurrent_steps=tiles.down_stages,
        )(weight_ref, hidden_ref)
        total: Array = acc[...]
        return total

    out_smem[...] = pl.run_scoped(sums, plgpu.ACC((tiles.down_rows, rows)))
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(
        out_smem, out_ref.at[part, pl.ds(tile * tiles.down_rows, tiles.down_rows)]
    )
    plgpu.wait_smem_to_gmem(0)
