"""Which files of a folder are read."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from lynx_jax.convert.hugging_face import stored_tensors
from lynx_jax.errors import InputError

INDEX = "model.safetensors.index.json"


def save(folder: Path, file: str, *names: str) -> None:
    save_file({name: np.ones(2, np.float32) for name in names}, folder / file)


def write_index(folder: Path, weight_map: object) -> None:
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))


def test_single_file_goes_before_everything_else(tmp_path: Path) -> None:
    save(tmp_path, "model.safetensors", "a")
    save(tmp_path, "consolidated.safetensors", "b")
    write_index(tmp_path, {"c": "gone.safetensors"})
    assert stored_tensors(tmp_path).keys() == {"a"}


def test_only_files_of_the_index(tmp_path: Path) -> None:
    save(tmp_path, "x.safetensors", "a", "b")
    save(tmp_path, "y.safetensors", "c")
    save(tmp_path, "consolidated.safetensors", "a")
    write_index(tmp_path, {"a": "x.safetensors", "b": "x.safetensors", "c": "y.safetensors"})
    tensors = stored_tensors(tmp_path)
    assert {name: t.file.name for name, t in tensors.items()} == {
        "a": "x.safetensors",
        "b": "x.safetensors",
        "c": "y.safetensors",
    }


def test_all_files_without_an_index(tmp_path: Path) -> None:
    save(tmp_path, "x.safetensors", "a")
    save(tmp_path, "y.safetensors", "b")
    assert stored_tensors(tmp_path).keys() == {"a", "b"}


def test_name_in_two_files(tmp_path: Path) -> None:
    save(tmp_path, "x.safetensors", "a", "b")
    save(tmp_path, "y.safetensors", "b")
    with pytest.raises(InputError, match=r"tensor b is both in x\.safetensors and in y"):
        stored_tensors(tmp_path)


def test_index_names_a_missing_shard(tmp_path: Path) -> None:
    save(tmp_path, "x.safetensors", "a")
    write_index(tmp_path, {"a": "x.safetensors", "b": "y.safetensors", "c": "z.safetensors"})
    with pytest.raises(InputError, match=r"2 of 3 safetensors files are missing, first y\."):
        stored_tensors(tmp_path)


@pytest.mark.parametrize(
    "weight_map", [{"a": "y.safetensors"}, {"a": "x.safetensors", "c": "x.safetensors"}]
)
def test_index_says_what_is_not_so(tmp_path: Path, weight_map: dict[str, str]) -> None:
    save(tmp_path, "x.safetensors", "a")
    save(tmp_path, "y.safetensors", "b")
    write_index(tmp_path, weight_map)
    with pytest.raises(InputError, match=r"index\.json says that . is in .*, but it is not"):
        stored_tensors(tmp_path)


@pytest.mark.parametrize("weight_map", [None, {}, [], {"a": 3}, {"a": "../x.safetensors"}])
def test_damaged_index(tmp_path: Path, weight_map: object) -> None:
    save(tmp_path, "x.safetensors", "a")
    write_index(tmp_path, weight_map)
    with pytest.raises(InputError, match=r"index\.json: expected"):
        stored_tensors(tmp_path)


def test_index_that_is_not_json(tmp_path: Path) -> None:
    save(tmp_path, "x.safetensors", "a")
    (tmp_path / INDEX).write_text("{")
    with pytest.raises(InputError, match=r"index\.json: expected JSON"):
        stored_tensors(tmp_path)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("pytorch_model.bin", r"only as \.bin files, expected safetensors"),
        ("consolidated.00.pth", r"only as \.pth files"),
        (None, "expected safetensors files, found none"),
    ],
)
def test_no_safetensors(tmp_path: Path, file: str | None, message: str) -> None:
    if file:
        (tmp_path / file).write_bytes(b"")
    with pytest.raises(InputError, match=message):
        stored_tensors(tmp_path)


def test_link_to_a_removed_file(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    save(tmp_path / "blobs", "1", "a")
    (tmp_path / "x.safetensors").symlink_to(tmp_path / "blobs" / "1")
    assert stored_tensors(tmp_path).keys() == {"a"}
    shutil.rmtree(tmp_path / "blobs")
    with pytest.raises(InputError, match=r"x\.safetensors: cannot be read"):
        stored_tensors(tmp_path)
