"""Routing and experts by Mosaic GPU kernels on Hopper GPUs: of decode, and of many rows."""

from dataclasses import dataclass

import jax
from jaxtyping import Array

from lynx_jax import kernel_routing
from lynx_jax.pallas_kernels.expert_form import ExpertForm, ExpertWeights
from lynx_jax.pallas_kernels.expert_kernels import expert_ffn
from lynx_jax.pallas_kernels.expert_limits import MAX_ROWS
from lynx_jax.pallas_kernels.expert_tiles import TileKey, expert_tiles
from lynx_jax.pallas_kernels.ragged import ragged_by_expert
from lynx_jax.routing import Phase, Routing

# As functions of their own, the kernels of all layers of a step are lowered once.
_route = jax.jit(
    kernel_routing.route, static_argnames=("k", "router", "policy", "phase", "interpret")
)
_expert_ffn = jax.jit(expert_ffn, static_argnames=("form", "slots", "tiles", "interpret"))
_ragged_by_expert = jax.jit(ragged_by_expert, static_argnames="form")


@dataclass(frozen=True)
class MosaicBackend:
    """The kernels of decode for batches of up to 64 rows; grouped products for more, and prefill.

    Attributes:
      device: family, by which tile sizes are looked up.
      split: whether it takes an array an expert; kernels take stacks.
    """

    device: str
    name: str = "mosaic"
    split: bool = False

    route = staticmethod(_route)

    def __call__(
        self,
        x: Array,
        routing: Routing,
        weights: ExpertWeights,
        *,
        form: ExpertForm,
        phase: Phase,
    ) -> Array:
        rows, (num_experts, width, hidden) = x.shape[0], weights.down.shape  # type: ignore[union-attr]
        if phase is Phase.PREFILL or rows > MAX_ROWS:
            many: Array = _ragged_by_expert(
                x, routing.ids, routing.weights, routing.live, weights, form
            )
            return many
        key = TileKey(self.device, str(x.dtype), num_experts, width, hidden, rows=-(-rows // 8) * 8)
        y: Array = _expert_ffn(
            x,
            routing.combine_matrix(),
            routing.active,
            routing.num_active,
            weights,
            form,
            slots=min(num_experts, routing.ids.size),
            tiles=expert_tiles(key),
        )
        return y
