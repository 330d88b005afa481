"""Routing by GPU kernels, with the signature of ``lynx_jax.routing.route``."""

import functools
import logging
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from lynx_jax.pallas_kernels.fused_kernel import LARGEST_K, fused_routing
from lynx_jax.pallas_kernels.routing_tiling import (
    MOST_EXPERTS,
    MOST_ROWS,
    MOST_ROWS_OF_BLOCKS,
)
from lynx_jax.pallas_kernels.selection import (
    DemandSelection,
    LynxSelection,
    OEASelection,
    RoutedRows,
    Selection,
    TopKSelection,
    XShareSelection,
)
from lynx_jax.pallas_kernels.separate_kernels import separate_routing
from lynx_jax.policies import OEA, Demand, Lynx, Policy, TopK, XShare
from lynx_jax.routers import Router
from lynx_jax.routing import Phase, Routing
from lynx_jax.routing import route as route_in_jax

_log = logging.getLogger(__name__)


def router_refusal(router: Router, k: int, num_experts: int) -> str | None:
    """Why no kernel routes a layer, whatever the policy and the batch; None if one may."""
    if num_experts > MOST_EXPERTS:
        return f"the routing kernels take {MOST_EXPERTS} experts, the layer has {num_experts}"
    if k > LARGEST_K:
        return f"the routing kernels choose up to {LARGEST_K} experts a row, the layer uses {k}"
    if router.score == "sparsemixer":
        return "the routing kernels do not score by sparsemixer"
    return None


def why_not(policy: Policy, router: Router, k: int, num_experts: int, rows: int) -> str | None:
    """Why decode steps of such a layer are routed in plain JAX; None if kernels route them."""
    refusal = router_refusal(router, k, num_experts)
    if refusal is not None:
        return refusal
    if rows > MOST_ROWS_OF_BLOCKS:
        return f"the routing kernels take {MOST_ROWS_OF_BLOCKS} rows, the batch has {rows}"
    if _selection(policy, k) is None:
        return f"the routing kernels have no mode for {policy}"
    return None


@functools.cache
def _say_once(reason: str) -> None:
    _log.warning("decode steps are routed in plain JAX: %s", reason)


def route(
    logits: Float[Array, "rows experts"],
    live: Bool[Array, " rows"],
    *,
    k: int,
    router: Router,
    bias: Float[Array, " experts"] | None = None,
    policy: Policy,
    phase: Phase,
    interpret: Any = False,
) -> Routing:
    """Choose k experts a row and weigh them: in decode by kernels, in one launch up to 64 rows,
    where ``why_not`` has nothing against it; else, which a warning says, by
    ``lynx_jax.routing.route``.

    Args:
      interpret: ``plgpu.InterpretGPUParams`` to run the kernels on a CPU.
    """
    rows, num_experts = logits.shape
    reason = why_not(policy, router, k, num_experts, rows)
    if phase is Phase.DECODE and reason is not None:
        _say_once(reason)
    if phase is Phase.PREFILL or reason is not None:
        return route_in_jax(logits, live, k=k, router=router, bias=bias, policy=policy, phase=phase)
    if logits.dtype != jnp.bfloat16:
        logits = logits.astype(jnp.float32)
    selection = _selection(policy, k)
    assert selection is not None  # else there was a reason
    launch: Callable[..., RoutedRows] = fused_routing if rows <= MOST_ROWS else separate_routing
    routed = launch(
        logits,
        live,
        bias,
        k=k,
        router=router,
        selection=selection,
        min_rows=policy.min_rows,
        damping=policy.damping,
        interpret=interpret,
    )
    return Routing(
        ids=routed.ids,
        weights=jnp.take_along_axis(routed.combine, routed.ids, axis=-1),
        live=live,
        active=routed.active,
        num_active=routed.num_active,
        num_active_topk=routed.num_active_topk,
        combine=routed.combine,
    )


def _selection(policy: Policy, k: int) -> Selection | None:
    match policy:
        case TopK():
            return TopKSelection()
        case Lynx(alpha=alpha, beta=beta):
            return LynxSelection(alpha, beta, policy.floor_for(k))
        case OEA(k0=k0):
            return OEASelection(k0)
        case XShare(budget=budget, k0=k0):
            return XShareSelection(budget, k0)
        case Demand(threshold=threshold, power=power, row_power=row_power):
            return DemandSelection(threshold, power, row_power)
        case _:
            return None
