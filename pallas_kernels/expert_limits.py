"""What the expert kernels can be used for: devices, dtypes and shapes.

Each function returns None, or one line that says what was expected and what came.
"""

import jax.numpy as jnp
from jax.typing import DTypeLike

from lynx_jax.pallas_kernels.expert_tiles import FEATURES

MAX_ROWS = 64


def device_refusal(platform: str, kind: str, capability: str) -> str | None:
    """Why the kernels do not run on a device; they multiply by ``wgmma``, which Hopper alone has.

    Args:
      platform: of the device, as JAX names it.
      kind: of the device.
      capability: for CUDA, such as ``"9.0"``; empty where there is none.
    """
    if platform == "gpu" and capability.startswith("9."):
        return None
    found = f"{kind} (capability {capability})" if capability else kind
    return f"expected a GPU of compute capability 9.x (H100, H200), got {found}"


def layer_refusal(width: int, hidden: int, dtype: DTypeLike) -> str | None:
    """Why the kernels do not compute a layer's experts.

    Args:
      width: D.
      hidden: F.
      dtype: of the experts' weights.
    """
    if jnp.dtype(dtype) != jnp.bfloat16:
        return f"expected experts in bfloat16, got {jnp.dtype(dtype).name}"
    if width % FEATURES or hidden % FEATURES:
        return f"expected experts whose D and F are multiples of {FEATURES}, got {width}, {hidden}"
    return None


def rows_refusal(rows: int, dtype: DTypeLike) -> str | None:
    """Why the kernels do not take a batch.

    Args:
      rows: how many.
      dtype: of the rows.
    """
    if jnp.dtype(dtype) != jnp.bfloat16:
        return f"expected rows in bfloat16, got {jnp.dtype(dtype).name}"
    if not 1 <= rows <= MAX_ROWS:
        return f"expected 1 to {MAX_ROWS} rows, got {rows}"
    return None
