"""The routing kernel at the shapes of every supported family."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from compile_recipe.case import Case
from lynx_jax import kernel_routing
from lynx_jax.pallas_kernels.routing_tiling import MOST_ROWS, one_block, padded_experts
from lynx_jax.pallas_kernels.row_tiles import LANES
from lynx_jax.policies import OEA, Demand, Lynx, Policy, TopK, XShare
from lynx_jax.routers import Router
from lynx_jax.routing import Phase, Routing


class Layer(NamedTuple):
    """One family's router: N experts, k a row, its rule, and whether it has a selection bias."""

    experts: int
    k: int
    router: Router
    biased: bool = False


_DEEPSEEK_V3 = Router("sigmoid", "renormalize", 2.5, groups=8, kept_groups=4, group_score="top2")
LAYERS = {
    "Mixtral-8x7B": Layer(8, 2, Router("softmax", "renormalize")),
    "Qwen2-57B, OLMoE": Layer(64, 8, Router("softmax", "keep_sum")),
    "Qwen3-30B, 235B": Layer(128, 8, Router("softmax", "renormalize")),
    "DeepSeek-V2-Lite": Layer(64, 6, Router("softmax", "keep_sum")),
    "DeepSeek-V2": Layer(160, 6, Router("softmax", "keep_sum", 16.0, groups=8, kept_groups=3)),
    "DeepSeek-V3": Layer(256, 8, _DEEPSEEK_V3, biased=True),
    "Llama-4-Scout": Layer(16, 1, Router("sigmoid", "own")),
    "Llama-4-Maverick": Layer(128, 1, Router("sigmoid", "own")),
    "gpt-oss-20b": Layer(32, 4, Router("softmax", "renormalize")),
    "gpt-oss-120b": Layer(128, 4, Router("softmax", "renormalize")),
}


def policies(k: int, experts: int) -> dict[str, Policy]:
    """A policy of each mode that the kernel has."""
    return {
        "off": TopK(),
        "lynx": Lynx.for_model(k, experts),
        "damped": replace(Lynx.for_model(k, experts), damping=0.5),
        "oea": OEA(-(-k // 2)),
        "xshare": XShare(max(k, experts // 2)),
        "demand": Demand.for_model(k, experts),
    }


MODES = tuple(policies(2, 8))


def routing_cases(rows: list[int], modes: list[str]) -> Iterator[Case]:
    """Every family's routing for every batch size and mode."""
    for family, layer in LAYERS.items():
        for batch in rows:
            for mode in modes:
                policy = policies(layer.k, layer.experts)[mode]
                yield Case(
                    f"routing {family}, B={batch}, {mode}",
                    functools.partial(route, layer, policy),
                    _shapes(layer, batch),
                    activation_bytes=_activation_bytes(layer, batch),
                )


def _activation_bytes(layer: Layer, rows: int) -> int:
    """Logits in, weights and ids out, with the kernels' padding; 8 buffers of 256 bytes each are
    what small vectors are rounded up to. Where several launches share the work, they hand on two
    numbers more of every row and expert."""
    width = padded_experts(layer.experts)
    numbers = 2 if rows <= MOST_ROWS else 4
    return 4 * one_block(rows, width).rows * (numbers * width + LANES) + 8 * 256


def route(
    layer: Layer,
    policy: Policy,
    logits: Any,
    live: Any,
    bias: Any | None = None,
    *,
    by: Callable[..., Routing] = kernel_routing.route,
) -> Routing:
    """A decode batch of a layer, routed by the kernels or by a backend's ``route``."""
    return by(
        logits,
        live,
        k=layer.k,
        router=layer.router,
        bias=bias,
        policy=policy,
        phase=Phase.DECODE,
    )


def _shapes(layer: Layer, batch: int) -> tuple[Any, ...]:
    logits = jax.ShapeDtypeStruct((batch, layer.experts), jnp.float32)
    live = jax.ShapeDtypeStruct((batch,), jnp.bool_)
    if not layer.biased:
        return logits, live
    return logits, live, jax.ShapeDtypeStruct((layer.experts,), jnp.float32)
