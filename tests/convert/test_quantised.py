"""Whole quantised checkpoints: read, converted, loaded; and what is wrong with them in one line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flax import nnx

from lynx_jax.backends import get_backend
from lynx_jax.convert.cli import run
from lynx_jax.convert.folder import open_checkpoint
from lynx_jax.convert.quantization import read_packing
from lynx_jax.errors import InputError
from lynx_jax.loading import load_model
from tests.convert import packed as packs
from tests.convert.checkpoints import (
    BFLOAT16,
    D,
    fused_tensors,
    per_expert,
    qwen3_moe_config,
    write_checkpoint,
)

type Tensors = dict[str, np.ndarray]

PACKINGS = {
    "fp8": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [10, 10]},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": True},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 16, "version": "gemm"},
}
PLAIN_CONFIG = qwen3_moe_config(mlp_only_layers=[])
ROUTER = "model.layers.0.mlp.gate.weight"
QUERY = "model.layers.0.self_attn.q_proj"


def pack(method: str, rng: np.random.Generator, x: np.ndarray) -> tuple[packs.Packed, np.ndarray]:
    """Random packed numbers of the shape of a matrix, and their values."""
    if method == "fp8":
        packed = packs.fp8(rng, x.shape, 10, np.float32)
        return packed, packs.fp8_values(packed, 10)
    q, zeros, scales = packs.int4_parts(rng, *x.shape, group=16)
    groups = np.arange(x.shape[1]) // 16
    if method == "awq":
        return packs.awq(q, zeros, scales), packs.int4_values(q, zeros, scales, groups)
    groups = rng.permutation(groups)
    return (
        packs.gptq(q, zeros, scales, groups, version=1),
        packs.int4_values(q, zeros, scales, groups),
    )


def quantised(method: str) -> tuple[dict[str, Any], Tensors, Tensors]:
    """config.json, tensors of a checkpoint whose projections are packed, and the true values."""
    rng = np.random.default_rng(1)
    plain = fused_tensors(PLAIN_CONFIG, BFLOAT16 if method == "fp8" else np.float16)
    stored: Tensors = {}
    values: Tensors = {}
    for name, x in per_expert(plain, "qwen3_moe").items():
        if not name.endswith("_proj.weight"):
            stored[name], values[name] = x, x.astype(BFLOAT16)
            continue
        packed, true = pack(method, rng, x)
        base = name if method == "fp8" else name.removesuffix(".weight")
        stored |= {base + suffix: part for suffix, part in packed.items()}
        values[name] = true.astype(np.float32).astype(BFLOAT16)
    stored[ROUTER] = values[ROUTER] = np.asarray(values[ROUTER], np.float32)
    config = {**PLAIN_CONFIG, "torch_dtype": "float16", "quantization_config": PACKINGS[method]}
    return config, stored, values


def parameters(folder: Path) -> Tensors:
    reader = open_checkpoint(folder).reader
    return {i.path: reader.read(i, 0, i.num_rows).reshape(i.shape) for i in reader.tensors}


def assert_equal(found: Tensors, wanted: Tensors) -> None:
    assert found.keys() == wanted.keys()
    for path, x in wanted.items():
        assert found[path].dtype == x.dtype, path
        np.testing.assert_array_equal(found[path], x, path)


@pytest.mark.parametrize("method", PACKINGS)
def test_read_converted_and_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], method: str
) -> None:
    config, stored, values = quantised(method)
    source = write_checkpoint(tmp_path / "src", config, stored, shards=3)
    wanted = parameters(write_checkpoint(tmp_path / "plain", PLAIN_CONFIG, values))
    assert_equal(parameters(source), wanted)
    assert wanted["layers.0.mlp.gate.weight"].dtype == np.float32

    assert run([str(source), str(tmp_path / "dst"), "--verify"]) == 0
    assert_equal(parameters(tmp_path / "dst"), wanted)
    sizes = [sum(x.nbytes for x in tensors.values()) / 1e9 for tensors in (stored, values)]
    printed = f"{sizes[0]:.2f} GB {method} to {sizes[1]:.2f} GB bfloat16"
    assert printed in capsys.readouterr().out
    written = json.loads((tmp_path / "dst" / "config.json").read_text())
    assert written == {**PLAIN_CONFIG, "torch_dtype": "bfloat16"}

    model = load_model(source, backend=get_backend("reference"))
    loaded = {".".join(map(str, p)): v for p, v in nnx.to_flat_state(nnx.state(model))}
    assert_equal({path: np.asarray(x[...]) for path, x in loaded.items()}, wanted)


def drop(name: str) -> Callable[[dict[str, Any], Tensors], None]:
    def change(config: dict[str, Any], tensors: Tensors) -> None:
        del tensors[name]

    return change


def put(name: str, x: np.ndarray) -> Callable[[dict[str, Any], Tensors], None]:
    def change(config: dict[str, Any], tensors: Tensors) -> None:
        tensors[name] = x

    return change


def say(**fields: Any) -> Callable[[dict[str, Any], Tensors], None]:
    def change(config: dict[str, Any], tensors: Tensors) -> None:
        config["quantization_config"] = config["quantization_config"] | fields

    return change


def without_config(config: dict[str, Any], tensors: Tensors) -> None:
    del config["quantization_config"]


@pytest.mark.parametrize(
    ("method", "change", "message"),
    [
        ("fp8", drop(f"{QUERY}.weight_scale_inv"), r"1 missing \(.*q_proj\.weight_scale_inv\)"),
        ("fp8", drop(f"{QUERY}.weight"), r"1 missing \(.*q_proj\.weight\)"),
        (
            "fp8",
            put(f"{QUERY}.weight", np.ones((32, D), np.float32)),
            r"q_proj\.weight is F32, expected F8_E4M3\)",
        ),
        (
            "fp8",
            say(weight_block_size=[8, 8]),
            r"wrong shape .*_scale_inv is \[3, 4\], .* \[3, 5\]",
        ),
        ("fp8", without_config, r"_proj\.weight is F8_E4M3, expected F32, BF16 or F16"),
        ("gptq", drop(f"{QUERY}.scales"), r"1 missing \(.*q_proj\.scales\)"),
        ("gptq", drop(f"{QUERY}.g_idx"), r"1 missing \(.*q_proj\.g_idx\)"),
        ("gptq", say(group_size=8), r"qzeros is \[3, 3\], config\.json makes it \[5, 3\]"),
        ("gptq", put(f"{QUERY}.bias", np.ones(32, np.float16)), r"1 unexpected \(.*q_proj\.bias\)"),
        ("awq", drop(f"{QUERY}.qzeros"), r"1 missing \(.*q_proj\.qzeros\)"),
        ("awq", say(quant_method="gptq"), r"missing \(.*g_idx"),
        ("awq", without_config, r"missing \(.*k_proj\.weight .*unexpected \(.*qweight"),
    ],
)
def test_tensors_that_do_not_fit(
    tmp_path: Path,
    method: str,
    change: Callable[[dict[str, Any], Tensors], None],
    message: str,
) -> None:
    config, stored, _ = quantised(method)
    change(config, stored)
    folder = write_checkpoint(tmp_path / "src", config, stored)
    with pytest.raises(InputError, match=message) as caught:
        open_checkpoint(folder)
    assert "\n" not in str(caught.value)


def test_biases_of_zeros_beside_packed_weights(tmp_path: Path) -> None:
    config, stored, _ = quantised("gptq")
    without = parameters(write_checkpoint(tmp_path / "without", config, stored))
    stored[f"{QUERY}.bias"] = np.zeros(32, np.float16)
    assert_equal(parameters(write_checkpoint(tmp_path / "with", config, stored)), without)


def test_nothing_is_packed(tmp_path: Path) -> None:
    config = {**PLAIN_CONFIG, "quantization_config": PACKINGS["fp8"]}
    folder = write_checkpoint(tmp_path / "src", config, fused_tensors(PLAIN_CONFIG))
    with pytest.raises(InputError, match=r"'fp8', but no tensor is packed so; remove quantiz"):
        open_checkpoint(folder)


def test_fused_fp8(tmp_path: Path) -> None:
    tensors = fused_tensors(PLAIN_CONFIG, BFLOAT16)
    name = "model.layers.1.mlp.experts.down_proj"
    packed = packs.fp8(np.random.default_rng(0), tensors.pop(name).shape, 10, np.float32)
    tensors |= {name + suffix: x for suffix, x in packed.items()}
    config = {**PLAIN_CONFIG, "quantization_config": PACKINGS["fp8"]}
    found = parameters(write_checkpoint(tmp_path / "src", config, tensors))
    wanted = packs.fp8_values(packed, 10).astype(np.float32).astype(BFLOAT16)
    np.testing.assert_array_equal(found["layers.1.mlp.experts.down_proj"], wanted)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ([], "quantization_config as an object, got"),
        ({}, "quant_method as one of awq, fp8, gptq, mxfp4, got None"),
        ({"quant_method": "bitsandbytes"}, "got 'bitsandbytes'"),
        ({"quant_method": ["fp8"]}, r"got \['fp8'\]"),
        ({"quant_method": "fp8"}, "weight_block_size as two sizes"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size"),
        ({"quant_method": "fp8", "weight_block_size": [0, 128]}, "weight_block_size"),
        (PACKINGS["fp8"] | {"fmt": "e5m2"}, "fmt as 'e4m3', got 'e5m2'"),
        (PACKINGS["gptq"] | {"bits": 8}, "bits as 4, got 8"),
        (PACKINGS["gptq"] | {"checkpoint_format": "marlin"}, "'gptq' or 'gptq_v2', got 'marlin'"),
        (PACKINGS["gptq"] | {"group_size": 0}, "group_size as the inputs of a group"),
        (PACKINGS["awq"] | {"bits": None}, "bits as 4, got None"),
        (PACKINGS["awq"] | {"version": "gemv"}, "version as 'gemm', got 'gemv'"),
        (PACKINGS["awq"] | {"zero_point": False}, "zero_point as true, got False"),
    ],
)
def test_config_that_is_not_supported(found: object, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read_packing({"quantization_config": found})
    assert "\n" not in str(caught.value)


def test_versions_of_gptq() -> None:
    for fields, lacks in (
        ({}, 1),
        ({"checkpoint_format": "gptq"}, 1),
        ({"checkpoint_format": "gptq_v2"}, 0),
        ({"format": "gptq_v2"}, 0),
    ):
        packing = read_packing({"quantization_config": PACKINGS["gptq"] | fields})
        assert packing.stored_zero == lacks


def test_config_of_a_text_part() -> None:
    assert read_packing({"text_config": {"quantization_config": {"quant_method": "mxfp4"}}})
    assert read_packing({"text_config": {}}) is None
    assert read_packing({}) is None
