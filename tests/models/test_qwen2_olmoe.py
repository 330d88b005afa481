"""What is particular to Qwen2-MoE and OLMoE: their configs, and their shared expert."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lynx_jax.errors import InputError
from lynx_jax.models import OlmoeConfig, Qwen2MoeConfig
from lynx_jax.models.qwen2_moe import GatedMLP
from lynx_jax.routers import Router
from tests.models.test_config import MIXTRAL, QWEN3, without

QWEN2 = {
    **without(QWEN3, "norm_topk_prob"),
    "model_type": "qwen2_moe",
    "shared_expert_intermediate_size": 28,
}
OLMOE = {**without(MIXTRAL, "num_local_experts"), "model_type": "olmoe", "num_experts": 12}
WINDOW = {"use_sliding_window": True, "sliding_window": 6, "num_hidden_layers": 5}
FULL, SLIDING = "full_attention", "sliding_attention"


def windows(**changes):
    config = Qwen2MoeConfig.from_dict({**QWEN2, **changes})
    return [config.window(i) for i in range(config.num_hidden_layers)]


def test_every_second_of_the_first_layers_has_a_window():
    assert windows(**WINDOW, max_window_layers=3) == [6, None, 6, None, None]
    assert windows(**WINDOW, max_window_layers=0) == [None] * 5


def test_layer_types_overrule_the_number_of_layers():
    kinds = [FULL, SLIDING, SLIDING, FULL, FULL]
    found = windows(**WINDOW, max_window_layers=5, layer_types=kinds)
    assert found == [None, 6, 6, None, None]


def test_a_window_that_is_not_in_use_is_none():
    found = windows(sliding_window=6, max_window_layers=3, layer_types=[FULL] * 3)
    assert found == [None] * 3


@pytest.mark.parametrize(("config_class", "raw"), [(Qwen2MoeConfig, QWEN2), (OlmoeConfig, OLMOE)])
def test_weights_are_not_renormalised_unless_the_config_says_so(config_class, raw):
    assert config_class.from_dict(raw).router == Router("softmax", "keep_sum")
    renormalised = config_class.from_dict({**raw, "norm_topk_prob": True})
    assert renormalised.router == Router("softmax", "renormalize")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"shared_expert_intermediate_size": None}, "lacks the field 'shared_expert_inter"),
        ({"shared_expert_intermediate_size": 0}, "shared_expert_intermediate_size to be at"),
        ({"moe_intermediate_size": None}, "lacks the field 'moe_intermediate_size'"),
        ({"mlp_only_layers": [0], "intermediate_size": None}, "intermediate_size of at least 1"),
        ({"norm_topk_prob": "no"}, "'norm_topk_prob' as bool, got 'no'"),
        (WINDOW, "max_window_layers or layer_types where .* got neither"),
        ({**WINDOW, "layer_types": [FULL] * 4}, "layer_types of 5 layers, got 4"),
        ({**WINDOW, "layer_types": ["chunked"] * 5}, "or 'sliding_attention', got 'chunked'"),
        ({"layer_types": [SLIDING] * 3}, "use_sliding_window and a sliding_window where"),
        ({**WINDOW, "layer_types": [SLIDING] * 5, "sliding_window": None}, "got none in force"),
        ({"rope_theta": None}, "lacks the field 'rope_theta'"),
    ],
)
def test_contradictions_of_qwen2_are_refused_in_one_line(change, says):
    with pytest.raises(InputError, match=says) as caught:
        Qwen2MoeConfig.from_dict({**QWEN2, **change})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"intermediate_size": None}, "lacks the field 'intermediate_size'"),
        ({"intermediate_size": 0}, "intermediate_size to be at least 1"),
        ({"num_experts": None}, "lacks the field 'num_experts'"),
        ({"clip_qkv": 0}, "clip_qkv null or above 0, got 0"),
        ({"clip_qkv": "8"}, "'clip_qkv' as .*float.*, got '8'"),
        ({"attention_bias": True}, "attention_bias false for olmoe"),
        ({"sliding_window": 8}, "no sliding_window for olmoe, got 8"),
    ],
)
def test_contradictions_of_olmoe_are_refused_in_one_line(change, says):
    with pytest.raises(InputError, match=says) as caught:
        OlmoeConfig.from_dict({**OLMOE, **change})
    assert "\n" not in str(caught.value)


def test_the_shared_expert_is_scaled_by_a_sigmoid_of_its_own():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(4, 6)), jnp.float32)
    layer = GatedMLP(6, 5, dtype=jnp.float32, rngs=nnx.Rngs(0))
    gate, up, down = (
        np.asarray(part.weight[...]) for part in (layer.gate_proj, layer.up_proj, layer.down_proj)
    )
    share = 1 / (1 + np.exp(-x @ np.asarray(layer.gate.weight[...]).T))
    expected = share * ((jax.nn.silu(x @ gate.T) * (x @ up.T)) @ down.T)
    assert share.shape == (4, 1)
    np.testing.assert_allclose(layer(x), expected, atol=1e-6)
