"""Groups: small Orbax checkpoints, each with some tensors or a part of a large one.

Weights are left uncompressed: zstd would save a fifth of the space of bfloat16 weights and make
reading them two to three times slower.
"""

import contextlib
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import orbax.checkpoint as ocp

from lynx_jax.errors import InputError

GROUPS_FOLDER = "weights"


def save_group(folder: Path, name: str, tensors: Mapping[str, np.ndarray]) -> None:
    """Write one group of a converted folder.

    Raises:
      InputError: it cannot be written, such as on a full disk.
    """
    path = folder.absolute() / GROUPS_FOLDER / name
    try:
        with _checkpointer() as checkpointer:
            checkpointer.save(path, args=ocp.args.PyTreeSave(dict(tensors)))
    except Exception as e:  # Orbax and TensorStore raise many kinds
        raise InputError(f"{path}: cannot be written ({_reason(e)})") from e


def restore_group(folder: Path, name: str) -> dict[str, np.ndarray]:
    """Read one group of a converted folder.

    Raises:
      InputError: it is missing or damaged.
    """
    path = folder.absolute() / GROUPS_FOLDER / name
    try:
        with _checkpointer() as checkpointer:
            return dict(checkpointer.restore(path))
    except Exception as e:  # Orbax and TensorStore raise many kinds
        raise InputError(
            f"{path}: cannot be read as an Orbax checkpoint ({_reason(e)}); convert again"
        ) from e


@contextlib.contextmanager
def _checkpointer() -> Iterator[ocp.Checkpointer]:
    """Orbax without its own log lines, which speak of its insides."""
    log = logging.getLogger("absl")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        handler = ocp.PyTreeCheckpointHandler(use_compression=False)
        with contextlib.closing(ocp.Checkpointer(handler)) as checkpointer:
            yield checkpointer
    finally:
        log.setLevel(level)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
