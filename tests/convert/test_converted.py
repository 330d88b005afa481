"""Reading converted folders that are damaged or do not fit."""

import json
import logging
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lynx_jax.convert.conversion import convert
from lynx_jax.convert.folder import open_checkpoint
from lynx_jax.convert.groups import restore_group, save_group, stored_bytes
from lynx_jax.errors import InputError
from tests.convert.checkpoints import fused_tensors, mixtral_config, write_checkpoint

NORM = "norm.scale"


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pristine")
    config = mixtral_config()
    write_checkpoint(folder / "src", config, fused_tensors(config))
    convert(folder / "src", folder / "dst")
    return folder / "dst"


@pytest.fixture
def folder(pristine: Path, tmp_path: Path) -> Path:
    """A converted folder to be damaged."""
    return Path(shutil.copytree(pristine, tmp_path / "dst"))


def read_all(folder: Path) -> list[np.ndarray]:
    reader = open_checkpoint(folder).reader
    return [reader.read(info, 0, info.num_rows) for info in reader.tensors]


def assert_fails(folder: Path, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read_all(folder)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value) or "tensor" in str(caught.value)


def test_pristine(folder: Path) -> None:
    tensors = read_all(folder)
    assert len(tensors) == len(open_checkpoint(folder).reader.tensors)
    assert all(np.isfinite(tensor.astype(np.float32)).all() for tensor in tensors)


def test_a_group_with_a_file_too_many_is_damaged(folder: Path) -> None:
    (folder / "weights" / "00000" / "stray").write_bytes(b"stray")
    assert_fails(folder, "is damaged: expected")


def test_reading_sets_up_no_logging_and_leaves_the_hooks(folder: Path) -> None:
    before = (list(logging.root.handlers), logging.getLogger("absl").level, sys.unraisablehook)
    read_all(folder)
    after = (list(logging.root.handlers), logging.getLogger("absl").level, sys.unraisablehook)
    assert after == before


def test_without_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()
    assert_fails(folder, r"has converted weights but no manifest\.json; convert again")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": "lynx_jax"}'])
def test_manifest_that_is_none(folder: Path, text: str) -> None:
    (folder / "manifest.json").write_text(text)
    assert_fails(folder, "manifest.json")


def test_truncated_manifest(folder: Path) -> None:
    path = folder / "manifest.json"
    path.write_text(path.read_text()[:-40])
    assert_fails(folder, "may be cut off")


def pop(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda manifest: manifest.pop(name)


def put(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda manifest: manifest.update({name: value})


def in_tensor(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda manifest: manifest["tensors"][NORM].update({name: value})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("format_version", 2), "format version 2 is newer than this program's 1; upgrade"),
        (put("format", "other"), "expected format 'lynx_jax', got 'other'"),
        (pop("tensors"), "is damaged"),
        (put("tensors", 3), "is damaged"),
        (put("tensors", {NORM: {"shape": [24]}}), "is damaged"),
        (in_tensor("parts", []), "parts end at row 0 of 1"),
        (in_tensor("parts", [{"group": "00000", "start": 1, "stop": 2}]), "is damaged"),
        (in_tensor("shape", [25]), r"1 wrong shape \(norm\.scale is \[25\]"),
        (in_tensor("dtype", "int4"), r"1 wrong dtype \(norm\.scale is int4"),
        (in_tensor("dtype", ["float32"]), "is damaged"),
        (in_tensor("parts", [{"group": 0, "start": 0, "stop": 1}]), "is damaged"),
        (in_tensor("dtype", "bfloat16"), "does not hold norm.scale as bfloat16"),
        (in_tensor("parts", [{"group": "00009", "start": 0, "stop": 1}]), "cannot be read"),
        (lambda m: m["tensors"].pop(NORM), r"1 missing \(norm\.scale\)"),
        (lambda m: m["tensors"].update(extra=m["tensors"][NORM]), r"1 unexpected \(extra\)"),
    ],
)
def test_manifest_that_does_not_fit(
    folder: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))
    assert_fails(folder, message)


def test_group_that_is_gone(folder: Path) -> None:
    shutil.rmtree(folder / "weights" / "00000")
    assert_fails(
        folder, "weights/00000 is damaged: expected .* bytes in its files, they have 0; copy"
    )


def test_group_that_was_cut_off(folder: Path) -> None:
    largest = max((folder / "weights").rglob("*"), key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-1])
    assert_fails(folder, "weights/00000 is damaged")


def test_group_that_orbax_cannot_read(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for path in (folder / "weights").rglob("d/*"):
        path.write_bytes(bytes(path.stat().st_size))
    assert_fails(folder, "weights/00000: cannot be read as an Orbax checkpoint .*; convert again")
    assert capfd.readouterr().err == ""


def replace_group(folder: Path, change: Callable[[dict[str, np.ndarray]], object]) -> None:
    """Save the only group again, changed, with a manifest that knows its size."""
    tensors = restore_group(folder, "00000")
    change(tensors)
    shutil.rmtree(folder / "weights" / "00000")
    save_group(folder, "00000", tensors)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["groups"] = {"00000": stored_bytes(folder, "00000")}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_group_that_lacks_a_tensor(folder: Path) -> None:
    replace_group(folder, lambda tensors: tensors.pop(NORM))
    assert_fails(folder, f"group 00000 does not hold {NORM} as float32")


def test_group_with_nan(folder: Path) -> None:
    replace_group(folder, lambda tensors: tensors["lm_head.weight"].fill(np.nan))
    assert_fails(folder, r"tensor lm_head\.weight holds nan")


def test_folder_of_an_unfinished_conversion(folder: Path) -> None:
    renamed = folder.rename(folder.with_name("dst.partial"))
    assert_fails(renamed, "is an unfinished conversion; convert again")
