"""How a layer's rows are routed and its experts computed; chosen once, when a model is loaded."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import jax
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from lynx_jax.errors import InputError
from lynx_jax.kernel_routing import router_refusal
from lynx_jax.mosaic_backend import MosaicBackend
from lynx_jax.pallas_kernels.expert_ffn import (
    dense_over_active,
    expert_ffn_reference,
    grouped_by_expert,
)
from lynx_jax.pallas_kernels.expert_form import ExpertForm, ExpertWeights
from lynx_jax.pallas_kernels.expert_limits import device_refusal, layer_refusal
from lynx_jax.pallas_kernels.expert_tiles import device_family
from lynx_jax.policies import Policy
from lynx_jax.routers import Router
from lynx_jax.routing import Phase, Routing, route

BACKENDS = ("auto", "loop", "mosaic", "reference")

_log = logging.getLogger(__name__)


class ExpertBackend(Protocol):
    """Routes a layer's rows, and computes the weighted sum of each row's experts.

    Backends are hashable: a compiled program belongs to one.
    """

    @property
    def name(self) -> str:
        """What ``get_backend`` knows it by."""

    @property
    def split(self) -> bool:
        """Whether it takes the weights as a tuple of an array an expert, not as one stack."""

    def route(
        self,
        logits: Float[Array, "rows experts"],
        live: Bool[Array, " rows"],
        *,
        k: int,
        router: Router,
        bias: Float[Array, " experts"] | None = None,
        policy: Policy,
        phase: Phase,
    ) -> Routing:
        """Routes a layer's rows; arguments and result are those of ``lynx_jax.routing.route``."""

    def __call__(
        self,
        x: Float[Array, "rows width"],
        routing: Routing,
        weights: ExpertWeights,
        *,
        form: ExpertForm,
        phase: Phase,
    ) -> Float[Array, "rows width"]:
        """The experts' output, summed in float32 and given in x's dtype; 0 in rows not live.

        Args:
          x: rows; those that are not live may hold anything.
          routing: each row's experts and weights.
          weights: the layer's experts, matrices as ``split`` says.
          form: static; what one expert computes.
          phase: static; which program this is part of.
        """


@dataclass(frozen=True)
class ReferenceBackend:
    """All experts for all rows, whatever is chosen: the oracle, as slow as it is simple."""

    name: str = "reference"
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
        del phase
        return expert_ffn_reference(x, routing.combine_matrix(), weights, form)


@dataclass(frozen=True)
class LoopBackend:
    """A loop over the experts in use, on any device.

    For few rows each of these experts is computed for all rows, which needs no sorting; for more,
    and in prefill, for blocks of the rows that chose it. The number of rows is static, and so is
    the choice.

    Attributes:
      split: on CPU an array an expert is read where it lies; out of a stack it would be copied.
      dense_rows: up to this many rows, all rows.
    """

    name: str = "loop"
    split: bool = True
    dense_rows: int = 16

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
        del phase  # what counts is how many rows there are
        num_experts = len(weights.gate_up)
        if x.shape[0] <= self.dense_rows:
            combine = routing.combine_matrix()
            return dense_over_active(x, combine, routing.active, routing.num_active, weights, form)
        return grouped_by_expert(
            x,
            routing.ids,
            routing.weights,
            routing.live,
            weights,
            form,
            block=_block(routing.ids.size, num_experts),
        )


def _block(pairs: int, num_experts: int) -> int:
    """Rows of a block where rows choose experts ``pairs`` times in all.

    Measured on 2 cores (BENCHMARKS.md): blocks of 8 are fastest while an expert has up to 8
    rows on average, and blocks of 32 beyond that.
    """
    return 8 if pairs <= 8 * num_experts else 32


class ExpertSizes(NamedTuple):
    """The experts of a layer, as far as the choice of a backend depends on them.

    Attributes:
      width: D.
      hidden: F.
      dtype: of their weights.
    """

    width: int
    hidden: int
    dtype: DTypeLike


class LayerRouter(NamedTuple):
    """The router of a layer, as far as the choice of a backend depends on it.

    Attributes:
      rule: how it scores and weighs.
      k: experts a row.
      num_experts: N.
    """

    rule: Router
    k: int
    num_experts: int


def get_backend(
    name: str, experts: Iterable[ExpertSizes] = (), routers: Iterable[LayerRouter] = ()
) -> ExpertBackend:
    """The backend of a name; which one and why is logged.

    Args:
      name: ``"auto"``, ``"loop"``, ``"mosaic"`` or ``"reference"``. ``"auto"`` is ``"mosaic"``
        where the device and all of ``experts`` are such that its kernels take them, else
        ``"loop"``; layers whose router its kernels do not take are then routed in plain JAX.
      experts: those of the model's layers.
      routers: those of the model's layers, looked at for ``"mosaic"`` alone.

    Raises:
      InputError: there is no backend of this name, or ``"mosaic"`` does not take the device, the
        experts or the routers; one line that says what, and what works instead.
    """
    device = jax.devices()[0]
    match name:
        case "reference":
            backend: ExpertBackend = ReferenceBackend()
            reason = "asked for"
        case "loop":
            backend, reason = _loop(device), "asked for"
        case "mosaic":
            refusal = _mosaic_refusal(device, experts)
            if refusal is not None:
                raise InputError(
                    f"expert backend mosaic: {refusal}; --backend loop takes any device, dtype and "
                    "shape"
                )
            refusal = _first(router_refusal(*router) for router in routers)
            if refusal is not None:
                raise InputError(
                    f"expert backend mosaic: {refusal}; --backend auto routes in plain JAX and "
                    "takes mosaic's experts"
                )
            backend, reason = _mosaic(device), "asked for"
        case "auto":
            refusal = _mosaic_refusal(device, experts)
            if refusal is None:
                backend, reason = _mosaic(device), "its kernels take this device and these experts"
            else:
                backend, reason = _loop(device), f"not mosaic: {refusal}"
        case _:
            known = ", ".join(BACKENDS)
            raise InputError(f"unknown expert backend {name!r}: expected one of {known}")
    _log.info("expert backend: %s (%s)", backend.name, reason)
    return backend


def _mosaic_refusal(device: jax.Device, experts: Iterable[ExpertSizes]) -> str | None:
    capability = str(getattr(device, "compute_capability", ""))
    refusals = [device_refusal(device.platform, device.device_kind, capability)]
    refusals += [layer_refusal(*sizes) for sizes in experts]
    return _first(refusals)


def _first(refusals: Iterable[str | None]) -> str | None:
    return next((refusal for refusal in refusals if refusal is not None), None)


def _loop(device: jax.Device) -> LoopBackend:
    return LoopBackend(split=device.platform == "cpu")


def _mosaic(device: jax.Device) -> MosaicBackend:
    return MosaicBackend(device_family(device.device_kind))
