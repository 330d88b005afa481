"""Converting: what the new folder holds, and that it appears complete or not at all."""

import fcntl
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp
import pytest

from lynx_jax.convert import conversion, converted
from lynx_jax.convert.conversion import convert
from lynx_jax.convert.folder import open_checkpoint
from lynx_jax.convert.hugging_face import stored_tensors
from lynx_jax.convert.manifest import FORMAT_VERSION
from lynx_jax.convert.numerics import bits
from lynx_jax.errors import InputError
from tests.convert.checkpoints import (
    BFLOAT16,
    fused_tensors,
    mixtral_config,
    per_expert,
    qwen3_moe_config,
    write_checkpoint,
)

CONFIGS = {"mixtral": mixtral_config, "qwen3_moe": qwen3_moe_config}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A bfloat16 Mixtral folder."""
    config = mixtral_config()
    return write_checkpoint(tmp_path / "src", config, fused_tensors(config, BFLOAT16), shards=2)


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups so small that large tensors are cut and small ones share them."""
    monkeypatch.setattr(converted, "GROUP_BYTES", 3000)
    monkeypatch.setattr(conversion, "GROUP_BYTES", 3000)


def parameters(folder: Path) -> dict[str, np.ndarray]:
    reader = open_checkpoint(folder).reader
    return {
        info.path: reader.read(info, 0, info.num_rows).reshape(info.shape)
        for info in reader.tensors
    }


def assert_same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> None:
    assert a.keys() == b.keys()
    for path, x in a.items():
        assert x.dtype == b[path].dtype
        assert x.shape == b[path].shape
        assert np.array_equal(bits(x), bits(b[path])), path


def siblings(source: Path) -> list[str]:
    """What stands beside a source."""
    return sorted(path.name for path in source.parent.iterdir() if path != source)


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("fused", [True, False])
def test_round_trip(tmp_path: Path, family: str, fused: bool, small_groups: None) -> None:
    config = CONFIGS[family]()
    tensors = fused_tensors(config, BFLOAT16)
    gate = next(name for name in tensors if name.endswith("mlp.gate.weight"))
    tensors[gate] = tensors[gate].astype(np.float32)
    stored = tensors if fused else per_expert(tensors, family)
    source = write_checkpoint(tmp_path / "src", config, stored)
    result = convert(source, tmp_path / "dst", verify=True)
    assert_same(parameters(tmp_path / "dst"), parameters(source))
    assert result.num_tensors == len(tensors)
    assert result.num_bytes == sum(x.nbytes for x in tensors.values())
    assert result.dtype == "bfloat16"
    assert len(list((tmp_path / "dst" / "weights").iterdir())) > 10


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_dtype(tmp_path: Path, dtype: str) -> None:
    config = qwen3_moe_config(torch_dtype="float32")
    tensors = fused_tensors(config)
    source = write_checkpoint(tmp_path / "src", config, tensors)
    convert(source, tmp_path / "dst", dtype=dtype, verify=True)
    expected = {path: x.astype(np.dtype(dtype)) for path, x in parameters(source).items()}
    assert_same(parameters(tmp_path / "dst"), expected)
    assert json.loads((tmp_path / "dst" / "config.json").read_text())["torch_dtype"] == dtype


