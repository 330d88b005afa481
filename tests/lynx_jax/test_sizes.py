"""Sizes from a config alone, against files and formulas."""

import itertools
import math
import shutil

import pytest
from safetensors.numpy import load_file

from lynx_jax.convert.folder import read_config
from lynx_jax.convert.reader import abstract_model
from lynx_jax.models import get_family
from lynx_jax.sizes import run, sizes_of
from tests.models.golden import GOLDEN


def of(name):
    raw = read_config(GOLDEN / name)
    family = get_family(raw["model_type"])
    return raw, sizes_of(abstract_model(family, family.config_class.from_dict(raw)))


def test_a_model_in_bfloat16():
    raw, sizes = of("mixtral")
    stored = sum(x.size for x in load_file(GOLDEN / "mixtral" / "model.safetensors").values())
    assert (sizes.parameters, sizes.weight_bytes) == (stored, 2 * stored)
    values = raw["num_hidden_layers"] * 2 * raw["num_key_value_heads"] * raw["head_dim"]
    assert sizes.cache_bytes_per_token == 2 * values
    assert sizes.cache_bytes(3, 5) == 15 * 2 * values


def test_routers_in_float32_and_a_compressed_cache():
    raw, sizes = of("deepseek_v3")
    sparse = raw["num_hidden_layers"] - raw["first_k_dense_replace"]
    in_float32 = sparse * raw["n_routed_experts"] * (raw["hidden_size"] + 1)
    assert sizes.weight_bytes == 2 * (sizes.parameters + in_float32)
    values = raw["kv_lora_rank"] + raw["qk_rope_head_dim"]
    assert sizes.cache_bytes_per_token == 2 * raw["num_hidden_layers"] * values


def test_command_line_needs_no_weights(tmp_path, capsys):
    shutil.copy(GOLDEN / "mixtral" / "config.json", tmp_path)
    assert run([str(tmp_path), "--rows", "8", "--length", str(10**6)]) == 0
    printed = capsys.readouterr().out
    parameters = math.prod((307, 44)) * 2 + 44 + 4 * _mixtral_layer()
    assert f"parameters  {parameters:,}\n" in printed
    assert "cache       3.84 GB for 8 rows of 1000000 tokens, 480 bytes a token\n" in printed


def _mixtral_layer():
    attention = 2 * 44 * 60 + 2 * 44 * 30
    return attention + 8 * 44 + 8 * 3 * 26 * 44 + 2 * 44


def test_errors_are_one_line(tmp_path, capsys):
    assert run([str(tmp_path / "none")]) == 2
    assert "no such folder" in capsys.readouterr().err
    for option, value in itertools.product(("--rows", "--length"), ("0", "9" * 4000)):
        with pytest.raises(SystemExit) as caught:
            run([str(tmp_path), option, value])
        assert caught.value.code == 2
        assert f"expected {option} from 1 to 2147483647, got {value}" in capsys.readouterr().err
