"""manifest.json of a converted folder: which tensors it holds, and in which Orbax checkpoint."""

import json
import math
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lynx_jax.errors import InputError
from lynx_jax.files import read_json

MANIFEST = "manifest.json"
FORMAT = "lynx_jax"
FORMAT_VERSION = 1


@dataclass(frozen=True)
class Part:
    """Rows of a tensor, stored in one group under the tensor's path as [stop - start, width].

    Attributes:
      group: name of the group.
      start: the first row; a row runs along the tensor's last axis.
      stop: the row after the last.
    """

    group: str
    start: int
    stop: int


@dataclass(frozen=True)
class ManifestTensor:
    """One parameter: shape, dtype name, and the parts that make it up, in order."""

    shape: tuple[int, ...]
    dtype: str
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Manifest:
    """What a converted folder holds.

    Attributes:
      model_type: the family.
      dtype: name of the weights' dtype; of the most bytes where tensors differ.
      num_bytes: size of all weights.
      transformers_version: of the library that saved the source, where its config.json tells.
      groups: size of each Orbax checkpoint's files by its name.
      tensors: every parameter by its path.
    """

    model_type: str
    dtype: str
    num_bytes: int
    transformers_version: str | None
    groups: dict[str, int]
    tensors: dict[str, ManifestTensor]

    def write(self, folder: Path) -> None:
        """Write manifest.json."""
        header = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "lynx_jax_version": version("lynx-jax"),
            "orbax_version": version("orbax-checkpoint"),
        }
        text = json.dumps(header | asdict(self), indent=1)
        (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """Read manifest.json.

        Raises:
          InputError: it is damaged, or of a newer format.
        """
        path = folder / MANIFEST
        raw = read_json(path)
        if raw.get("format") != FORMAT or not isinstance(raw.get("format_version"), int):
            raise InputError(f"{path}: expected format {FORMAT!r}, got {raw.get('format')!r}")
        if raw["format_version"] > FORMAT_VERSION:
            raise InputError(
                f"{path}: format version {raw['format_version']} is newer than this program's "
                f"{FORMAT_VERSION}; upgrade lynx-jax, or convert again"
            )
        try:
            return cls._from_json(raw)
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            raise InputError(f"{path} is damaged ({type(e).__name__}: {e}); convert again") from e

    @classmethod
    def _from_json(cls, raw: dict[str, Any]) -> "Manifest":
        return cls(
            model_type=raw["model_type"],
            dtype=raw["dtype"],
            num_bytes=raw["num_bytes"],
            transformers_version=raw["transformers_version"],
            groups=dict(raw["groups"]),
            tensors={path: _tensor(entry) for path, entry in raw["tensors"].items()},
        )


def _tensor(raw: dict[str, Any]) -> ManifestTensor:
    tensor = ManifestTensor(
        shape=tuple(raw["shape"]),
        dtype=raw["dtype"],
        parts=tuple(Part(p["group"], p["start"], p["stop"]) for p in raw["parts"]),
    )
    if not all(isinstance(name, str) for name in (tensor.dtype, *(p.group for p in tensor.parts))):
        raise TypeError("names of dtypes and groups that are no text")
    end = 0
    for part in tensor.parts:
        if part.start != end or part.stop <= part.start:
            raise ValueError(f"parts {part.start}:{part.stop} after {end}")
        end = part.stop
    num_rows = math.prod(tensor.shape[:-1])
    if end != num_rows:
        raise ValueError(f"parts end at row {end} of {num_rows}")
    return tensor
