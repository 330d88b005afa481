"""Reading config.json in all its forms, and refusing what cannot be right."""

import pytest

from lynx_jax.errors import InputError
from lynx_jax.models import MixtralConfig, Qwen3MoeConfig, get_family
from lynx_jax.models.rope import Rope

MIXTRAL = {
    "model_type": "mixtral",
    "vocab_size": 97,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e6,
    "num_experts_per_tok": 2,
    "num_local_experts": 8,
    "intermediate_size": 48,
    "torch_dtype": "bfloat16",
    "hidden_act": "silu",
}
QWEN3 = {
    **{name: value for name, value in MIXTRAL.items() if name != "num_local_experts"},
    "model_type": "qwen3_moe",
    "head_dim": 16,
    "num_experts": 12,
    "moe_intermediate_size": 20,
    "norm_topk_prob": True,
}


def without(config, *names):
    return {name: value for name, value in config.items() if name not in names}


def test_mixtral_fields():
    config = MixtralConfig.from_dict(MIXTRAL)
    assert (config.num_experts, config.head_dim, config.sliding_window) == (8, 8, None)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_theta": 1e4},
        {"rope_theta": 10000, "rope_scaling": None},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
        {"rope_parameters": {"type": "default", "rope_theta": 1e4}, "rope_theta": 5.0},
        {"rope_theta": 1e4, "rope_scaling": {"type": "default"}},
    ],
)
def test_rope_theta_in_old_and_new_fields(rope):
    config = MixtralConfig.from_dict({**without(MIXTRAL, "rope_theta"), **rope})
    assert config.rope == Rope(1e4)


def test_qwen3_sliding_window_only_when_in_use():
    window = {**QWEN3, "sliding_window": 32}
    assert Qwen3MoeConfig.from_dict(window).sliding_window is None
    assert Qwen3MoeConfig.from_dict({**window, "use_sliding_window": True}).sliding_window == 32


def test_qwen3_number_of_experts_under_either_name():
    raw = {**without(QWEN3, "num_experts"), "num_local_experts": 12}
    assert Qwen3MoeConfig.from_dict(raw) == Qwen3MoeConfig.from_dict(QWEN3)


def test_qwen3_layer_pattern():
    raw = {**QWEN3, "num_hidden_layers": 6, "decoder_sparse_step": 2, "mlp_only_layers": [3]}
    config = Qwen3MoeConfig.from_dict(raw)
    assert [config.is_sparse(i) for i in range(6)] == [False, True, False, False, False, True]


NEEDED = ["vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
          "num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "rope_theta",
          "num_experts_per_tok"]  # fmt: skip


@pytest.mark.parametrize("name", [*NEEDED, "num_local_experts", "intermediate_size"])
def test_mixtral_needs_its_fields(name):
    with pytest.raises(InputError, match=f"lacks the field '{name}'"):
        MixtralConfig.from_dict(without(MIXTRAL, name))


@pytest.mark.parametrize(
    "name", [*NEEDED, "num_experts", "moe_intermediate_size", "norm_topk_prob"]
)
def test_qwen3_needs_its_fields(name):
    with pytest.raises(InputError, match=f"lacks the field '{name}'"):
        Qwen3MoeConfig.from_dict(without(QWEN3, name))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"vocab_size": "97"}, "expected 'vocab_size' as int, got '97'"),
        ({"vocab_size": True}, "expected 'vocab_size' as int"),
        ({"hidden_size": 0}, "hidden_size to be at least 1"),
        ({"num_key_value_heads": 3}, "multiple of num_key_value_heads"),
        ({"num_experts_per_tok": 13}, "num_experts_per_tok from 1 to the layer's 12"),
        ({"head_dim": 15}, "an even head_dim"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}, "rope type 'dynamic'"),
        ({"attention_bias": True}, "attention_bias false"),
        ({"mlp_only_layers": [0], "intermediate_size": None}, "intermediate_size"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"rms_norm_eps": "tiny"}, "rms_norm_eps"),
        ({"rms_norm_eps": float("nan")}, "a finite rms_norm_eps above 0, got nan"),
        ({"rope_theta": -1.0, "rope_parameters": None}, "a finite rope_theta above 0"),
        ({"rope_theta": "x", "rope_parameters": None}, "'rope_theta' as float, got 'x'"),
        ({"rope_parameters": "x"}, "'rope_parameters' as an object, got 'x'"),
        ({"rope_parameters": {"rope_theta": [1]}}, "'rope_theta' as float"),
        ({"num_attention_heads": 0, "head_dim": None}, "lacks the field 'head_dim'"),
        ({"num_attention_heads": "4", "head_dim": None}, "'num_attention_heads' as int"),
        ({"hidden_size": 10**30}, "hidden_size below 2147483648"),
        ({"sliding_window": 0, "use_sliding_window": True}, "sliding_window"),
    ],
)
def test_contradictions_are_refused_in_one_line(change, says):
    with pytest.raises(InputError, match=says) as caught:
        Qwen3MoeConfig.from_dict({**QWEN3, **change})
    assert "\n" not in str(caught.value)


def test_unknown_model_type_lists_the_known():
    with pytest.raises(
        InputError, match=r"'gpt2' is not supported; expected one of .*mixtral, .*qwen3"
    ):
        get_family("gpt2")
