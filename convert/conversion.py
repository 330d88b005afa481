"""Converting a checkpoint into a folder of Orbax groups and a manifest, in bounded memory."""

import json
import math
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from lynx_jax.convert.converted import GROUP_BYTES, ConvertedReader, GroupWriter
from lynx_jax.convert.folder import Checkpoint, open_checkpoint
from lynx_jax.convert.manifest import Manifest
from lynx_jax.convert.numerics import bits, cast, parse_dtype
from lynx_jax.convert.packing import BFLOAT16
from lynx_jax.convert.quantization import without_packing
from lynx_jax.convert.reader import TensorInfo, parts
from lynx_jax.convert.workspace import appearing
from lynx_jax.errors import InputError
from lynx_jax.files import read_json

# Files that travel with the weights; a chat template may stand in any of several places.
_COMPANIONS = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates",
)
_SPARE_BYTES = 64 * 2**20  # for metadata and companions


class Progress(Protocol):
    """Hears how far a conversion is; an exception that it raises ends the conversion.

    Called at the start of each stage (``"convert"``, then ``"verify"`` if asked for) and after
    every part, with bytes of the source.
    """

    def __call__(self, stage: str, done: int, total: int) -> None: ...


@dataclass(frozen=True)
class ConversionResult:
    """What was written.

    Attributes:
      destination: the new folder.
      num_tensors: parameters of the model.
      num_bytes: size of the weights.
      dtype: name of their dtype, of the most bytes where they differ.
      has_tokenizer: whether the source had a tokenizer.json.
      source_bytes: size of the weights in the source.
      source_packing: the method by which the source is quantised, such as ``"fp8"``, or None.
    """

    destination: Path
    num_tensors: int
    num_bytes: int
    dtype: str
    has_tokenizer: bool
    source_bytes: int
    source_packing: str | None


def convert(
    source: str | Path,
    destination: str | Path,
    *,
    dtype: str | None = None,
    verify: bool = False,
    progress: Progress | None = None,
) -> ConversionResult:
    """Convert a checkpoint; the destination appears complete or not at all.

    Tensors are streamed in parts, so memory is bounded by a few of these, not by the model.
    Quantised ones are dequantised to bfloat16 on the way.

    Args:
      source: a Hugging Face folder of safetensors, or a converted folder.
      destination: a folder that does not exist yet, in one that does.
      dtype: ``"float32"``, ``"bfloat16"`` or ``"float16"`` for all tensors; None keeps each one's.
        Either way a router is in float32 where its family keeps it so.
      verify: read everything back and compare it bit for bit with the source.
      progress: told how far it is.

    Raises:
      InputError: the source is damaged or not supported, the destination exists, there is too
        little room for it, or verification failed. Nothing is left behind.
    """
    source, destination = Path(source), Path(destination)
    target_dtype = None if dtype is None else parse_dtype(dtype)
    job = _Job(open_checkpoint(source), target_dtype, progress or _silent)
    _require_readable_companions(source)
    with appearing(destination) as folder:
        _require_room(folder, job.num_bytes)
        manifest = job.write(folder)
        if verify:
            job.verify(folder)
    return ConversionResult(
        destination,
        len(manifest.tensors),
        manifest.num_bytes,
        manifest.dtype,
        (destination / "tokenizer.json").exists(),
        job.checkpoint.reader.stored_bytes,
        job.checkpoint.reader.packing,
    )


@dataclass(frozen=True)
class _Job:
    checkpoint: Checkpoint
    dtype: np.dtype | None
    progress: Progress

    @property
    def num_bytes(self) -> int:
        """Size of the weights that will be written."""
        return sum(self._bytes_by_dtype().values())

    def write(self, folder: Path) -> Manifest:
        """Fill the folder; the manifest, without which it does not load, comes last."""
        writer = GroupWriter(folder)
        for info, start, stop, part in self._parts("convert"):
            writer.add(info, start, stop, part)
        writer.flush()
        self._copy_companions(folder)
        by_dtype = self._bytes_by_dtype()
        manifest = Manifest(
            model_type=self.checkpoint.config.model_type,
            dtype=by_dtype.most_common(1)[0][0],
            num_bytes=by_dtype.total(),
            transformers_version=self.checkpoint.raw_config.get("transformers_version"),
            groups=writer.groups,
            tensors=writer.tensors,
        )
        manifest.write(folder)
        return manifest

    def verify(self, folder: Path) -> None:
        """Compare every tensor of a written folder with the source, bit for bit."""
        shapes = {info.path: info.shape for info in self.checkpoint.reader.tensors}
        written = ConvertedReader(folder, shapes)
        infos = {info.path: info for info in written.tensors}
        for info, start, stop, part in self._parts("verify"):
            again = written.read(infos[info.path], start, stop)
            if again.dtype != part.dtype or not np.array_equal(bits(again), bits(part)):
                raise InputError(
                    f"verification failed: {info.path} differs from the source; nothing was kept, "
                    "check the disk and convert again"
                )

    def _parts(self, stage: str) -> Iterator[tuple[TensorInfo, int, int, np.ndarray]]:
        """Every tensor of the source in parts and in the dtype asked for."""
        reader = self.checkpoint.reader
        total = sum(info.nbytes for info in reader.tensors)
        done = 0
        self.progress(stage, done, total)
        for info in reader.tensors:
            itemsize = max(info.dtype.itemsize, self._dtype_of(info).itemsize)
            for start, stop in parts(info, info.shape[-1] * itemsize, GROUP_BYTES):
                part = reader.read(info, start, stop)
                done += part.nbytes
                yield info, start, stop, cast(part, self._dtype_of(info), info.path)
                self.progress(stage, done, total)

    def _dtype_of(self, info: TensorInfo) -> np.dtype:
        return self.checkpoint.dtype_of(info, self.dtype)

    def _bytes_by_dtype(self) -> Counter[str]:
        sizes: Counter[str] = Counter()
        for info in self.checkpoint.reader.tensors:
            dtype = self._dtype_of(info)
            sizes[dtype.name] += math.prod(info.shape) * dtype.itemsize
        return sizes

    def _copy_companions(self, folder: Path) -> None:
        reader, config = self.checkpoint.reader, folder / "config.json"
        if self.dtype is None and reader.packing is None:
            shutil.copyfile(self.checkpoint.folder / "config.json", config)
        else:
            dtype = BFLOAT16 if self.dtype is None else self.dtype
            raw = without_packing(self.checkpoint.raw_config, dtype.name)
            text = json.dumps(raw, indent=2, ensure_ascii=False)
            config.write_text(text + "\n", encoding="utf-8")
        for path in _companions(self.checkpoint.folder):
            if path.is_dir():
                shutil.copytree(path, folder / path.name)
            else:
                shutil.copyfile(path, folder / path.name)


def _companions(folder: Path) -> list[Path]:
    """The files beside the weights that a folder has."""
    return [path for name in _COMPANIONS if (path := folder / name).exists()]


def _require_readable_companions(folder: Path) -> None:
    for path in _companions(folder):
        if path.suffix == ".json" and path.name != "vocab.json":
            read_json(path)


def _silent(stage: str, done: int, total: int) -> None:
    pass


def _require_room(folder: Path, num_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < num_bytes + _SPARE_BYTES:
        raise InputError(
            f"{folder.parent}: {free / 1e9:.1f} GB are free, the converted checkpoint needs "
            f"{num_bytes / 1e9:.1f} GB"
        )
