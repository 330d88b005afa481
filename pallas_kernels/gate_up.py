"""Gate and up projections of the experts in use, and their activation, as a Mosaic GPU kernel.

A thread block computes 64 hidden features of one expert for all rows. Operands are swapped: the
weights are the A side of the wgmma (64 gate rows, 64 up rows) and the batch is its narrow B side,
so that no tensor core row is padded for a small batch. Weights and rows come by TMA through one
pipeline over D; every weight of an active expert is read once and no other one.

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

from lynx_jax.pallas_kernels.expert_form import ExpertForm
from lynx_jax.pallas_kernels.expert_tiles import FEATURES, ExpertTiles
from lynx_jax.pallas_kernels.operand_tiles import IN_FLIGHT, swizzled

_SUMS = plgpu.Layout.WGMMA  # of [features, B]
_PER_ROW, _PER_FEATURE = _SUMS.reduce(0), _SUMS.reduce(1)


def gate_up(
    x: Float[Array, "rows width"],
    combine: Float[Array, "experts rows"],
    active: Int[Array, " slots"],
    num_active: Int[Array, ""],
    weight: Float[Array, "experts hidden2 width"],
    bias: Float[Array, "experts hidden2"] | None = None,
    *,
    form: ExpertForm,
    tiles: ExpertTiles,
    interpret: Any = None,
) -> Float[Array, "slots rows hidden"]:
    """Hidden activations of the experts in use, times their combine weights.

    The weights go in here and not after the down projection, which then is one sum over experts.

    Args:
      x: bfloat16 rows, a multiple of 8 up to 64; one whose weights are all 0 may hold anything.
      combine: float32 weight of each row in each expert.
      active: the experts in use come first.
      num_active: how many they are.
      weight: bfloat16; gate's F output rows, then up's. D and F are multiples of 64.
      bias: of gate and up.
      form: what an expert computes.
      tiles: sizes that fit D and F.
      interpret: ``plgpu.InterpretGPUParams`` to run on CPU.

    Returns:
      bfloat16; 0 where a row has no weight in the slot's expert; arbitrary past ``num_active``.
    """
    splits = tiles.gate_up_splits(active.shape[0], x.shape[1], weight.shape[1] // 2)
    arguments = (x, combine, active, num_active.reshape(1), weight, bias)
    if splits == 1:
        hidden: Array = _call(arguments, form, tiles, 1, interpret)
        return hidden
    parts = _call(arguments, form, tiles, splits, interpret)  # [P, S, 2, F, B]
    sums = functools.reduce(jnp.add, [parts[p] for p in range(splits)])
    weights = combine[active][:, None, :]  # [S, 1, B]
    biases = None
    if bias is not None:
        halves = bias[active].reshape(active.shape[0], 2, -1, 1).astype(jnp.float32)
        biases = halves[:, 0], halves[:, 1]
    hidden = _activate(sums[:, 0], sums[:, 1], biases, weights, form)
    return hidden.swapaxes(1, 2).astype(x.dtype)


def gate_up_reference(
    x: Float[Array, "rows width"],
    combine: Float[Array, "experts rows"],
    active: Int[Array, " slots"],
    num_active: Int[Array, ""],
    weight: Float[Array, "experts hidden2 width"],
    bias: Float[Array, "experts hidden2"] | None = None,
    *,
    form: ExpertForm,
) -> Float[Array, "slots rows hidden"]:
    """``gate_up`` in float32 on any device, also in its result; 0 past ``num_active``."""
    clean = jnp.where(jnp.any(combine != 0, axis=0)[:, None], x, 0).astype(jnp.float32)
    used = weight[active].astype(jnp.float32)
    sums = jnp.einsum("bd,sfd->sfb", clean, used, precision=lax.Precision.HIGHEST)
    gate, up = jnp.split(sums, 2, axis=1)
    biases = None
    if bias is not None:
        first, second = jnp.split(bias[active].astype(jnp.float32)[..., None], 2, axis=1)
        biases = first, second
    hidden = _activate(gate, up, biases, combine[active][:, None, :], form)
    counts = jnp.arange(active.shape[0]) < num_active
    return jnp.where(counts[:, None, None], hidden, 0.0).swapaxes(1, 2)


def _activate(
    gate: Array, up: Array, biases: tuple[Array, Array] | None, weights: Array, form: ExpertForm
) -> Array:
    """Weighted activations in float32; all arrays broadcast to [.., features, B]."""
    if form.scale_input:  # as good as scaled rows: the sums are linear in them
        gate, up = weights * gate, weights * up
    if biases is not None:
        gate, up = gate + biases[0], up + biases[1]
    hidden = form.activate(gate, up)
    if not form.scale_input:
        hidden = weights * hidden
    return jnp.where(weights != 0, hidden, 0.0)  # a row that did not choose may be anything


def gate_up_kernel(
    x_ref: Any,  # [B, D]
    combine_ref: Any,  # [N, B]
    active_ref: Any,  # [S]
    num_active_ref: Any,  # [1]
    weight_ref: Any,  # [N, 2F, D]
    bias_ref: Any,  # [N, 2F] or None
    out_ref: Any,  # [S, B, F], or [P, S, 2, F, B] where the sum is split
    out_smem: Any,
    *,
    form: ExpertForm,
    tiles: ExpertTiles,
    splits: int,
) -> None:
    part, slot, tile = (lax.axis_index(name) for name in ("part", "slot", "tile"))
    rows, hidden = x_ref.shape[0], weight_ref.shape[1] // 2
    features = pl.ds(tile * FEATURES, FEATURES)

    @pl.when(slot < num_active_ref[0])  # type: ignore[untyped-decorator]
    def _() -> None:
        expert = active_ref[slot]
        sums = functools.partial(
            _sums, x_ref, weight_ref.at[expert], part, tile, tiles=tiles, splits=splits
        )
        gate, up = pl.run_scoped(sums, plgpu.ACC((FEATURES, rows)), plgpu.ACC((FEATURES, rows)))
        if splits > 1:
            out_smem[0], out_smem[1] = gate, up
            target = out_ref.at[part, slot, :, features]
        else:
            weights = _load(combine_ref.at[expert], _PER_ROW, (FEATURES, rows), 1)
            biases = None
            if bias_ref is not None:
                of_up = pl.ds(hidden + tile * FEATURES, FEATURES)
                read = functools.partial(_load, layout=_PER_FEATURE, shape=(FEATURES, rows), axis=0)
                biases = read(bias_ref.at[expert, features]), read(bias_ref.at[expert, of_up])
            activated = _activate(gate, up, biases, weights, form).astype(out_ref.dtype)
            transposed = plgpu.layout_cast(activated, plgpu.Layout.WGMMA_TRANSPOSED)
            out_smem.transpose((1, 0))[...] = transposed
            target = out_ref.at[slot, :, features]
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(out_smem, target)
        plgpu.wait_smem_to_gmem(0)


def _sums(
    x_ref: Any,  # [B, D]
    weight_ref: Any,  # [2F, D]
    part: Array,
    tile: Array,
    gate_acc: Any,  # [features, B]
    up_acc: Any,
    *,
    tiles: ExpertTiles,
    splits: int,
) -> tuple[Array, Array]:
    """The two accumulators after this part of D."""
    block = tiles.gate_up_block
    steps = x_ref.shape[1] // block
    start = lax.div(part * steps, splits)
    count = lax.div((part + 1) * steps, splits) - start if splits > 1 else steps
    up_tile = tile + weight_ref.shape[0] // (2 * FEATURES)

    def step(_: Any, gate: Any, up: Any, x: Any) -> None:
        plgpu.wgmma(gate_acc, gate, x.transpose((1, 0)))
        plgpu.wgmma(up_acc, up, x.transpose((1, 0)))
        plgpu.wgmma_wait(IN_FLIGHT)

    def spec(size: int, index: Any) -> Any:
        return plgpu.BlockSpec(
            (size, block),
            lambda i: (index, start + i),
            transforms=swizzled(block, x_ref.dtype),
            delay_release=IN_FLIGHT,
        )

    plgpu.emit_pipeline(
        step,
        grid=(count,),
        in_specs=[spec(FEATURES, tile), spec(FEATURES, up_tile), spec(x_ref.shape[0], 0)],
        max_concurrent_steps=tiles.gate_up_stages,
    )(weight_ref, weight_ref, x_ref)
    return gate_acc[...], up_acc[...]


def _load(ref: Any, layout: Any, shape: tuple[int, int], axis: int) -> Array:
    """A vector in float32, repeated over the other axis of ``shape``."""
    vector = plgpu.load(ref, layout=layout, optimized=False).astype(jnp.float32)
    return lax.broadcast_in_dim(vector, shape, (axis,))


def _call(
    arguments: tuple[Any, ...], form: ExpertForm, tiles: ExpertTiles, splits: int, interpret: Any
) -> Any:
    x, _, active, _, weight, _ = arguments
    rows, slots, hidden = x.shape[0], active.shape[0], weight.shape[1] // 2
    out_shape: tuple[int, ...] = (slots, rows, hidden)
    out_dtype = x.dtype
    if splits == 1:
        out_tile = plgpu.SMEM((rows, FEATURES), x.dtype, transforms=swizzled(FEATURES, x.dtype))
    else:
        out_shape, out_dtype = (splits, slots, 2, hidden, rows), jnp.dtype(jnp.float32)
        out_tile = plgpu.SMEM(
            (2, FEATURES, rows), jnp.float32, transforms=swizzled(rows, jnp.float32)
        )
    body = functools.partial(gate_up_kernel, form=form, tiles=tiles, splits=splits)
    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct(out_shape, out_dtype),  # type: ignore[no-untyped-call]
        scratch_types=[out_tile],
        grid=(splits, slots, hidden // FEATURES),
        grid_names=("part", "slot", "tile"),
        compiler_params=plgpu.CompilerParams(
            approx_math=True, lowering_semantics=plgpu.LoweringSemantics.Lane
        ),
        kernel_name="gate_up",
        interpret=interpret,
    )(*arguments)
