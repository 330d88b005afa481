"""The experts of a decode batch on an NVIDIA GPU: two Mosaic GPU kernels and their sums."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from lynx_jax.errors import InputError
from lynx_jax.pallas_kernels.down import down
from lynx_jax.pallas_kernels.expert_form import ExpertForm, ExpertWeights
from lynx_jax.pallas_kernels.expert_limits import layer_refusal, rows_refusal
from lynx_jax.pallas_kernels.expert_tiles import SMEM_LIMIT, ExpertTiles
from lynx_jax.pallas_kernels.gate_up import gate_up


def expert_ffn(
    x: Float[Array, "rows width"],
    combine: Float[Array, "rows experts"],
    active: Int[Array, " experts"],
    num_active: Int[Array, ""],
    weights: ExpertWeights,
    form: ExpertForm,
    *,
    slots: int,
    tiles: ExpertTiles,
    interpret: Any = None,
) -> Float[Array, "rows width"]:
    """All rows for each expert in use; reads no other expert, and each of these once.

    ``dense_over_active`` of ``expert_ffn`` is its plain-JAX form.

    Args:
      x: bfloat16, up to 64 rows; one without a weight in ``combine`` may hold anything and yields
        zeros.
      combine: float32 weight of each expert in each row.
      active: the experts in use come first.
      num_active: how many they are.
      weights: stacked bfloat16 arrays; D and F are multiples of 64.
      form: what one expert computes.
      slots: static; ``num_active`` is at most that.
      tiles: sizes that fit D and F.
      interpret: ``plgpu.InterpretGPUParams`` to run on CPU.

    Raises:
      InputError: the kernels do not take this dtype, shape or tiles; one line that says which.
    """
    rows = x.shape[0]
    gate_up_weight, down_weight = jnp.asarray(weights.gate_up), jnp.asarray(weights.down)
    _check(x, down_weight, slots, tiles)
    padding = ((0, -rows % 8), (0, 0))
    padded, by_expert = jnp.pad(x, padding), jnp.pad(combine, padding).T
    used = active[:slots]
    hidden = gate_up(
        padded,
        by_expert,
        used,
        num_active,
        gate_up_weight,
        weights.gate_up_bias,
        form=form,
        tiles=tiles,
        interpret=interpret,
    )
    y = down(hidden, used, num_active, down_weight, tiles=tiles, interpret=interpret)
    y = y[:, :rows].T
    if weights.down_bias is not None:
        share = (combine != 0) if form.scale_input else combine
        y = y + jnp.dot(
            share.astype(jnp.float32),
            weights.down_bias.astype(jnp.float32),
            precision="highest",
        )
    return y.astype(x.dtype)


def _check(x: Array, down_weight: Array, slots: int, tiles: ExpertTiles) -> None:
    num_experts, width, hidden = down_weight.shape
    refusal = rows_refusal(x.shape[0], x.dtype) or layer_refusal(width, hidden, down_weight.dtype)
    if refusal is not None:
        raise InputError(f"expert kernels: {refusal}; dense_over_active computes any")
    if not 1 <= slots <= num_experts:
        raise InputError(f"expert kernels: expected 1 to {num_experts} slots, got {slots}")
    if tiles != tiles.fitted(width, hidden):
        raise InputError(f"expert kernels: expected tiles that divide {width}, {hidden}: {tiles}")
    needed = max(tiles.shared_bytes(-(-x.shape[0] // 8) * 8))
    if needed > SMEM_LIMIT:
        raise InputError(
            f"expert kernels: expected tiles of at most {SMEM_LIMIT} bytes of shared memory, "
            f"got {needed}: {tiles}"
        )
