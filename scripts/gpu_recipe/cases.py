"""Cases of a section: each ends in a row of results, whatever happens to it."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

import jax

from gpu_recipe.settings import Settings

type Row = dict[str, Any]


class OutOfTimeError(Exception):
    """The section's time is over; the case was not run."""


class Deadline:
    """When a section has to end."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self._seconds = seconds

    def left(self, reserved: float = 0.0) -> float:
        """Seconds until only the share ``reserved`` of the section's time is left."""
        return max(0.0, self._end - reserved * self._seconds - time.monotonic())

    def check(self, reserved: float = 0.0) -> None:
        """Raise ``OutOfTimeError`` where ``left`` gives 0."""
        if not self.left(reserved):
            raise OutOfTimeError


def attempt(case: Row, work: Callable[[], Row]) -> Row:
    """The case's row: what ``work`` found, or why it found nothing."""
    try:
        return {**case, **work()}
    except OutOfTimeError:
        return {**case, "skipped": "out of time"}
    except Exception as e:  # one case's failure is a result; the others run
        lines = str(e).splitlines() or [""]
        return {**case, "ok": False, "failed": f"{type(e).__name__}: {lines[0][:300]}"}


class Programs:
    """Programs of a section, compiled side by side before any of them is timed.

    Compiling times candidates of XLA's own matrix products on the device and would disturb.
    """

    # Shares of a section's time that are left when no more is lowered, and no more compiled.
    _LOWERED, _COMPILED = 0.5, 0.3

    def __init__(self, settings: Settings, deadline: Deadline) -> None:
        self._settings, self._deadline = settings, deadline
        self._pool = ThreadPoolExecutor()
        self._found: dict[Any, Future[Any]] = {}

    def has(self, key: Any) -> bool:
        """Whether something was added under a key."""
        return key in self._found

    def add(
        self, key: Any, function: Callable[..., Any], *shapes: Any, donate: Sequence[int] = ()
    ) -> None:
        """Begins to compile; what fails, fails in ``get``.

        Args:
          key: by which ``get`` finds it.
          function: to compile.
          shapes: of its arguments.
          donate: which of them are donated.
        """
        future: Future[Any] = Future()
        try:
            self._deadline.check(self._LOWERED)
            with self._settings.kernels():
                lowered = jax.jit(function, donate_argnums=tuple(donate)).lower(*shapes)
            future = self._pool.submit(lowered.compile)
        except Exception as e:
            future.set_exception(e)
        self._found[key] = future

    def wait(self) -> None:
        """Until all are compiled, or the time for that is over."""
        for future in self._found.values():
            try:
                future.exception(timeout=self._deadline.left(self._COMPILED))
            except FutureTimeoutError:
                break
        self._pool.shutdown(wait=False, cancel_futures=True)

    def get(self, key: Any) -> Any:
        """The compiled program.

        Raises:
          OutOfTimeError: it was not compiled in time.
          Exception: what compiling it raised.
        """
        future = self._found[key]
        self._deadline.check()
        if future.cancelled() or not future.done():
            raise OutOfTimeError
        return future.result()
