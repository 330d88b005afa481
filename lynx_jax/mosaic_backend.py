"""Routing and experts by Mosaic GPU kernels in decode; grouped matrix products for many rows."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
from jaxtyping import Array

from lynx_jax import kernel_routing
from lynx_jax.pallas_kernels.expert_form import ExpertForm, ExpertWeights
from lynx_jax.pallas_kernels.expert_kernels import expert_ffn
from lynx_jax.pallas_kernels.expert_limits import MAX_ROWS
from lynx_jax.pallas_kernels.expert_tiles import TileKey, expert_tiles
from lynx_jax.pallas_kernels.ragged import MAX_EXPERTS, ragged_by_expert
from lynx_jax.routing import Phase, Routing, route

# As functions of their own, the kernels of all layers of a step are lowered once.
_route = jax.jit(
    kernel_routing.route, static_argnames=("k", "router", "policy", "phase", "interpret")
)
_expert_ffn = jax.jit(expert_ffn, static_argnames=("form", "slots", "tiles", "interpret"))
_ragged_by_expert = jax.jit(ragged_by_expert, static_argnames="form")


@dataclass(frozen=True)
class MosaicBackend:
    """The expert kernels for decode batches of up to 64 rows, on Hopper GPUs.

    Attributes:
      device: family, by which tile sizes are looked up.
      many: the backend of prefill and of larger batches.
      split: whether it takes an array an expert; kernels take stacks.
    """

    device: str
    many: Callable[..., Array]
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
            return self.many(x, routing, weights, form=form, phase=phase)
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


@dataclass(frozen=True)
class RaggedBackend:
    """Rows grouped by expert for grouped matrix products, on Hopper GPUs.

    Attributes:
      loop: the backend of layers with more experts than these products take.
    """

    loop: Callable[..., Array]
    name: str = "ragged"
    split: bool = False

    route = staticmethod(route)

    def __call__(
        self,
        x: Array,
        routing: Routing,
        weights: ExpertWeights,
        *,
        form: ExpertForm,
        phase: Phase,
    ) -> Array:
        if len(weights.gate_up) > MAX_EXPERTS:
            return self.loop(x, routing, weights, form=form, phase=phase)
        y: Array = _ragged_by_expert(x, routing.ids, routing.weights, routing.live, weights, form)
        return y
