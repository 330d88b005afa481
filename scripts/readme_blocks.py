"""Run the fenced examples of README.md, so that what it says keeps working.

    python3 scripts/readme_blocks.py setup      # the block that installs and runs the main job
    python3 scripts/readme_blocks.py tests      # the block that installs and runs the tests
    python3 scripts/readme_blocks.py examples   # every other bash and python block, in order

Blocks are named by an HTML comment on the line above the fence: ``<!-- block: setup -->``. Bash
blocks run from the repository's root with ``bash -euo pipefail``; python blocks with the ``python``
on the path. The first that fails ends the run with its exit code.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_FENCE = re.compile(
    r"(?:<!-- block: (?P<name>\w+) -->\n)?```(?P<kind>bash|python)\n(?P<code>.*?)```", re.DOTALL
)


def blocks() -> list[tuple[str, str, str]]:
    """(name, kind, code) of every bash and python block; unnamed ones are ``examples``."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return [(m["name"] or "examples", m["kind"], m["code"]) for m in _FENCE.finditer(text)]


def run(kind: str, code: str) -> int:
    """Run one block and give its exit code."""
    print(f"--- README.md, {kind}:\n{code}", flush=True)
    command = ["bash", "-euo", "pipefail", "-c", code] if kind == "bash" else ["python", "-c", code]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def main(name: str) -> int:
    chosen = [(kind, code) for block, kind, code in blocks() if block == name]
    if not chosen:
        sys.exit(f"README.md has no block named {name!r}")
    for kind, code in chosen:
        if status := run(kind, code):
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]) if len(sys.argv) == 2 else __doc__)
