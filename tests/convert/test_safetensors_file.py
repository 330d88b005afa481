"""The safetensors reader against the library's writer, and against damaged files."""

import json
import struct
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from lynx_jax.convert.numerics import bits
from lynx_jax.convert.safetensors_file import read_header
from lynx_jax.errors import InputError


def write_raw(path: Path, header: object, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_reads_what_the_library_wrote(tmp_path: Path, dtype: type) -> None:
    rng = np.random.default_rng(0)
    tensors = {
        "a": rng.standard_normal((7, 3)).astype(dtype),
        "b": rng.standard_normal((4, 2, 5)).astype(dtype),
        "c": rng.standard_normal((6,)).astype(dtype),
    }
    save_file(tensors, tmp_path / "x.safetensors", {"format": "pt"})
    stored = {tensor.name: tensor for tensor in read_header(tmp_path / "x.safetensors")}
    assert stored.keys() == tensors.keys()
    for name, expected in tensors.items():
        assert stored[name].shape == expected.shape
        assert stored[name].dtype == expected.dtype
        rows = expected.reshape(-1, expected.shape[-1])
        assert stored[name].num_rows == len(rows)
        for start, stop in ((0, len(rows)), (len(rows) // 2, len(rows))):
            out = np.empty((stop - start, rows.shape[1]), dtype)
            stored[name].read(start, stop, out)
            assert np.array_equal(bits(out), bits(rows[start:stop]))


def entry(offsets: tuple[int, int], shape: list[int], dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": list(offsets)}


@pytest.mark.parametrize(
    ("header", "size", "message"),
    [
        ({"a": entry((0, 8), [2])}, 4, "truncated"),
        ({"a": entry((0, 8), [2])}, 9, "1 bytes follow"),
        ({"a": entry((0, 8), [3])}, 8, "size of a does not fit"),
        ({"a": entry((0, 8), [2]), "b": entry((4, 12), [2])}, 12, "overlaps"),
        ({"a": entry((4, 12), [2])}, 12, "overlaps or leaves a gap"),
        ({"a": entry((0, 8), [2], "F99")}, 8, "F99"),
        ({"a": entry((0, -8), [-2])}, 8, "shape or offsets of a"),
        ({"a": {"dtype": "F32"}}, 8, "data_offsets"),
        ({"a": 3}, 8, "header is damaged"),
        ([1], 8, "not an object"),
        (b'{"a"', 8, "header is damaged"),
        (b"\xff\xfe", 8, "header is damaged"),
        (b'{"a": 1, "a": 2}', 8, "twice"),
        (b"[" * 100_000, 8, "header is damaged"),
    ],
)
def test_damaged_header(tmp_path: Path, header: object, size: int, message: str) -> None:
    path = write_raw(tmp_path / "x.safetensors", header, bytes(size))
    with pytest.raises(InputError, match=message) as caught:
        read_header(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a safetensors file"),
        (b"\x10", "not a safetensors file"),
        (b"\xff" * 64, "not a safetensors file"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
        (struct.pack("<Q", 500) + b"{}", "truncated: expected 508 bytes, it has 10"),
    ],
)
def test_not_a_safetensors_file(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_header(path)


def test_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"a": np.ones((4, 4), np.float32)}, path)
    (tensor,) = read_header(path)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(InputError, match="became shorter"):
        tensor.read(0, 4, np.empty((4, 4), np.float32))
