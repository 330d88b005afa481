"""config.json of DeepSeek-V2 and V3: rules derived from it, and what is refused."""

import math

import pytest

from lynx_jax.errors import InputError
from lynx_jax.models import DeepseekV2Config, DeepseekV3Config
from lynx_jax.routers import Router

YARN = {
    "type": "yarn",
    "factor": 40,
    "original_max_position_embeddings": 4096,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 0.707,
    "mscale_all_dim": 0.707,
}
_BOTH = {
    "vocab_size": 97,
    "hidden_size": 30,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "kv_lora_rank": 13,
    "q_lora_rank": 9,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 10,
    "v_head_dim": 7,
    "intermediate_size": 40,
    "moe_intermediate_size": 11,
    "n_routed_experts": 12,
    "num_experts_per_tok": 4,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "routed_scaling_factor": 2.5,
    "max_position_embeddings": 163840,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000,
    "rope_scaling": YARN,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
}
V2 = _BOTH | {
    "model_type": "deepseek_v2",
    "scoring_func": "softmax",
    "topk_method": "group_limited_greedy",
    "n_group": 4,
    "topk_group": 2,
    "norm_topk_prob": False,
}
V3 = _BOTH | {
    "model_type": "deepseek_v3",
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "n_group": 4,
    "topk_group": 2,
    "norm_topk_prob": True,
    "num_nextn_predict_layers": 1,
}
CONFIGS = {"deepseek_v2": (DeepseekV2Config, V2), "deepseek_v3": (DeepseekV3Config, V3)}
BOTH = sorted(CONFIGS)


def read(model_type, **changes):
    """The config of a family with some fields changed; None for those that are not there."""
    config_class, raw = CONFIGS[model_type]
    return config_class.from_dict(raw | changes)


def test_routers():
    assert read("deepseek_v2").router == Router("softmax", "keep_sum", 2.5, 4, 2)
    greedy = read("deepseek_v2", topk_method="greedy", topk_group=7).router
    assert greedy == Router("softmax", "keep_sum", 2.5)
    v3 = read("deepseek_v3")
    assert v3.router == Router("sigmoid", "renormalize", 2.5, 4, 2, "top2")
    assert read("deepseek_v3", norm_topk_prob=False).router.weights == "keep_sum"


def test_rules_of_a_config_that_does_not_name_them():
    lite = read("deepseek_v2", scoring_func=None, topk_method=None, n_group=None, topk_group=None)
    assert lite.router == Router("softmax", "keep_sum", 2.5)
    assert read("deepseek_v3", scoring_func=None, topk_method=None) == read("deepseek_v3")


@pytest.mark.parametrize(
    ("scaling", "factor"),
    [(YARN, 1.58963), (YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}, 1.87385), (None, 1.0)],
)
def test_softmax_scale_of_published_configs(scaling, factor):
    dims = {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rope_scaling": scaling}
    config = read("deepseek_v3", **dims)
    assert config.softmax_scale == pytest.approx(factor / math.sqrt(192), rel=1e-5)
    assert config.rope.magnitude == 1.0


def test_layer_pattern():
    config = read("deepseek_v2", num_hidden_layers=8, first_k_dense_replace=3, moe_layer_freq=2)
    assert [i for i in range(8) if config.is_sparse(i)] == [4, 6]


def test_form_of_transformers_5():
    raw = {k: v for k, v in V3.items() if k not in ("rope_theta", "rope_scaling", "torch_dtype")}
    yarn = {"rope_type" if k == "type" else k: v for k, v in YARN.items()}
    raw |= {"rope_parameters": yarn | {"rope_theta": 10000.0}, "head_dim": 10, "qk_head_dim": 18}
    assert DeepseekV3Config.from_dict(raw) == read("deepseek_v3")


NEEDED = ["kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "rope_theta",
          "intermediate_size", "moe_intermediate_size", "n_routed_experts", "n_shared_experts",
          "num_experts_per_tok", "first_k_dense_replace"]  # fmt: skip


@pytest.mark.parametrize("name", NEEDED)
@pytest.mark.parametrize("model_type", BOTH)
def test_needed_fields(model_type, name):
    with pytest.raises(InputError, match=f"lacks the field '{name}'"):
        read(model_type, **{name: None})


@pytest.mark.parametrize("name", ["n_group", "topk_group", "norm_topk_prob"])
def test_fields_that_only_v3_needs(name):
    with pytest.raises(InputError, match=f"lacks the field '{name}'"):
        read("deepseek_v3", **{name: None})


@pytest.mark.parametrize("model_type", BOTH)
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"n_group": 5}, "divides the 12 experts"),
        ({"n_group": 0}, "groups"),
        ({"topk_group": 5}, "from 1 to groups=4"),
        ({"topk_group": 0}, "from 1 to groups=4"),
        ({"topk_group": 1}, "kept groups that hold k=4"),
        ({"scoring_func": "tanh"}, "scoring_func"),
        ({"topk_method": "random"}, "topk_method"),
        ({"num_key_value_heads": 3}, "num_key_value_heads 6"),
        ({"q_lora_rank": 0}, "q_lora_rank null or at least 1"),
        ({"q_lora_rank": "9"}, "'q_lora_rank' as int"),
        ({"kv_lora_rank": 0}, "kv_lora_rank to be at least 1"),
        ({"qk_rope_head_dim": 9}, "even head_dim"),
        ({"moe_layer_freq": 0}, "moe_layer_freq"),
        ({"first_k_dense_replace": -1}, "first_k_dense_replace"),
        ({"n_shared_experts": 0}, "n_shared_experts"),
        ({"routed_scaling_factor": 0.0}, "routed_scaling_factor"),
        ({"attention_bias": True}, "attention_bias false"),
        ({"rope_scaling": YARN | {"type": "spiral"}}, "'spiral'"),
    ],
)
def test_contradictions_are_refused_in_one_line(model_type, change, says):
    with pytest.raises(InputError, match=says) as caught:
        read(model_type, **change)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("model_type", "change", "says"),
    [
        ("deepseek_v2", {"scoring_func": "sigmoid"}, "scoring_func 'softmax' for deepseek_v2"),
        ("deepseek_v2", {"topk_method": "noaux_tc"}, "topk_method 'greedy' or"),
        ("deepseek_v2", {"norm_topk_prob": True}, "norm_topk_prob false for deepseek_v2"),
        ("deepseek_v3", {"scoring_func": "softmax"}, "scoring_func 'sigmoid' for deepseek_v3"),
        ("deepseek_v3", {"topk_method": "greedy"}, "topk_method 'noaux_tc' for deepseek_v3"),
        ("deepseek_v3", {"n_group": 12, "topk_group": 4}, "groups of at least 2"),
    ],
)
def test_rules_that_contradict_the_family(model_type, change, says):
    with pytest.raises(InputError, match=says):
        read(model_type, **change)
