"""Compiles functions to machine code for an H200 on a machine without a GPU.

Needs the wheels of the ``compile`` extra: XLA's CUDA plugin of jax's own version, and ptxas where
the machine has none. ``prepare`` has to run before jax is imported.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compile_recipe import kernel_reports
from compile_recipe.kernel_reports import Kernel

if TYPE_CHECKING:
    from jax.sharding import Mesh

# A stream_executor.GpuTargetConfigProto in text form.
TARGET = """
gpu_device_info {
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: 233472
  shared_memory_per_block_optin: 232448
  threads_per_core_limit: 2048
  core_count: 132
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024
  thread_dim_limit_z: 64
  memory_bandwidth: 4800000000000
  l2_cache_size: 52428800
  clock_rate_ghz: 1.98
  device_memory_size: 151397597184
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  cuda_compute_capability { major: 9 feature_extension: ACCELERATED_FEATURES }
  device_vendor: "NVIDIA Corporation"
  device_address_bits: 64
  name: "NVIDIA H200"
  driver_version: "13.0.0"
  runtime_version: "13.0.0"
  compile_time_toolkit_version: "13.0.0"
  dnn_version: "9.10.0"
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 }
device_description_str: "NVIDIA H200"
"""


@dataclass(frozen=True)
class Compiled:
    """A program for an H200.

    Attributes:
      kernels: its Mosaic GPU kernels; equal ones stand here once.
      temporary_bytes: device memory beside arguments and results.
      hlo: the optimised program.
    """

    kernels: tuple[Kernel, ...]
    temporary_bytes: int
    hlo: str


def prepare() -> None:
    """Sets the process up. Call it before jax is imported.

    Raises:
      SystemExit: the plugin or ptxas is missing.
    """
    if importlib.util.find_spec("jax_cuda13_plugin") is None:
        raise SystemExit("no CUDA plugin of XLA here: pip install 'lynx-jax[compile]'")
    os.environ["JAX_PLATFORMS"] = "cpu"
    # A program out of the cache tells nothing about its kernels.
    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
    os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"
    for stage in ("RESOURCES", "PTX", "PTXAS"):
        os.environ[f"MOSAIC_GPU_DUMP_{stage}"] = "1"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if shutil.which("ptxas") is None:
        os.environ["PATH"] += f"{os.pathsep}{_packaged_ptxas()}"


def _packaged_ptxas() -> Path:
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if (found := Path(folder) / "cu13" / "bin" / "ptxas").exists():
            return found.parent
    raise SystemExit("no ptxas here: pip install 'lynx-jax[compile]', or put it on PATH")


@functools.cache
def mesh() -> Mesh:
    """A mesh of one H200."""
    import numpy as np
    from jax.experimental import topologies

    described = topologies.get_topology_desc(
        "1x1x1", platform="cuda", topology="1x1x1", target_config=TARGET
    )
    from jax.sharding import Mesh

    return Mesh(np.asarray(described.devices), ("device",))


def compile_for_h200(
    function: Callable[..., Any], *arguments: Any, donate: tuple[int, ...] = ()
) -> Compiled:
    """Compiles ``function`` for arguments given as pytrees of arrays or ShapeDtypeStructs."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    everywhere = NamedSharding(mesh(), PartitionSpec())
    shapes = jax.tree.map(
        lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=everywhere), arguments
    )
    with (
        tempfile.TemporaryDirectory() as folder,
        _output_to(Path(folder) / "output"),
        jax.sharding.use_abstract_mesh(mesh().abstract_mesh),
    ):
        # Written to files while kernels are lowered, for their names; printed while they are
        # compiled, since a folder for it would get every pass over every kernel as well.
        os.environ["MOSAIC_GPU_DUMP_TO"] = folder
        lowered = jax.jit(function, donate_argnums=donate).trace(*shapes).lower()
        del os.environ["MOSAIC_GPU_DUMP_TO"]
        program = lowered.compile()
        ctypes.CDLL(None).fflush(None)
        shared = kernel_reports.shared_memory(Path(folder))
        printed = (Path(folder) / "output").read_text(errors="replace")
    hlo = program.as_text()
    memory = program.memory_analysis()
    return Compiled(kernel_reports.kernels(printed, shared, hlo), memory.temp_size_in_bytes, hlo)


@contextlib.contextmanager
def _output_to(path: Path) -> Iterator[None]:
    """Sends to a file what native code prints."""
    sys.stdout.flush()
    kept = os.dup(1), os.dup(2)
    with path.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        for descriptor, copy in zip((1, 2), kept, strict=True):
            os.dup2(copy, descriptor)
            os.close(copy)
