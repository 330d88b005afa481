"""Experts of many rows on Hopper GPUs: rows sorted by expert, two grouped matrix products."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from lynx_jax.pallas_kernels.expert_form import ExpertForm, ExpertWeights

# JAX's kernel holds all group sizes in registers: with more experts these spill.
MAX_EXPERTS = 192
# Rows and inputs of a tile; outputs of a tile up to so many experts, and beyond.
_ROWS, _INPUTS = 64, 64
_FEW_EXPERTS, _OUTPUTS_OF_FEW, _OUTPUTS = 128, 128, 64
_PIPELINE_DEPTH = 4


def ragged_by_expert(
    x: Float[Array, "rows width"],
    ids: Int[Array, "rows k"],
    weights: Float[Array, "rows k"],
    live: Bool[Array, " rows"],
    experts: ExpertWeights,
    form: ExpertForm,
) -> Float[Array, "rows width"]:
    """Each row for the experts that it chose; a row's k outputs are summed in the order of ``ids``.

    Args:
      x: rows; those that are not live may hold anything and yield zeros.
      ids: k distinct experts a row.
      weights: float32 weights of ``ids``.
      live: rows that count.
      experts: stacked arrays, of up to ``MAX_EXPERTS`` experts whose D and F are multiples of 64.
      form: what one expert computes.
    """
    gate_up, down = jnp.asarray(experts.gate_up), jnp.asarray(experts.down)
    num_experts, k = len(gate_up), ids.shape[1]
    expert_of = jnp.where(live[:, None], ids, num_experts).reshape(-1)
    order = jnp.argsort(expert_of)  # pairs of a row and an expert, by expert; dead ones last
    expert, weight = expert_of[order], weights.reshape(-1)[order][:, None]
    sizes = jnp.sum(expert[:, None] == jnp.arange(num_experts), axis=0, dtype=jnp.int32)
    row = order // k
    inputs = jnp.where(live[row][:, None], x[row], 0)
    if form.scale_input:
        inputs = (weight * inputs.astype(jnp.float32)).astype(x.dtype)

    def product(inputs: Array, matrices: Array, bias: Array | None) -> Array:
        y = grouped_product(inputs, matrices, sizes).astype(jnp.float32)
        return y if bias is None else y + bias[expert].astype(jnp.float32)

    h = product(inputs, gate_up, experts.gate_up_bias)
    y = product(form.activate(*jnp.split(h, 2, axis=1)).astype(x.dtype), down, experts.down_bias)
    if not form.scale_input:
        y = weight * y
    y = jnp.where((expert < num_experts)[:, None], y, 0.0)
    return jnp.sum(y[jnp.argsort(order)].reshape(*ids.shape, -1), axis=1).astype(x.dtype)


def grouped_product(
    rows: Float[Array, "rows inputs"],
    matrices: Float[Array, "groups outputs inputs"],
    sizes: Int[Array, " groups"],
) -> Float[Array, "rows outputs"]:
    """Each row times its group's matrix, in the dtype of ``rows``, by the kernel that JAX ships.

    Args:
      rows: ordered by group; those after the last group are not computed.
      matrices: read where they lie, neither copied nor transposed.
      sizes: int32 rows of each group.
    """
    # On use: it imports what JAX tests itself with.
    from jax.experimental.pallas.ops.gpu.ragged_dot_mgpu import ragged_dot

    groups, outputs, _ = matrices.shape
    wide = groups <= _FEW_EXPERTS and outputs % _OUTPUTS_OF_FEW == 0
    y: Array = ragged_dot(
        jnp.pad(rows, ((0, -len(rows) % _ROWS), (0, 0))),
        matrices,
        group_sizes=sizes,
        block_m=_ROWS,
        block_n=_OUTPUTS_OF_FEW if wide else _OUTPUTS,
        block_k=_INPUTS,
        max_concurrent_steps=_PIPELINE_DEPTH,
        grid_block_n=1,
        transpose_rhs=True,
    )
    return y[: len(rows)]