def test_converted_folder_can_be_converted_again(
    source: Path, tmp_path: Path, small_groups: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert(source, tmp_path / "once")
    monkeypatch.setattr(conversion, "GROUP_BYTES", 1700)
    convert(tmp_path / "once", tmp_path / "twice", verify=True)
    assert_same(parameters(tmp_path / "twice"), parameters(source))


def test_companions_travel_unchanged(source: Path, tmp_path: Path) -> None:
    (source / "special_tokens_map.json").write_text("{}")
    (source / "additional_chat_templates").mkdir()
    (source / "additional_chat_templates" / "tools.jinja").write_text("tools")
    (source / "notes.txt").write_text("stays behind")
    convert(source, tmp_path / "dst")
    names = [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "chat_template.jinja",
        "additional_chat_templates/tools.jinja",
    ]
    for name in names:
        assert (tmp_path / "dst" / name).read_bytes() == (source / name).read_bytes(), name
    top = {name.partition("/")[0] for name in names}
    assert {path.name for path in (tmp_path / "dst").iterdir()} == top | {
        "manifest.json",
        "weights",
    }


@pytest.mark.parametrize("name", ["generation_config.json", "tokenizer_config.json"])
def test_companions_that_could_not_be_read_are_refused(
    source: Path, tmp_path: Path, name: str
) -> None:
    (source / name).write_text('{"eos_token_id": ')
    with pytest.raises(InputError, match=f"{name}: expected JSON"):
        convert(source, tmp_path / "dst")
    assert siblings(source) == []


def test_manifest_and_groups_speak_for_themselves(source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "dst")
    manifest = json.loads((tmp_path / "dst" / "manifest.json").read_text())
    assert manifest["format"] == "lynx_jax"
    assert manifest["format_version"] == FORMAT_VERSION
    assert manifest["model_type"] == "mixtral"
    assert manifest["dtype"] == "bfloat16"
    assert manifest["transformers_version"] == "5.24.0"
    path = "layers.0.mlp.experts.down_proj"
    entry = manifest["tensors"][path]
    group = tmp_path / "dst" / "weights" / entry["parts"][0]["group"]
    # Plain Orbax reads a group without this package.
    restored = ocp.PyTreeCheckpointer().restore(group)[path].reshape(entry["shape"])
    assert np.array_equal(restored, parameters(source)[path])


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_refuses_an_existing_destination(source: Path, tmp_path: Path, kind: str) -> None:
    destination = tmp_path / "dst"
    if kind == "folder":
        destination.mkdir()
    elif kind == "file":
        destination.write_text("mine")
    else:
        destination.symlink_to(tmp_path / "nowhere")
    with pytest.raises(InputError, match="dst exists already"):
        convert(source, destination)
    assert siblings(source) == ["dst"]
    assert kind != "folder" or not list(destination.iterdir())


def test_refuses_a_destination_without_a_parent(source: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder; create it first"):
        convert(source, tmp_path / "a" / "dst")


def test_refuses_a_destination_that_could_not_be_loaded(source: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unfinished conversions"):
        convert(source, tmp_path / "dst.partial")
    assert not (tmp_path / "dst.partial").exists()


def spoil(folder: Path, name: str, value: float) -> None:
    """Overwrite the last number of a bfloat16 tensor."""
    stored = stored_tensors(folder)[name]
    pattern = np.array([value], BFLOAT16).tobytes()
    end = stored.offset + int(np.prod(stored.shape)) * 2
    with open(stored.file, "r+b") as file:
        file.seek(end - 2)
        file.write(pattern)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_leave_nothing(
    source: Path, tmp_path: Path, value: float, small_groups: None
) -> None:
    spoil(source, "model.layers.1.mlp.experts.down_proj", value)
    name = r"model\.layers\.1\.mlp\.experts\.down_proj"
    with pytest.raises(InputError, match=f"tensor {name} holds {value}"):
        convert(source, tmp_path / "dst")
    assert siblings(source) == []


def test_too_little_room(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=10**6)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(InputError, match=r"0\.0 GB are free, the converted checkpoint needs"):
        convert(source, tmp_path / "dst")
    assert siblings(source) == []


def test_failing_writes_leave_nothing(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("RESOURCE_EXHAUSTED: No space left\non device")

    monkeypatch.setattr(ocp.Checkpointer, "save", full)
    with pytest.raises(InputError, match=r"cannot be written \(.*No space left on device"):
        convert(source, tmp_path / "dst")
    assert siblings(source) == []


def test_verification_finds_a_flipped_bit(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = converted.save_group

    def save_badly(folder: Path, name: str, tensors: dict[str, np.ndarray]) -> None:
        bits(tensors["norm.scale"])[0, 5] ^= 1
        save(folder, name, tensors)

    monkeypatch.setattr(converted, "save_group", save_badly)
    with pytest.raises(InputError, match=r"verification failed: norm\.scale differs"):
        convert(source, tmp_path / "dst", verify=True)
    assert siblings(source) == []


def test_progress_counts_the_bytes_of_the_source(source: Path, tmp_path: Path) -> None:
    calls: list[tuple[str, int, int]] = []
    convert(source, tmp_path / "dst", verify=True, progress=lambda *call: calls.append(call))
    total = sum(x.nbytes for x in parameters(source).values())
    assert {call[2] for call in calls} == {total}
    for stage in ("convert", "verify"):
        done = [call[1] for call in calls if call[0] == stage]
        assert done == sorted(done)
        assert (done[0], done[-1]) == (0, total)


def test_leftovers_of_a_dead_process_are_replaced(source: Path, tmp_path: Path) -> None:
    left = tmp_path / "dst.partial"
    (left / "weights" / "00000").mkdir(parents=True)
    (left / "weights" / "00000" / "junk").write_text("x")
    (left / "manifest.json").write_text("{}")
    (left / "link").symlink_to(source)
    convert(source, tmp_path / "dst", verify=True)
    assert siblings(source) == ["dst"]
    assert not (tmp_path / "dst" / "link").exists()
    assert (source / "config.json").exists()


def test_a_destination_that_another_process_writes(source: Path, tmp_path: Path) -> None:
    partial = tmp_path / "dst.partial"
    partial.mkdir()
    (partial / "theirs").write_text("x")
    descriptor = os.open(partial, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(InputError, match="dst is being written by another process"):
        convert(source, tmp_path / "dst")
    os.close(descriptor)
    assert (partial / "theirs").exists()
