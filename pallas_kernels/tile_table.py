"""Reading and writing tables of tuned tile sizes; ``expert_tiles.json`` is one."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lynx_jax.errors import InputError

PACKAGED = Path(__file__).with_name("expert_tiles.json")


def read_table(path: Path) -> dict[str, Any]:
    """The table of a file.

    Raises:
      InputError: it cannot be read or holds no table.
    """
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise InputError(f"{path}: expected a table of tile sizes: {e}") from e
    if not isinstance(table, dict) or not {"note", "tuned", "untuned"} <= table.keys():
        raise InputError(f"{path}: expected a table with note, tuned and untuned; start a new file")
    return table


def with_row(table: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """The table with a row of ``expert_tiles.entry`` instead of the one of the same key, if any."""
    others = [other for other in table["tuned"] if other["key"] != row["key"]]
    tuned = sorted([*others, row], key=lambda r: [str(v).zfill(9) for v in r["key"].values()])
    return {**table, "tuned": tuned}


def table_text(table: Mapping[str, Any]) -> str:
    """JSON with a line for each row."""

    def rows(name: str) -> str:
        lines = ",\n".join(f"    {json.dumps(row)}" for row in table[name])
        return f"  {json.dumps(name)}: [\n{lines}\n  ]" if lines else f"  {json.dumps(name)}: []"

    note = f'  "note": {json.dumps(table["note"])}'
    return "{\n" + ",\n".join((note, rows("tuned"), rows("untuned"))) + "\n}\n"


def write_table(path: Path, table: Mapping[str, Any]) -> None:
    """Replaces the file as a whole.

    Raises:
      InputError: it cannot be written.
    """
    beside = path.with_name(f"{path.name}.new")
    try:
        beside.write_text(table_text(table), encoding="utf-8")
        beside.replace(path)
    except OSError as e:
        raise InputError(f"{path}: cannot be written ({e.strerror}); choose another --out") from e
