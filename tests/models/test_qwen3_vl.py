"""The text part of Qwen3-VL-MoE: what its files have besides, and which of two layouts it is."""

import json
import logging
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from lynx_jax.backends import get_backend
from lynx_jax.convert.cli import run
from lynx_jax.errors import InputError
from lynx_jax.loading import load_model
from lynx_jax.models import Qwen3VLMoeConfig
from tests.models.golden import GOLDEN, load

SOURCE = GOLDEN / "qwen3_vl_moe"
RAW = json.loads((SOURCE / "config.json").read_text())


def test_end_of_text_stands_in_the_text_part():
    assert 2 in load("qwen3_vl_moe", "reference").eos_token_ids


def test_the_vision_tower_is_left_out_and_named(caplog):
    with caplog.at_level(logging.WARNING, logger="lynx_jax"):
        load_model(SOURCE, backend=get_backend("reference"))
    names = load_file(SOURCE / "model.safetensors")
    visual = sum(name.startswith("model.visual.") for name in names)
    assert f"{visual} tensors not used, such as model.visual." in caplog.text


def test_conversion_turns_the_experts(tmp_path: Path):
    """Rows of the converted form do not stand together in the published one."""
    shutil.copytree(SOURCE, tmp_path / "source")
    shutil.copy(GOLDEN / "qwen3_moe" / "tokenizer.json", tmp_path / "source")
    assert run([str(tmp_path / "source"), str(tmp_path / "converted"), "--verify"]) == 0
    backend = get_backend("reference")
    direct, converted = (load_model(f, backend=backend) for f in (SOURCE, tmp_path / "converted"))
    for a, b in zip(*(jax.tree.leaves(nnx.state(m)) for m in (direct, converted)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_experts_that_fit_both_ways_are_refused(tmp_path: Path):
    shutil.copytree(SOURCE, tmp_path / "square")
    tensors = load_file(SOURCE / "model.safetensors")
    hidden = RAW["text_config"]["hidden_size"] // 2
    for name, x in tensors.items():
        if name.endswith("experts.gate_up_proj"):
            tensors[name] = np.zeros((x.shape[0], 2 * hidden, 2 * hidden), x.dtype)
        elif name.endswith("experts.down_proj"):
            tensors[name] = np.zeros((x.shape[0], hidden, 2 * hidden), x.dtype)
    save_file(tensors, tmp_path / "square" / "model.safetensors")
    text = RAW["text_config"] | {"moe_intermediate_size": hidden}
    (tmp_path / "square" / "config.json").write_text(json.dumps(RAW | {"text_config": text}))
    with pytest.raises(InputError, match=r"experts\.gate_up_proj .*30, 30"):
        load_model(tmp_path / "square", backend=get_backend("reference"))


def test_the_tie_of_the_whole_decides():
    assert RAW["text_config"]["tie_word_embeddings"]
    assert not Qwen3VLMoeConfig.from_dict(RAW).tie_word_embeddings
    assert Qwen3VLMoeConfig.from_dict(RAW | {"tie_word_embeddings": True}).tie_word_embeddings
    absent = {name: value for name, value in RAW.items() if name != "tie_word_embeddings"}
    assert not Qwen3VLMoeConfig.from_dict(absent).tie_word_embeddings


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"norm_topk_prob": False}, "norm_topk_prob true for qwen3_vl_moe, got False"),
        ({"attention_bias": True}, "attention_bias false"),
        ({"rope_parameters": None}, "lacks the field 'rope_theta'"),
    ],
)
def test_contradictions_are_refused_in_one_line(change, says):
    with pytest.raises(InputError, match=says) as caught:
        Qwen3VLMoeConfig.from_dict(RAW | {"text_config": RAW["text_config"] | change})
    assert "\n" not in str(caught.value)
