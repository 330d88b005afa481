"""Reading small text files of a checkpoint, with errors that name the file."""

import json
from pathlib import Path
from typing import Any

from lynx_jax.errors import InputError


def read_text(path: Path) -> str:
    """The UTF-8 text of a file.

    Raises:
      InputError: it cannot be read, or is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except OSError as e:
        raise InputError(f"{path}: cannot be read ({e.strerror}); check the path") from e
    except UnicodeDecodeError as e:
        raise InputError(f"{path}: expected UTF-8 text, got byte {e.start} that is not") from e


def read_json(path: Path) -> dict[str, Any]:
    """The object that a JSON file holds.

    Raises:
      InputError: it cannot be read, is not JSON, or holds something else than an object.
    """
    try:
        value = json.loads(read_text(path))
    except json.JSONDecodeError as e:
        raise InputError(
            f"{path}: expected JSON, but line {e.lineno} does not parse ({e.msg}); "
            "the file may be cut off"
        ) from e
    except (ValueError, RecursionError) as e:
        raise InputError(f"{path}: expected JSON, got too deep nesting or too long a number") from e
    if not isinstance(value, dict):
        raise InputError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value
