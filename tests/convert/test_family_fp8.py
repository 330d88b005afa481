"""DeepSeek-V3 and Qwen3 as they are published in blocks of float8, against their plain form."""

import json
import math
import shutil
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file

from lynx_jax import load
from lynx_jax.convert import sources
from lynx_jax.convert.cli import run
from lynx_jax.loading import LoadedModel
from tests.convert import packed as packs
from tests.convert.checkpoints import BFLOAT16, write_weights
from tests.models.golden import GOLDEN, expected, full_pass
from tests.models.test_deepseek_checkpoints import mtp_layer

BLOCK = (7, 10)  # neither divides the sides of the matrices
NUMBERS = np.array([packs.e4m3(byte) for byte in range(256)])
CONFIG = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": list(BLOCK),
}
SCALES = {"deepseek_v3": np.float32, "qwen3_moe": BFLOAT16}

type Tensors = dict[str, np.ndarray]


def quantise(x: np.ndarray, scale_dtype: np.dtype) -> tuple[packs.Packed, np.ndarray]:
    """A matrix in float8, the largest of a block at 448, and what its numbers mean."""
    scales = np.empty([math.ceil(n / size) for n, size in zip(x.shape, BLOCK, strict=True)])
    stored, values = np.empty(x.shape, ml_dtypes.float8_e4m3fn), np.empty(x.shape)
    for row, column in np.ndindex(scales.shape):
        at = tuple(
            slice(i * size, (i + 1) * size) for i, size in zip((row, column), BLOCK, strict=True)
        )
        scale = np.asarray(np.abs(x[at]).max() / 448, scale_dtype).astype(np.float64)
        stored[at] = np.clip(x[at] / scale, -448, 448)
        values[at] = NUMBERS[stored[at].view(np.uint8)] * scale
        scales[row, column] = scale
    return {"": stored, "_scale_inv": scales.astype(scale_dtype)}, values


def both_forms(name: str) -> tuple[Tensors, Tensors]:
    """Tensors of a golden checkpoint packed and plain, with a layer that guesses ahead in both."""
    tensors: Tensors = {}
    for file in (GOLDEN / name).glob("*.safetensors"):
        tensors |= load_file(file)
    if name == "deepseek_v3":
        mtp_layer(tensors)
    packed, plain = {}, {}
    for tensor, x in tensors.items():
        if "_proj" in tensor and "eh_proj" not in tensor:
            parts, values = quantise(x, SCALES[name])
            assert np.abs(values - x).max() < 0.04 * np.abs(x).max()
            packed |= {tensor + part: stored for part, stored in parts.items()}
            plain[tensor] = values.astype(np.float32).astype(BFLOAT16)
        else:
            kept = np.float32 if tensor.endswith("e_score_correction_bias") else BFLOAT16
            packed[tensor] = plain[tensor] = x.astype(kept)
    return packed, plain


def write(name: str, folder: Path, tensors: Tensors, **config: object) -> Path:
    """The golden checkpoint with these weights in three files and the config changed."""
    shutil.copytree(GOLDEN / name, folder, ignore=shutil.ignore_patterns("*.safetensors*"))
    write_weights(folder, tensors, shards=3)
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | {"dtype": "bfloat16"} | config))
    return folder


def assert_scales_lie_apart(folder: Path) -> None:
    files = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    scales = [tensor for tensor in files if tensor.endswith("_scale_inv")]
    assert len(scales) > 100
    assert all(files[tensor] != files[tensor.removesuffix("_scale_inv")] for tensor in scales)


def leaves(loaded: LoadedModel) -> list[jax.Array]:
    return jax.tree.leaves(nnx.state(loaded.model))


@pytest.mark.parametrize("name", SCALES)
def test_float8_loads_and_converts_to_its_plain_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(sources, "SCRATCH_BYTES", 1000)  # a few rows, across borders of blocks
    packed, plain = both_forms(name)
    folders = [
        write(name, tmp_path / "plain", plain),
        write(name, tmp_path / "packed", packed, quantization_config=CONFIG),
        tmp_path / "converted",
    ]
    assert_scales_lie_apart(folders[1])
    assert run([str(folders[1]), str(folders[2]), "--verify"]) == 0
    wanted, *others = (load(folder, backend="reference") for folder in folders)
    logits = full_pass(wanted.model, expected(name)["input_ids"]).logits
    error = np.abs(logits - expected(name)["logits"])
    assert 0 < error.mean() < 0.3 * np.abs(expected(name)["logits"]).mean()
    for other in others:
        for a, b in zip(leaves(wanted), leaves(other), strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)
        found = full_pass(other.model, expected(name)["input_ids"]).logits
        np.testing.assert_array_equal(found, logits)
