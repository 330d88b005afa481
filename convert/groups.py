"""Groups: small Orbax checkpoints, each with some tensors or a part of a large one.

Weights are left uncompressed: zstd would save a fifth of the space of bfloat16 weights and make
reading them two to three times slower.
"""

import contextlib
import importlib
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

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
            checkpointer.save(path, dict(tensors))
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


def stored_bytes(folder: Path, name: str) -> int:
    """Size of all files of a group; 0 if it is not there."""
    path = folder / GROUPS_FOLDER / name
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


@contextlib.contextmanager
def _checkpointer() -> Iterator[Any]:
    """Orbax without reports of its own; what matters in them is in the exceptions.

    Orbax takes a third of a second to import, and only converted folders need it.
    """
    with _quiet():
        ocp = importlib.import_module("orbax.checkpoint")
        handler = ocp.PyTreeCheckpointHandler(use_compression=False)
        with contextlib.closing(ocp.Checkpointer(handler)) as checkpointer:
            yield checkpointer


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep Orbax's log lines off, and keep it from setting up logging for the whole program.

    After a failure TensorStore's threads and asyncio still report on the other operations of the
    group, whenever those end, so what drops these reports stays then.
    """
    absl, hook = logging.getLogger("absl"), sys.unraisablehook
    level = absl.level
    absl.setLevel(logging.CRITICAL)
    any_handler = logging.NullHandler()  # finding none, absl would print every library's lines
    logging.root.addHandler(any_handler)
    sys.unraisablehook = partial(_except_late, hook)
    logging.getLogger("asyncio").addFilter(_is_not_late)
    try:
        yield
        sys.unraisablehook = hook
        logging.getLogger("asyncio").removeFilter(_is_not_late)
    finally:
        logging.root.removeHandler(any_handler)
        absl.setLevel(level)


def _except_late(
    hook: Callable[["sys.UnraisableHookArgs"], object], report: "sys.UnraisableHookArgs"
) -> None:
    if str(report.exc_value) != "Event loop is closed":
        hook(report)


def _is_not_late(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("Task exception was never retrieved")


def _reason(error: Exception) -> str:
    """One line; TensorStore's messages end in many positions in its own source."""
    text, _, _ = " ".join(str(error).split()).partition(" [source locations=")
    return f"{type(error).__name__}: {text}"
