"""Mixture-of-Experts inference in JAX with batch-aware expert selection (Lynx).

The names below load on first use, so that importing a part does not import the rest.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lynx_jax.comparison import Comparison as Comparison
    from lynx_jax.comparison import compare as compare
    from lynx_jax.errors import InputError as InputError
    from lynx_jax.generation import GenerationBatch as GenerationBatch
    from lynx_jax.generation import GenerationResult as GenerationResult
    from lynx_jax.generation import Generator as Generator
    from lynx_jax.generation import generate as generate
    from lynx_jax.loading import LoadedModel as LoadedModel
    from lynx_jax.loading import load as load
    from lynx_jax.policies import OEA as OEA
    from lynx_jax.policies import Demand as Demand
    from lynx_jax.policies import Lynx as Lynx
    from lynx_jax.policies import TopK as TopK
    from lynx_jax.policies import XShare as XShare
    from lynx_jax.policy_spec import parse_policy as parse_policy
    from lynx_jax.requests import SamplingParams as SamplingParams
    from lynx_jax.stats import Stats as Stats

_HOMES = {
    "Comparison": "lynx_jax.comparison",
    "Demand": "lynx_jax.policies",
    "GenerationBatch": "lynx_jax.generation",
    "GenerationResult": "lynx_jax.generation",
    "Generator": "lynx_jax.generation",
    "InputError": "lynx_jax.errors",
    "LoadedModel": "lynx_jax.loading",
    "Lynx": "lynx_jax.policies",
    "OEA": "lynx_jax.policies",
    "SamplingParams": "lynx_jax.requests",
    "Stats": "lynx_jax.stats",
    "TopK": "lynx_jax.policies",
    "XShare": "lynx_jax.policies",
    "compare": "lynx_jax.comparison",
    "generate": "lynx_jax.generation",
    "load": "lynx_jax.loading",
    "parse_policy": "lynx_jax.policy_spec",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
