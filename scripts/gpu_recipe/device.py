"""Section ``device``: what the numbers of a run were measured on."""

import platform
from collections.abc import Iterator
from importlib.metadata import version

import jax
import jax.numpy as jnp

from gpu_recipe.cases import Deadline, Row, attempt
from gpu_recipe.settings import Settings
from lynx_jax.errors import InputError
from lynx_jax.pallas_kernels.expert_limits import device_refusal
from lynx_jax.pallas_kernels.measure import microseconds_a_step


def run(settings: Settings, seed: int, deadline: Deadline) -> Iterator[Row]:
    """Device, versions, and the bandwidth of a copy: bytes read and written a second."""
    del seed, deadline
    device = jax.devices()[0]
    yield {
        "case": "device",
        "device": device.device_kind,
        "capability": str(getattr(device, "compute_capability", "")),
        "memory_bytes": (device.memory_stats() or {}).get("bytes_limit"),
        "python": platform.python_version(),
        **{name: version(name) for name in ("jax", "jaxlib", "flax")},
    }
    yield attempt({"case": "copy"}, lambda: {"copy_gb_s": copy_bandwidth(settings)})


def require_gpu() -> None:
    """Raise ``InputError`` where the kernels cannot run."""
    device = jax.devices()[0]
    capability = str(getattr(device, "compute_capability", ""))
    refusal = device_refusal(device.platform, device.device_kind, capability)
    if refusal is not None:
        raise InputError(refusal)


def copy_bandwidth(settings: Settings) -> float:
    """GB/s of a kernel that reads a large array and writes another."""
    x = jnp.zeros(settings.copied // 4, jnp.uint32)
    time = microseconds_a_step(
        jax.jit(lambda x: x + 1), x, steps=1, repeats=settings.repeats, seconds=settings.seconds
    )
    return 2 * x.nbytes / time / 1e3
