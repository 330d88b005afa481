"""What no family takes: every config.json of tests/golden with one thing wrong, in one line."""

import json

import pytest

from lynx_jax.errors import InputError
from lynx_jax.models import get_family
from tests.models.golden import CASES, GOLDEN

SLIMMOE = {
    "AutoConfig": "configuration_slimmoe.PhiMoEConfig",
    "AutoModelForCausalLM": "modeling_slimmoe.PhiMoEForCausalLM",
}


def published():
    """config.json of one golden checkpoint a family, or the text part of it."""
    found = {}
    for case in CASES.values():
        raw = json.loads((GOLDEN / case["folder"] / "config.json").read_text())
        raw = raw.get("text_config", raw) | {"model_type": raw["model_type"]}
        found.setdefault(raw["model_type"], raw)
    return found


FAMILIES = published()


def read(raw):
    return get_family(raw["model_type"]).config_class.from_dict(raw)


def experts_field(raw):
    names = ("n_routed_experts", "num_local_experts", "num_experts")
    return next(name for name in names if name in raw)


def rope(raw, **changes):
    return {"rope_parameters": raw["rope_parameters"] | changes}


WRONG = {
    "no base of the rope": (lambda raw: rope(raw, rope_theta=None), "lacks the field 'rope_theta'"),
    "base of the rope as text": (lambda raw: rope(raw, rope_theta="1e4"), "'rope_theta' as float"),
    "no such rope": (lambda raw: rope(raw, rope_type="spiral"), "rope type 'spiral'"),
    "two ropes": (
        lambda raw: {"rope_scaling": {"type": "linear", "factor": 2.0}},
        "expected one rope type, got ",
    ),
    "half a rope": (lambda raw: rope(raw, partial_rotary_factor=0.5), "partial_rotary_factor 1"),
    "no choice": (lambda raw: {"num_experts_per_tok": 0}, "num_experts_per_tok to be at least 1"),
    "more chosen than there are": (
        lambda raw: {"num_experts_per_tok": raw[experts_field(raw)] + 1},
        "num_experts_per_tok",
    ),
    "no number of experts": (lambda raw: {experts_field(raw): None}, "lacks the field '.*experts'"),
    "unknown score": (lambda raw: {"scoring_func": "tanh"}, "scoring_func .*got 'tanh'"),
    "unknown choice": (lambda raw: {"topk_method": "noaux_9"}, "topk_method .*got 'noaux_9'"),
    "groups of unequal size": (
        lambda raw: {"n_group": raw[experts_field(raw)] - 1},
        "n_group 1 for|no n_group but 1|divides the",
    ),
    "odd heads": (lambda raw: {"num_key_value_heads": 5}, "num_key_value_heads"),
    "unknown activation": (lambda raw: {"hidden_act": "gelu"}, "hidden_act 'silu', got 'gelu'"),
    "code of another architecture": (lambda raw: {"auto_map": SLIMMOE}, "auto_map .*got .*slimmoe"),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("model_type", FAMILIES)
def test_one_thing_wrong_is_refused_in_one_line(model_type, wrong):
    raw = FAMILIES[model_type]
    change, says = WRONG[wrong]
    read(raw)
    with pytest.raises(InputError, match=says) as caught:
        read(raw | change(raw))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("model_type", FAMILIES)
def test_fields_that_change_nothing_are_taken(model_type):
    """Plain routing written out, and code that comes with the published checkpoints."""
    raw = FAMILIES[model_type]
    own = {name: raw[name] for name in ("n_group", "topk_group", "scoring_func") if name in raw}
    code = {"AutoModelForCausalLM": "modeling_deepseek.DeepseekForCausalLM", "AutoTokenizer": ["a"]}
    plain = {"n_group": 1, "topk_group": 1} | own | {"auto_map": code}
    assert read(raw | plain) == read(raw)
