"""The converter's command line: bad input, signals, what stays behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from lynx_jax.convert.cli import run
from lynx_jax.convert.folder import open_checkpoint
from lynx_jax.errors import InputError
from tests.convert.checkpoints import BFLOAT16, fused_tensors, mixtral_config, write_checkpoint

MODEL = "model.safetensors"
NORM = "model.norm.weight"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    config = mixtral_config()
    return write_checkpoint(tmp_path / "src", config, fused_tensors(config))


def edit_config(**changes: Any) -> Callable[[Path], None]:
    """Set fields of config.json; None removes one."""

    def change(folder: Path) -> None:
        path = folder / "config.json"
        raw = json.loads(path.read_text()) | changes
        path.write_text(json.dumps({k: v for k, v in raw.items() if v is not None}))

    return change


def edit_tensors(change: Callable[[dict[str, np.ndarray]], object]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        tensors = load_file(folder / MODEL)
        change(tensors)
        save_file(tensors, folder / MODEL)

    return edit


def write(name: str, content: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(content)


def truncate(folder: Path) -> None:
    path = folder / MODEL
    path.write_bytes(path.read_bytes()[:-100])


def only_gguf(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    (folder / "model.gguf").write_bytes(b"GGUF")


def missing_shard(folder: Path) -> None:
    (folder / MODEL).rename(folder / "model-00001-of-00002.safetensors")
    names = load_file(folder / "model-00001-of-00002.safetensors")
    weight_map = dict.fromkeys(names, "model-00001-of-00002.safetensors")
    weight_map["x"] = "model-00002-of-00002.safetensors"
    (folder / f"{MODEL}.index.json").write_text(json.dumps({"weight_map": weight_map}))


BAD_SOURCES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no config.json": (lambda f: (f / "config.json").unlink(), "expected config.json"),
    "config.json is not JSON": (write("config.json", "{"), "config.json: expected JSON"),
    "config.json is a list": (write("config.json", "[]"), "expected a JSON object"),
    "no model_type": (edit_config(model_type=None), "lacks the field 'model_type'"),
    "unknown model_type": (
        edit_config(model_type="gpt2"),
        "model_type 'gpt2' is not supported; expected one of ",
    ),
    "config lacks a field": (edit_config(num_local_experts=None), "'num_local_experts'"),
    "quantised": (
        edit_config(quantization_config={"quant_method": "fp8"}),
        "expected quantization_config.weight_block_size as two sizes",
    ),
    "no safetensors": (lambda f: (f / MODEL).unlink(), "expected safetensors files, found none"),
    "only .bin": (
        lambda f: (f / MODEL).rename(f / "pytorch_model.bin"),
        "only as .bin files, expected safetensors",
    ),
    "only GGUF": (only_gguf, "found GGUF files, which are not supported"),
    "truncated": (truncate, "model.safetensors is truncated: expected"),
    "missing shard": (missing_shard, "first model-00002-of-00002.safetensors"),
    "missing tensor": (edit_tensors(lambda t: t.pop(NORM)), f"1 missing ({NORM})"),
    "extra tensor": (
        edit_tensors(lambda t: t.update(extra=np.ones(1, np.float32))),
        "1 unexpected (extra)",
    ),
    "wrong shape": (
        edit_tensors(lambda t: t.update({NORM: np.ones(7, np.float32)})),
        f"1 wrong shape ({NORM} is [7], config.json makes it [24])",
    ),
    "integers": (
        edit_tensors(lambda t: t.update({NORM: np.ones(24, np.int8)})),
        f"1 wrong dtype ({NORM} is I8",
    ),
    "NaN": (
        edit_tensors(lambda t: t.update({NORM: np.full(24, np.nan, np.float32)})),
        f"tensor {NORM} holds nan",
    ),
}


def assert_error(code: int, capsys: pytest.CaptureFixture[str], message: str, source: Path) -> None:
    captured = capsys.readouterr()
    assert code == 2
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert message in lines[0]
    assert [path.name for path in source.parent.iterdir() if path != source] == []


@pytest.mark.parametrize(("spoil", "message"), BAD_SOURCES.values(), ids=BAD_SOURCES)
def test_bad_source(
    source: Path,
    capsys: pytest.CaptureFixture[str],
    spoil: Callable[[Path], object],
    message: str,
) -> None:
    spoil(source)
    code = run([str(source), str(source.parent / "dst")])
    assert_error(code, capsys, message, source)


def test_missing_folder(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = run([str(source / "nowhere"), str(source.parent / "dst")])
    assert_error(code, capsys, "nowhere: no such folder", source)


@pytest.mark.parametrize("name", ["config.json", "model.gguf"])
def test_file_instead_of_folder(
    source: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (source / "model.gguf").write_bytes(b"GGUF")
    code = run([str(source / name), str(source.parent / "dst")])
    assert_error(code, capsys, f"{name} is a file, expected a folder", source)


@pytest.mark.parametrize("options", [["--dtype", "int8"], ["--nonsense"]])
def test_bad_options(source: Path, capsys: pytest.CaptureFixture[str], options: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run([str(source), str(source.parent / "dst"), *options])
    assert caught.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def test_success(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = source.parent / "dst"
    assert run([str(source), str(target), "--verify", "--dtype", "bfloat16"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out.startswith("converted and verified 21 tensors, 0.00 GB bfloat16, in ")
    assert {info.dtype for info in open_checkpoint(target).reader.tensors} == {BFLOAT16}


def test_existing_destination(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([str(source), str(source)]) == 2
    assert "src exists already" in capsys.readouterr().err


def test_without_tokenizer(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (source / "tokenizer.json").unlink()
    assert run([str(source), str(source.parent / "dst")]) == 0
    assert capsys.readouterr().err.startswith("warning: the source has no tokenizer.json")


def test_signal_handlers_are_put_back(source: Path) -> None:
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    run([str(source / "nowhere"), str(source.parent / "dst")])
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before


def test_disk_that_refuses_large_files(source: Path) -> None:
    target = source.parent / "dst"
    command = [sys.executable, "-m", "lynx_jax.convert", str(source), str(target)]
    done = subprocess.run(
        ["bash", "-c", 'ulimit -f 16; exec "$@"', "-", *command], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1
    assert [path.name for path in source.parent.iterdir()] == ["src"]


# Converts with groups so small that there are hundreds, which takes a while.
SLOW = """
import sys
from lynx_jax.convert import cli, conversion, converted
conversion.GROUP_BYTES = converted.GROUP_BYTES = 200
sys.argv[0] = "lynx-convert"
cli.main()
"""


def start_slow_conversion(source: Path, target: Path) -> subprocess.Popen[str]:
    """A conversion that has written a few groups of many."""
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, str(source), str(target)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": ""},
    )
    third = target.with_name(target.name + ".partial") / "weights" / "00003"
    while not third.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)
    return process


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted(source: Path, number: int, code: int) -> None:
    process = start_slow_conversion(source, source.parent / "dst")
    process.send_signal(number)
    out, err = process.communicate()
    assert process.returncode == code
    assert out == ""
    assert err == "error: interrupted; nothing was kept\n"
    assert [path.name for path in source.parent.iterdir()] == ["src"]


def test_killed(source: Path) -> None:
    target, partial = source.parent / "dst", source.parent / "dst.partial"
    process = start_slow_conversion(source, target)
    process.kill()
    process.communicate()
    assert sorted(path.name for path in source.parent.iterdir()) == ["dst.partial", "src"]
    with pytest.raises(InputError, match="unfinished conversion"):
        open_checkpoint(partial)
    partial.rename(target)  # not even under the destination's name
    with pytest.raises(InputError):
        open_checkpoint(target)
    target.rename(partial)
    assert run([str(source), str(target), "--verify"]) == 0
    assert sorted(path.name for path in source.parent.iterdir()) == ["dst", "src"]
