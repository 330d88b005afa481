"""Changes to a saved config.json: the forms of older versions and of published files."""

from typing import Any


def old_fields(config: dict[str, Any]) -> None:
    """The form of transformers 4: rope_theta and torch_dtype."""
    config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
    config["torch_dtype"] = config.pop("dtype")
    config["transformers_version"] = "4.51.0"


def old_mixtral(config: dict[str, Any]) -> None:
    old_fields(config)
    config["sliding_window"] = None


def old_qwen3(config: dict[str, Any]) -> None:
    """As published: a window that is not in use, and an explicit absence of rope scaling.

    Transformers 5 writes ``num_local_experts``, where the published files have ``num_experts``.
    """
    old_fields(config)
    config["num_experts"] = config.pop("num_local_experts")
    config |= {
        "rope_scaling": None,
        "sliding_window": 4,
        "use_sliding_window": False,
        "max_window_layers": 4,
    }


def old_qwen3_vl(config: dict[str, Any]) -> None:
    """As published: the text part says nothing of ties."""
    text = config["text_config"]
    text["rope_scaling"] = rope = text.pop("rope_parameters")
    text["rope_theta"] = rope.pop("rope_theta")
    text["num_experts"] = text.pop("num_local_experts")
    text["norm_topk_prob"] = True
    del text["tie_word_embeddings"]
    config["transformers_version"] = "4.57.0"


def old_deepseek_v3(config: dict[str, Any]) -> None:
    """As published: scaling beside the base, and the rule of the router named."""
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = {"type": rope.pop("rope_type"), **rope}
    config["torch_dtype"] = config.pop("dtype")
    for name in ("head_dim", "qk_head_dim", "rope_interleave"):
        config.pop(name, None)
    config |= {
        "transformers_version": "4.33.1",
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "moe_layer_freq": 1,
        "ep_size": 1,
        "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"},
    }


def old_qwen2(config: dict[str, Any]) -> None:
    """As published: no types of layers, and a window that is not in use."""
    old_fields(config)
    config |= {"use_sliding_window": False, "max_window_layers": 3}
    for name in ("layer_types", "qkv_bias"):
        del config[name]


def old_olmoe(config: dict[str, Any]) -> None:
    """As published: nothing is clipped, and no rope is scaled."""
    old_fields(config)
    config |= {"clip_qkv": None, "rope_scaling": None}


def old_phimoe(config: dict[str, Any]) -> None:
    """As published: scaling beside the base, its original context outside, code in the folder."""
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["original_max_position_embeddings"] = rope["original_max_position_embeddings"]
    config["rope_scaling"] = {"type": rope.pop("rope_type"), **rope}
    config["torch_dtype"] = config.pop("dtype")
    config["transformers_version"] = "4.43.3"
    config["auto_map"] = {"AutoConfig": "configuration_phimoe.PhiMoEConfig"}


def short_window(config: dict[str, Any]) -> None:
    config["sliding_window"] = 7


def unnormalized(config: dict[str, Any]) -> None:
    config["norm_topk_prob"] = False


def old_scaling(config: dict[str, Any]) -> None:
    """As published: rope scaling beside the base."""
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = rope
    config["torch_dtype"] = config.pop("dtype")


def old_llama4(config: dict[str, Any]) -> None:
    """Without what the published files leave to the defaults."""
    old_scaling(config)
    for name in ("layer_types", "moe_layers", "no_rope_layers", "attn_temperature_tuning"):
        del config[name]


def old_gpt_oss(config: dict[str, Any]) -> None:
    old_scaling(config)
    for name in ("layer_types", "swiglu_alpha"):
        del config[name]
