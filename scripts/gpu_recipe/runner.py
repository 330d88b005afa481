"""Sections as processes of their own: one that hangs or breaks the device leaves the others."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpu_recipe.cases import Deadline, Row

# Seconds that a section may take, its start included; together under 8 minutes.
LIMITS = {"device": 45, "kernels": 115, "routing": 100, "experts": 75, "decode": 130}
_LAST = 12  # of these, for starting and ending


def section_rows(name: str, command: Sequence[str], limit: float) -> Iterator[Row]:
    """Runs a section's process and yields the rows that it wrote, however it ended.

    Args:
      name: of the section.
      command: the process; ``--rows FILE`` is added, where it writes a line for each row.
      limit: seconds after which it is killed.
    """
    with tempfile.TemporaryDirectory() as folder:
        rows, errors = Path(folder) / "rows", Path(folder) / "errors"
        began = time.monotonic()
        with errors.open("wb") as stderr:
            process = subprocess.Popen(
                [*command, "--rows", str(rows)], stderr=stderr, start_new_session=True
            )
            try:
                code: int | None = process.wait(timeout=limit)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        if rows.exists():
            yield from _complete_lines(rows)
        if code != 0:
            tail = errors.read_text(errors="replace").strip().splitlines()[-3:]
            yield {
                "case": name,
                "ok": False,
                "exit": code,
                "failed": f"killed after {limit:g} s" if code is None else " | ".join(tail),
            }
        yield {"case": f"section {name}", "section_s": round(time.monotonic() - began, 1)}


def _complete_lines(rows: Path) -> Iterator[Row]:
    for line in rows.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.endswith("\n"):  # else it was cut off
            yield json.loads(line)


def child_command(script: Path, section: str, seed: int) -> list[str]:
    """The command of a section's process."""
    return [sys.executable, str(script), "--child", section, "--seed", str(seed)]


def deadline_of(section: str) -> Deadline:
    """When a section's process has to be done by itself."""
    return Deadline(LIMITS[section] - _LAST)
