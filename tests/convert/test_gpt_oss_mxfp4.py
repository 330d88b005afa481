"""gpt-oss as it is published, experts in mxfp4, against the same numbers in bfloat16."""

import json
import shutil
from pathlib import Path

import jax
import numpy as np
from flax import nnx
from safetensors.numpy import load_file, save_file

from lynx_jax import load
from lynx_jax.convert.cli import run
from tests.convert import packed as packs
from tests.models.golden import GOLDEN, expected, full_pass

SOURCE = GOLDEN / "gpt_oss"
NUMBERS = np.array([packs.e2m1(nibble) for nibble in range(16)])
PACKED = ("experts.gate_up_proj", "experts.down_proj")


def pack(weights: np.ndarray) -> packs.Packed:
    """[experts, outputs, inputs] to the nearest numbers, the largest of a block at 4 to 8."""
    blocks = np.ascontiguousarray(weights, np.float64).reshape(*weights.shape[:2], -1, 32)
    exponents = np.floor(np.log2(np.abs(blocks).max(-1))) - 2
    scaled = blocks / 2.0 ** exponents[..., None]
    nibbles = np.abs(scaled[..., None] - NUMBERS).argmin(-1).astype(np.uint8)
    return {
        "_blocks": nibbles[..., 0::2] | nibbles[..., 1::2] << 4,
        "_scales": (exponents + 127).astype(np.uint8),
    }


def write(folder: Path, tensors: dict[str, np.ndarray], **config: object) -> Path:
    shutil.copytree(SOURCE, folder)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    raw = json.loads((SOURCE / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | config))
    return folder


def test_packed_experts_equal_their_plain_form(tmp_path: Path) -> None:
    stored, plain = {}, {}
    for name, x in load_file(SOURCE / "model.safetensors").items():
        if not name.endswith(PACKED):
            stored[name] = plain[name] = x
            continue
        packed = pack(x.swapaxes(1, 2))
        stored |= {name + part: value for part, value in packed.items()}
        values = packs.mxfp4_values(packed).astype(np.float32).swapaxes(1, 2)
        exact = x.astype(np.float32)
        assert np.abs(values - exact).mean() < 0.15 * np.abs(exact).mean()
        plain[name] = np.ascontiguousarray(values).astype(packs.BFLOAT16)
    quantised = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    folders = [
        write(tmp_path / "plain", plain),
        write(tmp_path / "packed", stored, quantization_config=quantised),
        tmp_path / "converted",
    ]
    assert run([str(folders[1]), str(folders[2]), "--verify"]) == 0
    ids = expected("gpt_oss")["input_ids"]
    wanted, *others = (load(folder, backend="reference", dtype="float32") for folder in folders)
    logits = full_pass(wanted.model, ids).logits
    assert np.abs(logits - expected("gpt_oss")["logits"]).mean() < 1.0
    for other in others:
        for a, b in zip(leaves(wanted), leaves(other), strict=True):
            np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(full_pass(other.model, ids).logits, logits)


def leaves(loaded) -> list[jax.Array]:
    return jax.tree.leaves(nnx.state(loaded.model))
