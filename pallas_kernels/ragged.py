"""Experts of many rows on Hopper GPUs: rows sorted by expert, two grouped matrix products."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from lynx_jax.pallas_kernels.expert_form import ExpertForm, ExpertWeights
from lynx_jax.pallas_kernels.grouped_product import ROWS, grouped_gate_up, grouped_product
from lynx_jax.pallas_kernels.grouping import blocks_of_groups, pairs_by_expert


def ragged_by_expert(
    x: Float[Array, "rows width"],
    ids: Int[Array, "rows k"],
    weights: Float[Array, "rows k"],
    live: Bool[Array, " rows"],
    experts: ExpertWeights,
    form: ExpertForm,
    *,
    interpret: Any = None,
) -> Float[Array, "rows width"]:
    """Each row for the experts that it chose; a row's k outputs are summed in the order of ``ids``.

    Args:
      x: bfloat16 rows; those that are not live may hold anything and yield zeros.
      ids: k distinct experts a row.
      weights: float32 weights of ``ids``.
      live: rows that count.
      experts: stacked bfloat16 arrays; D and F are multiples of 64.
      form: what one expert computes.
      interpret: ``plgpu.InterpretGPUParams`` to run on CPU.
    """
    gate_up, down = jnp.asarray(experts.gate_up), jnp.asarray(experts.down)
    pairs = pairs_by_expert(ids, live, len(gate_up))
    tiles = blocks_of_groups(pairs.sizes, ids.size, ROWS)
    pair = jnp.pad(pairs.order, (0, ROWS))  # the last tile may reach so far
    inputs = x[pair // ids.shape[1]]
    if form.scale_input:
        scale = weights.reshape(-1)[pair][:, None]
        inputs = (scale * inputs.astype(jnp.float32)).astype(x.dtype)
    bias = experts.gate_up_bias
    h = grouped_gate_up(inputs, tiles, gate_up, bias, form=form, interpret=interpret)
    in_line = tiles._replace(first=ROWS * jnp.arange(len(tiles.first), dtype=jnp.int32))
    outputs = grouped_product(h, in_line, down, interpret=interpret)
    place = jnp.argsort(pairs.order) + tiles.shift[pairs.expert]  # arbitrary where not live
    y = outputs[place.reshape(ids.shape)].astype(jnp.float32)
    if experts.down_bias is not None:
        y += experts.down_bias[ids].astype(jnp.float32)
    if not form.scale_input:
        y *= weights[:, :, None]
    return jnp.sum(jnp.where(live[:, None, None], y, 0.0), axis=1).astype(x.dtype)
