"""Matching stored tensors with parameters: both layouts, strict both ways."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lynx_jax.convert.folder import open_checkpoint
from lynx_jax.errors import InputError
from tests.convert.checkpoints import (
    BFLOAT16,
    VOCAB,
    D,
    F,
    N,
    fused_tensors,
    mixtral_config,
    per_expert,
    qwen3_moe_config,
    write_checkpoint,
)

type Tensors = dict[str, np.ndarray]
CONFIGS = {"mixtral": mixtral_config, "qwen3_moe": qwen3_moe_config}


def parameters(folder: Path) -> Tensors:
    """Every parameter of a checkpoint as its reader gives it."""
    reader = open_checkpoint(folder).reader
    read = {
        info.path: reader.read(info, 0, info.num_rows).reshape(info.shape)
        for info in reader.tensors
    }
    assert len(read) == len(reader.tensors)
    return read


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("shards", [0, 3])
@pytest.mark.parametrize("fused", [True, False])
def test_every_parameter_from_either_layout(
    tmp_path: Path, family: str, shards: int, fused: bool
) -> None:
    config = CONFIGS[family]()
    tensors = fused_tensors(config, BFLOAT16)
    stored = tensors if fused else per_expert(tensors, family)
    read = parameters(write_checkpoint(tmp_path / "src", config, stored, shards))
    assert len(read) == len(tensors)
    for path, x in read.items():
        source = path if path.startswith("lm_head") else f"model.{path}"
        for target in (".scale", ".embedding"):
            source = source.replace(target, ".weight")
        assert np.array_equal(x, tensors[source]), path
        assert x.dtype == BFLOAT16


@pytest.mark.parametrize("fused", [True, False])
def test_parts_of_experts_are_rows_of_the_whole(tmp_path: Path, fused: bool) -> None:
    config = mixtral_config()
    tensors = fused_tensors(config)
    stored = tensors if fused else per_expert(tensors, "mixtral")
    reader = open_checkpoint(write_checkpoint(tmp_path / "src", config, stored)).reader
    path = "layers.1.mlp.experts.gate_up_proj"
    info = next(info for info in reader.tensors if info.path == path)
    rows = tensors[f"model.{path}"].reshape(-1, D)
    assert info.num_rows == len(rows) == N * 2 * F
    for start, stop in ((0, 1), (F - 1, F + 1), (2 * F - 3, 5 * F + 2), (len(rows) - 1, len(rows))):
        assert np.array_equal(reader.read(info, start, stop), rows[start:stop])


def test_layouts_may_differ_between_layers_and_tensors(tmp_path: Path) -> None:
    config = mixtral_config()
    tensors = fused_tensors(config)
    apart = per_expert(tensors, "mixtral")
    mixed = {name: x for name, x in apart.items() if not name.startswith("model.layers.1.")}
    mixed |= {name: x for name, x in tensors.items() if name.startswith("model.layers.1.")}
    down = "model.layers.1.mlp.experts.down_proj"
    del mixed[down]
    mixed |= {
        name: x for name, x in apart.items() if name.startswith("model.layers.1.") and "w2" in name
    }
    read = parameters(write_checkpoint(tmp_path / "src", config, mixed))
    assert np.array_equal(read["layers.1.mlp.experts.down_proj"], tensors[down])


def rename(old: str, new: str) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        tensors[new] = tensors.pop(old)

    return change


def put(name: str, x: np.ndarray) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        tensors[name] = x

    return change


def drop(*names: str) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        for name in names:
            del tensors[name]

    return change


def ones(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.ones(shape, dtype)


def duplicate_as_experts(tensors: Tensors) -> None:
    tensors |= per_expert(tensors, "mixtral")


EXPERT = "model.layers.0.block_sparse_moe.experts"


@pytest.mark.parametrize(
    ("fused", "change", "message"),
    [
        (True, drop("model.norm.weight"), r"1 missing \(model\.norm\.weight\)"),
        (True, drop("lm_head.weight"), r"1 missing \(lm_head\.weight\)"),
        (True, drop("model.layers.0.mlp.experts.down_proj"), r"down_proj or .*experts\.0\.w2"),
        (False, drop(f"{EXPERT}.3.w3.weight"), r"1 missing \(.*experts\.3\.w3\.weight\)"),
        (False, drop(f"{EXPERT}.0.w1.weight", f"{EXPERT}.0.w3.weight"), r"2 missing"),
        (True, put("model.extra", ones(2)), r"1 unexpected \(model\.extra\)"),
        (False, put(f"{EXPERT}.{N}.w1.weight", ones(F, D)), r"1 unexpected"),
        (True, duplicate_as_experts, rf"{2 * 3 * N + 2} unexpected"),
        (True, rename("model.norm.weight", "norm.weight"), r"1 missing .*; 1 unexpected"),
        (
            True,
            put("model.norm.weight", ones(D + 1)),
            r"model\.norm\.weight is \[25\], .*\[24\]",
        ),
        (
            True,
            put("model.layers.0.mlp.experts.down_proj", ones(N, F, D)),
            r"1 wrong shape \(.*down_proj is \[5, 40, 24\], config\.json makes it \[5, 24, 40\]\)",
        ),
        (
            False,
            put(f"{EXPERT}.1.w1.weight", ones(D, F)),
            r"experts\.1\.w1\.weight is \[24, 40\]",
        ),
        (True, put("model.norm.weight", ones(D, dtype=np.int32)), r"model\.norm\.weight is I32"),
        (True, put("model.norm.weight", ones(D, dtype=np.float64)), r"is F64, expected F32, BF16"),
        (
            False,
            put(f"{EXPERT}.1.w1.weight", ones(F, D, dtype=BFLOAT16)),
            r"experts\.0\.w1\.weight and so on mix bfloat16 and float32",
        ),
    ],
)
def test_tensors_that_do_not_match(
    tmp_path: Path, fused: bool, change: Callable[[Tensors], None], message: str
) -> None:
    config = mixtral_config()
    tensors = fused_tensors(config)
    tensors = tensors if fused else per_expert(tensors, "mixtral")
    change(tensors)
    folder = write_checkpoint(tmp_path / "src", config, tensors)
    with pytest.raises(InputError, match=message) as caught:
        open_checkpoint(folder)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)


def test_all_kinds_in_one_line_with_counts(tmp_path: Path) -> None:
    config = mixtral_config()
    tensors = {f"unknown.{i}": ones(1) for i in range(7)}
    tensors |= fused_tensors(config)
    drop("model.norm.weight")(tensors)
    put("lm_head.weight", ones(2, D))(tensors)
    with pytest.raises(InputError) as caught:
        open_checkpoint(write_checkpoint(tmp_path / "src", config, tensors))
    text = str(caught.value)
    assert "1 missing" in text
    assert "7 unexpected (unknown.0, unknown.1, unknown.2 and 4 more)" in text
    assert "1 wrong shape (lm_head.weight" in text


@pytest.mark.parametrize("config", [{"num_hidden_layers": 1}, {"num_hidden_layers": 3}])
def test_other_number_of_layers_than_the_config(tmp_path: Path, config: dict[str, Any]) -> None:
    tensors = fused_tensors(mixtral_config())
    folder = write_checkpoint(tmp_path / "src", mixtral_config(**config), tensors)
    with pytest.raises(InputError, match=r"layers\.1\." if "1" in str(config) else r"layers\.2\."):
        open_checkpoint(folder)


class TestTiedOutputHead:
    CONFIG = mixtral_config(tie_word_embeddings=True)

    def test_absent(self, tmp_path: Path) -> None:
        folder = write_checkpoint(tmp_path / "src", self.CONFIG, fused_tensors(self.CONFIG))
        assert "lm_head.weight" not in parameters(folder)

    def test_equal_copy_is_dropped(self, tmp_path: Path) -> None:
        tensors = fused_tensors(self.CONFIG)
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
        folder = write_checkpoint(tmp_path / "src", self.CONFIG, tensors)
        assert "lm_head.weight" not in parameters(folder)

    @pytest.mark.parametrize("kind", ["value", "dtype", "shape"])
    def test_different_is_refused(self, tmp_path: Path, kind: str) -> None:
        tensors = fused_tensors(self.CONFIG)
        head = tensors["model.embed_tokens.weight"].copy()
        if kind == "value":
            head[VOCAB - 1, D - 1] += 1
        elif kind == "dtype":
            head = head.astype(np.float16)
        else:
            head = head[1:]
        tensors["lm_head.weight"] = head
        folder = write_checkpoint(tmp_path / "src", self.CONFIG, tensors)
        with pytest.raises(InputError, match=r"lm_head\.weight, which differs from model\.embed"):
            open_checkpoint(folder)


def test_names_that_may_be_ignored(tmp_path: Path) -> None:
    config = mixtral_config()
    tensors = fused_tensors(config)
    tensors["model.layers.1.self_attn.rotary_emb.inv_freq"] = np.ones(4, np.float32)
    folder = write_checkpoint(tmp_path / "src", config, tensors)
    assert len(parameters(folder)) == len(tensors) - 1


def test_dtypes_of_single_tensors_are_kept(tmp_path: Path) -> None:
    config = mixtral_config()
    tensors = fused_tensors(config, BFLOAT16)
    gate = "model.layers.0.mlp.gate.weight"
    tensors[gate] = tensors[gate].astype(np.float32)
    read = parameters(write_checkpoint(tmp_path / "src", config, tensors))
    assert read["layers.0.mlp.gate.weight"].dtype == np.float32
    assert read["layers.1.mlp.gate.weight"].dtype == BFLOAT16
