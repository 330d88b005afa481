"""Log-likelihoods by prefill and by decode, against step-by-step passes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lynx_jax.evaluation.likelihood import decode_scorer, prefill_scorer
from lynx_jax.policies import Lynx, TopK
from tests.models.golden import decode, load

PAIRS = [
    ((3, 9, 27), (81, 5)),
    ((4,), (16, 64, 1, 2)),
    ((5, 25, 125, 6, 7, 8, 9), (11,)),
    ((100, 101), (102, 103, 104)),
]


@pytest.fixture(scope="module")
def model():
    return load("qwen3_moe", "reference").model


def step_by_step(model):
    """Plain top-k through the cache, all pairs beside one another."""
    sequences = [(*context, *continuation) for context, continuation in PAIRS]
    ids = np.zeros((len(PAIRS), 16), np.int32)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = sequence
    logits = np.asarray(
        jax.nn.log_softmax(decode(model, jnp.asarray(ids), np.ones(len(ids), bool)))
    )
    found = []
    for row, (context, continuation) in enumerate(PAIRS):
        rows = logits[row, len(context) - 1 : len(sequences[row]) - 1]
        chosen = [rows[i, token] for i, token in enumerate(continuation)]
        found.append((sum(chosen), all(r.max() == c for r, c in zip(rows, chosen, strict=True))))
    return found


@pytest.mark.parametrize("kind", ["prefill", "decode"])
def test_scores_equal_decoding_step_by_step(model, kind):
    scorer = prefill_scorer(model) if kind == "prefill" else decode_scorer(model, TopK())
    for (score, greedy), (wanted, likeliest) in zip(
        scorer(PAIRS, 5), step_by_step(model), strict=True
    ):
        assert score == pytest.approx(wanted, abs=1e-4)
        assert greedy == likeliest


def test_a_policy_acts_on_decode_scores(model):
    plain, remapped = (decode_scorer(model, p)(PAIRS, 5) for p in (TopK(), Lynx(0.5, 1)))
    assert [score for score, _ in plain] != [score for score, _ in remapped]


def test_a_likeliest_continuation_is_known_as_one(model):
    logits = decode(model, jnp.asarray([[7, 8]] * 5), np.ones(5, bool))
    best = int(jnp.argmax(logits[0, -1]))
    other = int(jnp.argmin(logits[0, -1]))
    found = prefill_scorer(model)([((7, 8), (best,)), ((7, 8), (other,))], 5)
    assert [greedy for _, greedy in found] == [True, False]
