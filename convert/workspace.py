"""A folder that appears complete or not at all."""

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from lynx_jax.errors import InputError

SUFFIX = ".partial"
_PATIENCE = 5.0  # seconds


@contextlib.contextmanager
def appearing(destination: Path) -> Iterator[Path]:
    """A folder to fill, which becomes ``destination`` when the block ends without an exception.

    It stands beside the destination under the name with ``SUFFIX``, locked by this process. An
    exception removes it; what a killed process left there is removed by the next one.

    Raises:
      InputError: the destination exists, its parent does not, or another process is writing it.
    """
    _require_new(destination)
    if destination.name.endswith(SUFFIX):
        raise InputError(f"{destination}: names that end in {SUFFIX} mark unfinished conversions")
    if not destination.parent.is_dir():
        raise InputError(f"{destination.parent}: no such folder; create it first")
    folder = destination.with_name(destination.name + SUFFIX)
    with _locked(folder, destination):
        try:
            _require_new(destination)  # another process may have finished it meanwhile
            _empty(folder)
            yield folder
            folder.rename(destination)
        except BaseException:
            _remove(folder)
            raise


def _require_new(destination: Path) -> None:
    if os.path.lexists(destination):
        raise InputError(f"{destination} exists already; choose a new folder, or remove it first")


@contextlib.contextmanager
def _locked(folder: Path, destination: Path) -> Iterator[None]:
    """Create the folder if need be and hold its lock, which the system drops with the process."""
    try:
        folder.mkdir(exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as e:
        raise InputError(f"{folder}: cannot be created ({e.strerror})") from e
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            raise InputError(f"{destination} is being written by another process") from e
        yield
    finally:
        os.close(descriptor)


def _remove(folder: Path) -> None:
    """Remove a folder in which threads of a failed write may still be at work for a moment."""
    gone, deadline = 0, time.monotonic() + _PATIENCE
    while gone < 3 and time.monotonic() < deadline:
        shutil.rmtree(folder, ignore_errors=True)
        gone = 0 if os.path.lexists(folder) else gone + 1
        time.sleep(0.02)


def _empty(folder: Path) -> None:
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
