"""Check and time the kernels on this machine's GPU, in under 8 minutes; safe to run again.

    python scripts/gpu_check.py --out results.json

Sections: ``device`` (versions, bandwidth of a copy), ``kernels`` (against plain JAX on fresh random
inputs), ``routing`` (time of the routing kernel, and its share of an MoE layer's), ``experts``
(time against experts in use, beside XLA's loop and published times), ``decode`` (steps of
Qwen3-30B-A3B with random weights). Each is a process of its own with a limit; what fails is
recorded and the others run. Needs an H100 or H200 and jax 0.11.2 or newer.
"""

import argparse
import json
import os
import secrets
import sys
from importlib import import_module
from pathlib import Path

from gpu_recipe.cases import Row
from gpu_recipe.report import failures, table, with_shares
from gpu_recipe.runner import LIMITS, child_command, deadline_of, section_rows

from lynx_jax.arguments import Parser, new_file

_MODULES = {
    "device": "device",
    "kernels": "kernel_checks",
    "routing": "routing_times",
    "experts": "expert_times",
    "decode": "decode_times",
}
_NO_GPU = 2
_SEEDS = 2**30


def main() -> int:
    """Command line; 1 if anything failed, 2 without a GPU that the kernels run on."""
    parser = Parser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--out",
        type=new_file,
        default=f"{os.environ['OUT']}/gpu_check.json" if "OUT" in os.environ else None,
        help="JSON (default: $OUT/gpu_check.json if OUT is set)",
    )
    parser.add_argument("--sections", nargs="+", choices=LIMITS, default=list(LIMITS))
    parser.add_argument("--seed", type=int, help="of all random inputs (default: a fresh one)")
    parser.add_argument("--child", choices=LIMITS, help=argparse.SUPPRESS)
    parser.add_argument("--rows", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    seed = secrets.randbelow(_SEEDS) if options.seed is None else options.seed
    if not 0 <= seed < _SEEDS:
        parser.error(f"expected a --seed from 0 to {_SEEDS - 1}, got {seed}")
    out: Path | None = options.out
    if options.child is not None:
        return run_section(options.child, seed, options.rows)
    rows: list[Row] = []
    for section in ["device", *(s for s in LIMITS if s in options.sections and s != "device")]:
        command = child_command(Path(__file__), section, seed)
        for row in section_rows(section, command, LIMITS[section]):
            if row.get("exit") == _NO_GPU and section == "device":
                print(row["failed"].split(" | ")[-1], file=sys.stderr)
                return _NO_GPU
            rows = with_shares([*rows, {"section": section, **row}])
            print(table(rows[-1:]), flush=True)
        if out is not None:
            text = json.dumps({"seed": seed, "rows": rows}, indent=1) + "\n"
            out.write_text(text, encoding="utf-8")
    broken = failures(rows)
    print(f"{len(broken)} failed" if broken else "nothing failed", f"(seed {seed})")
    print(table(broken))
    return 1 if broken else 0


def run_section(section: str, seed: int, rows: Path) -> int:
    """The process of one section: writes a line of JSON for each row."""
    from gpu_recipe.device import require_gpu
    from gpu_recipe.settings import Settings

    from lynx_jax.errors import InputError

    try:
        require_gpu()
    except InputError as e:
        print(f"error: gpu_check: {e}", file=sys.stderr)
        return _NO_GPU
    module = import_module(f"gpu_recipe.{_MODULES[section]}")
    with rows.open("w", encoding="utf-8") as file:
        for row in module.run(Settings(), seed, deadline_of(section)):
            file.write(json.dumps(row) + "\n")
            file.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
