"""DeepSeek checkpoints as published: routers kept in float32, multi-token prediction skipped."""

import shutil

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from lynx_jax.backends import get_backend
from lynx_jax.convert.conversion import convert
from lynx_jax.errors import InputError
from lynx_jax.loading import load_model
from tests.models.golden import GOLDEN

REFERENCE = get_backend("reference")
ROUTER = ("gate.weight", "selection_bias")


def state_of(path, dtype=None):
    model = load_model(path, backend=REFERENCE, dtype=dtype)
    flat = nnx.to_flat_state(nnx.state(model))
    return {".".join(map(str, path)): variable[...] for path, variable in flat}


def copy_with(folder, tmp_path, change):
    """A copy of a golden checkpoint with ``change`` made to its stored tensors."""
    path = shutil.copytree(GOLDEN / folder, tmp_path / folder)
    tensors = load_file(path / "model.safetensors")
    change(tensors)
    save_file(tensors, path / "model.safetensors")
    return path


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", None])
def test_routers_stay_float32_at_every_dtype(dtype, tmp_path):
    stored = load_file(GOLDEN / "deepseek_v3" / "model.safetensors")
    for folder in (GOLDEN / "deepseek_v3", tmp_path / "converted"):
        if folder.name == "converted":
            convert(GOLDEN / "deepseek_v3", folder, dtype=dtype, verify=True)
        state = state_of(folder, dtype)
        assert state["layers.2.mlp.experts.down_proj"].dtype == jnp.dtype(dtype or "float32")
        for mine, name in zip(ROUTER, ("weight", "e_score_correction_bias"), strict=True):
            found = state[f"layers.2.mlp.{mine}"]
            assert found.dtype == jnp.float32
            np.testing.assert_array_equal(found, stored[f"model.layers.2.mlp.gate.{name}"])


def test_a_router_stored_in_bfloat16_is_widened(tmp_path):
    def round_gate(tensors):
        name = "model.layers.2.mlp.gate.weight"
        tensors[name] = tensors[name].astype(ml_dtypes.bfloat16)

    state = state_of(copy_with("deepseek_v3", tmp_path, round_gate))
    gate = state["layers.2.mlp.gate.weight"]
    assert gate.dtype == jnp.float32
    np.testing.assert_array_equal(gate, gate.astype(jnp.bfloat16).astype(jnp.float32))


def mtp_layer(tensors):
    """A layer of multi-token prediction behind the last layer, as published."""
    last = [name for name in tensors if name.startswith("model.layers.3.")]
    tensors |= {name.replace("layers.3.", "layers.4."): tensors[name] for name in last}
    width = tensors["model.norm.weight"].size
    embedding, norm = tensors["model.embed_tokens.weight"], tensors["model.norm.weight"]
    tensors |= {
        "model.layers.4.embed_tokens.weight": embedding,
        "model.layers.4.enorm.weight": norm,
        "model.layers.4.hnorm.weight": norm,
        "model.layers.4.eh_proj.weight": np.zeros((width, 2 * width), np.float32),
        "model.layers.4.shared_head.norm.weight": norm,
        "model.layers.4.shared_head.head.weight": embedding,
    }


def test_multi_token_prediction_is_skipped(tmp_path):
    found = state_of(copy_with("deepseek_v3", tmp_path, mtp_layer))
    plain = state_of(GOLDEN / "deepseek_v3")
    assert found.keys() == plain.keys()
    jax.tree.map(np.testing.assert_array_equal, found, plain)


def test_other_layers_too_many_are_not_skipped(tmp_path):
    def one_more(tensors):
        last = [name for name in tensors if name.startswith("model.layers.3.")]
        tensors |= {name.replace("layers.3.", "layers.4."): tensors[name] for name in last}

    with pytest.raises(InputError, match=r"unexpected \(model\.layers\.4\."):
        load_model(copy_with("deepseek_v3", tmp_path, one_more), backend=REFERENCE)


def test_a_missing_selection_bias_is_named(tmp_path):
    name = "model.layers.2.mlp.gate.e_score_correction_bias"
    with pytest.raises(InputError, match=f"1 missing .{name}"):
        load_model(
            copy_with("deepseek_v3", tmp_path, lambda tensors: tensors.pop(name)),
            backend=REFERENCE,
        )
