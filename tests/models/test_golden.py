"""Parity with the transformers library in float32, for every family and stored form."""

import jax
import numpy as np
import pytest
from flax import nnx

from tests.models.golden import CASES, decode, expected, full_pass, load

BACKENDS = ["loop", "reference"]
TOLERANCE = 1e-4
WITH_ROWS_TO_IGNORE = [
    *((case, b) for case in ("mixtral", "qwen3_moe_dense", "deepseek_v3") for b in BACKENDS),
    ("gpt_oss", "loop"),
    ("llama4", "loop"),
]


def logits_of(case, backend, **how):
    return full_pass(load(case, backend).model, expected(case)["input_ids"], **how).logits


def assert_close(found, wanted, what):
    np.testing.assert_allclose(found, wanted, rtol=0, atol=TOLERANCE, err_msg=what)


def clear_choices(block, router_logits):
    """Tokens whose k-th and next best scores are more than 1e-6 apart."""
    bias = None if block.selection_bias is None else block.selection_bias[...]
    flat = router_logits.reshape(-1, router_logits.shape[-1])
    choice = np.sort(np.asarray(block.router.scores(flat, bias).choice), axis=-1)
    clear = choice[:, -block.k] - choice[:, -block.k - 1] > 1e-6
    return clear.reshape(router_logits.shape[:-1])


def by_expert(ids, values):
    """``values`` in the order of ascending ids."""
    return np.take_along_axis(np.asarray(values), np.argsort(ids, axis=-1), axis=-1)


# What another config.json says does not depend on the backend.
@pytest.mark.parametrize(
    ("case", "backend"),
    [(c, b) for c in CASES for b in BACKENDS if b == "reference" or not c.endswith("_old_config")],
)
def test_every_layer_equals_the_reference(case, backend):
    want = expected(case)
    model = load(case, backend).model
    found = full_pass(model, want["input_ids"])
    sparse = {int(name.split(".")[1]) for name in want if name.startswith("router_logits")}
    assert found.routings.keys() == sparse
    for i, hidden in enumerate(found.hidden):
        if i in sparse:
            router_logits = want[f"router_logits.{i}"]
            assert_close(found.routings[i].router_logits, router_logits, f"router of layer {i}")
            assert_same_experts(model.layers[i].mlp, found.routings[i].routing, want, i)
        assert_close(hidden, want[f"hidden.{i}"], f"stream behind layer {i}")
    assert_close(found.logits, want["logits"], "logits")


def assert_same_experts(block, routing, want, layer):
    ids, weights = want[f"expert_ids.{layer}"], want[f"expert_weights.{layer}"]
    found_ids = np.asarray(routing.ids).reshape(ids.shape)
    found_weights = np.asarray(routing.weights).reshape(weights.shape)
    clear = clear_choices(block, want[f"router_logits.{layer}"])
    assert clear.mean() > 0.9
    np.testing.assert_array_equal(np.sort(found_ids)[clear], np.sort(ids)[clear])
    np.testing.assert_allclose(
        by_expert(found_ids, found_weights)[clear], by_expert(ids, weights)[clear], atol=1e-5
    )


@pytest.mark.parametrize(
    ("case", "backend"),
    [
        ("mixtral", "loop"),
        ("mixtral", "reference"),
        ("mixtral_window", "loop"),
        ("qwen3_moe", "loop"),
        ("qwen3_moe_dense", "loop"),
        ("qwen3_moe_dense", "reference"),
        ("qwen3_moe_60", "loop"),
        ("qwen3_vl_moe", "loop"),
        ("deepseek_v2", "loop"),
        ("deepseek_v2_lite", "reference"),
        ("deepseek_v3", "loop"),
        ("qwen2_moe", "loop"),
        ("olmoe", "loop"),
        ("phimoe", "loop"),
        ("llama4", "loop"),
        ("gpt_oss", "loop"),
    ],
)
def test_decoding_through_the_cache_equals_the_reference(case, backend):
    ids = expected(case)["input_ids"]
    found = decode(load(case, backend).model, ids, np.ones(len(ids), bool))
    assert_close(found, expected(case)["logits"], "logits")
    assert_close(found, logits_of(case, backend), "logits of one pass")


@pytest.mark.parametrize(("case", "backend"), WITH_ROWS_TO_IGNORE)
def test_padding_on_the_right_changes_nothing(case, backend):
    ids = expected(case)["input_ids"]
    live = np.arange(ids.shape[1]) < np.array([[18], [7], [1], [12], [17]])
    padded = np.where(live, ids, 3)
    found = full_pass(load(case, backend).model, padded, live).logits
    assert_close(np.asarray(found)[live], expected(case)["logits"][live], "live logits")


@pytest.mark.parametrize(("case", "backend"), WITH_ROWS_TO_IGNORE)
def test_dead_rows_change_nothing(case, backend):
    ids = expected(case)["input_ids"].copy()
    live = np.array([True, False, True, True, False])
    ids[~live] = 5
    found = np.asarray(decode(load(case, backend).model, ids, live))
    assert_close(found[live], expected(case)["logits"][live], "live logits")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("mixtral", "mixtral_fused"),
        ("mixtral", "mixtral_old_config"),
        ("qwen3_moe", "qwen3_moe_fused"),
        ("qwen3_moe", "qwen3_moe_old_config"),
        ("qwen3_vl_moe", "qwen3_vl_moe_fused"),
        ("qwen3_vl_moe", "qwen3_vl_moe_old_config"),
        ("deepseek_v3", "deepseek_v3_old_config"),
    ],
)
def test_all_forms_load_to_the_same_parameters(first, second, backend):
    a, b = load(first, backend), load(second, backend)
    assert a.config == b.config
    (a_leaves, a_tree), (b_leaves, b_tree) = (
        jax.tree.flatten(nnx.state(loaded.model)) for loaded in (a, b)
    )
    assert a_tree == b_tree
    assert len(a_leaves) > 30
    for x, y in zip(a_leaves, b_leaves, strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize(
    ("case", "eos"),
    [("mixtral", {2}), ("qwen3_moe", {0, 2}), ("gpt_oss", {0, 2}), ("llama4", {2, 3})],
)
def test_end_of_text_ids_of_all_files(case, eos):
    assert load(case, "reference").eos_token_ids == eos
