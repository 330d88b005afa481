"""Rows grouped by expert, times the matrices of their experts, as a Mosaic GPU kernel.

A thread block computes one tile of rows, all of one group, for one tile of outputs. Groups start
anywhere among the rows that are read, but each starts a new tile of those that are written: no tile
is shared by groups and no row is stored twice, at the cost of up to a tile of unused rows a group.
Rows and weights come by TMA through one pipeline; the weights are read where they lie.

Axes in comments: M rows; T tiles of rows; N groups; O outputs; I inputs.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float

from lynx_jax.pallas_kernels.expert_form import ExpertForm
from lynx_jax.pallas_kernels.grouping import Blocks
from lynx_jax.pallas_kernels.operand_tiles import IN_FLIGHT, swizzled

ROWS = 64  # of a tile
_INPUTS = 64  # of a step of the pipeline
STAGES = 4  # steps of it in flight
_OUTPUTS = 64  # a tile's are one or two times as many
_SUMS = plgpu.Layout.WGMMA  # of [rows, outputs]


def grouped_product(
    x: Float[Array, "rows inputs"],
    tiles: Blocks,
    weight: Float[Array, "groups outputs inputs"],
    *,
    interpret: Any = None,
) -> Float[Array, "tiled_rows outputs"]:
    """Each tile's rows times their group's matrix, tile after tile; arbitrary past the last tile.

    Args:
      x: bfloat16 rows, of which each tile has ``ROWS``.
      tiles: blocks of ``ROWS`` rows of a group.
      weight: bfloat16; O and I are multiples of 64.
      interpret: ``plgpu.InterpretGPUParams`` to run on CPU.
    """
    outputs = weight.shape[1]
    wide = outputs % (2 * _OUTPUTS) == 0
    return _call(x, tiles, weight, None, None, (2 if wide else 1) * _OUTPUTS, interpret)


def grouped_gate_up(
    x: Float[Array, "rows width"],
    tiles: Blocks,
    weight: Float[Array, "groups hidden2 width"],
    bias: Float[Array, "groups hidden2"] | None,
    *,
    form: ExpertForm,
    interpret: Any = None,
) -> Float[Array, "tiled_rows hidden"]:
    """Hidden activations of each tile's rows, as ``grouped_product`` gives its results.

    Args:
      x, tiles, interpret: as of ``grouped_product``.
      weight: bfloat16; gate's F output rows, then up's. D and F are multiples of 64.
      bias: of gate and up.
      form: what an expert computes; rows are scaled by then.
    """
    return _call(x, tiles, weight, bias, form, _OUTPUTS, interpret)


def grouped_kernel(
    x_ref: Any,  # [M, I]
    group_ref: Any,  # [T]
    first_ref: Any,  # [T]
    in_use_ref: Any,  # [1]
    weight_ref: Any,  # [N, O, I]
    bias_ref: Any,  # [N, O] or None
    out_ref: Any,  # [T * ROWS, O], or half of O where an activation takes two
    out_smem: Any,
    *,
    form: ExpertForm | None,
) -> None:
    tile, column = lax.axis_index("tile"), lax.axis_index("column")
    width, columns = out_smem.shape[1], out_ref.shape[1]

    @pl.when(tile < in_use_ref[0])  # type: ignore[untyped-decorator]
    def _() -> None:
        group, rows = group_ref[tile], pl.ds(first_ref[tile], ROWS)
        parts = [column] if form is None else [column, column + columns // width]
        sums = pl.run_scoped(
            functools.partial(_sums, x_ref.at[rows], weight_ref.at[group], parts),
            *[plgpu.ACC((ROWS, width)) for _ in parts],
        )
        if bias_ref is not None:
            sums = [
                y + _bias(bias_ref.at[group], p, y.shape) for y, p in zip(sums, parts, strict=True)
            ]
        y = sums[0] if form is None else form.activate(*sums)
        out_smem[...] = y.astype(out_ref.dtype)
        plgpu.commit_smem()
        target = out_ref.at[pl.ds(tile * ROWS, ROWS), pl.ds(column * width, width)]
        plgpu.copy_smem_to_gmem(out_smem, target)
        plgpu.wait_smem_to_gmem(0)


def _sums(x_ref: Any, weight_ref: Any, parts: list[Array], *accumulators: Any) -> list[Array]:
    """A tile's rows times each part of the outputs, in float32."""
    width = accumulators[0].shape[1]

    def step(_: Any, x: Any, *weights: Any) -> None:
        for accumulator, weight in zip(accumulators, weights, strict=True):
            plgpu.wgmma(accumulator, x, weight.transpose((1, 0)))
        plgpu.wgmma_wait(IN_FLIGHT)

    def spec(size: int, index: Any) -> Any:
        return plgpu.BlockSpec(
            (size, _INPUTS),
            lambda i: (index, i),
            transforms=swizzled(_INPUTS, x_ref.dtype),
            delay_release=IN_FLIGHT,
        )

    plgpu.emit_pipeline(
        step,
        grid=(x_ref.shape[1] // _INPUTS,),
        in_specs=[spec(ROWS, 0), *(spec(width, part) for part in parts)],
        max_concurrent_steps=STAGES,
    )(x_ref, *[weight_ref for _ in parts])
    return [accumulator[...] for accumulator in accumulators]


def _bias(bias_ref: Any, part: Array, shape: tuple[int, int]) -> Array:
    """A part of a group's biases in float32, for every row."""
    features = bias_ref.at[pl.ds(part * shape[1], shape[1])]
    vector = plgpu.load(features, layout=_SUMS.reduce(0), optimized=False)
    return lax.broadcast_in_dim(vector.astype(jnp.float32), shape, (1,))


def _call(
    x: Array,
    tiles: Blocks,
    weight: Array,
    bias: Array | None,
    form: ExpertForm | None,
    width: int,
    interpret: Any,
) -> Array:
    columns = weight.shape[1] if form is None else weight.shape[1] // 2
    num_tiles = tiles.group.shape[0]
    y: Array = plgpu.kernel(
        functools.partial(grouped_kernel, form=form),
        out_type=jax.ShapeDtypeStruct((num_tiles * ROWS, columns), x.dtype),  # type: ignore[no-untyped-call]
        scratch_types=[plgpu.SMEM((ROWS, width), x.dtype, transforms=swizzled(width, x.dtype))],
        grid=(num_tiles, columns // width),
        grid_names=("tile", "column"),
        compiler_params=plgpu.CompilerParams(
            approx_math=True, lowering_semantics=plgpu.LoweringSemantics.Lane
        ),
        kernel_name="grouped_product" if form is None else "grouped_gate_up",
        interpret=interpret,
    )(x, tiles.group, tiles.first, tiles.in_use.reshape(1), weight, bias)
    return y
