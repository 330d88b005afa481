"""Binning, scoring, top-k and compaction on their own."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lynx_jax.pallas_kernels.binning import affinity_binning
from lynx_jax.pallas_kernels.remapping import compact, critical_set, expert_union, remap
from lynx_jax.pallas_kernels.scoring import adaptive_expert_scores, vote_levels
from lynx_jax.pallas_kernels.topk import top_k, top_k_lexicographic


def test_bins_are_ceilings_clamped():
    logits = jnp.array([[5.0, 4.9, 4.5, 4.0, 3.9, -9.0, -jnp.inf]])
    np.testing.assert_array_equal(
        affinity_binning(logits, alpha=2.0, beta=3), [[0, 0, -1, -2, -2, -3, -3]]
    )


def test_bins_ignore_a_constant_added_to_a_row():
    logits = jnp.asarray(np.random.default_rng(0).integers(-8, 8, (4, 12)), jnp.float32)
    shifted = logits + jnp.array([[0.0], [1.0], [-2.0], [64.0]])
    np.testing.assert_array_equal(
        affinity_binning(logits, 0.5, 4), affinity_binning(shifted, 0.5, 4)
    )


def test_scores_by_hand():
    # Three live rows, B = 3, beta = 1: a vote in bin 0 counts 3 ninths, one in bin -1 counts 1.
    bins = jnp.array([[0, -1, -1], [0, 0, -1], [-1, 0, -1], [0, 0, 0]])
    live = jnp.array([True, True, True, False])
    scores = adaptive_expert_scores(bins, live, beta=1)[:3]
    np.testing.assert_array_equal(
        scores, [[4, -9 + 6, -9 + 2], [4, 4, -9 + 2], [-9 + 6, 4, -9 + 2]]
    )


@given(st.integers(1, 300), st.integers(1, 8))
@settings(max_examples=200, deadline=None)
def test_votes_never_overflow_and_never_outweigh_a_bin(rows, beta):
    levels = vote_levels(rows, beta)
    unit = max(rows, 2) ** (levels + 1)
    largest_popularity = (rows - 1) * rows**levels
    assert 0 <= levels <= beta
    assert levels == 0 or beta * unit < 2**31
    assert largest_popularity < unit


@pytest.mark.parametrize("rows", [2, 16, 64, 200])
def test_scores_order_by_bin_first(rows):
    rng = np.random.default_rng(rows)
    bins = -rng.integers(0, 5, (rows, 32))
    scores = np.asarray(adaptive_expert_scores(jnp.asarray(bins), jnp.ones(rows, bool), beta=4))
    for row_bins, row_scores in zip(bins, scores, strict=True):
        assert (np.diff(row_bins[np.argsort(-row_scores)]) <= 0).all()


def test_top_k_ties_go_to_the_lower_index():
    np.testing.assert_array_equal(top_k(jnp.array([[1.0, 2.0, 2.0, -0.0, 0.0]]), 4), [[1, 2, 0, 3]])


def test_top_k_lexicographic_breaks_ties_by_the_second_score_then_index():
    primary = jnp.array([[1, 1, 1, 2, 1]])
    secondary = jnp.array([[0.5, 3.0, 0.5, -7.0, 3.0]])
    np.testing.assert_array_equal(top_k_lexicographic(primary, secondary, 4), [[3, 1, 4, 0]])


def test_compact_lists_members_in_order():
    ids, count = compact(jnp.array([False, True, False, True, True]))
    np.testing.assert_array_equal(ids, [1, 3, 4, 0, 0])
    assert int(count) == 3


def test_remap_keeps_the_rows_own_order():
    choice = jnp.array([[0.1, 0.9, 0.5, 0.7], [0.9, 0.2, 0.1, 0.3]])
    survivors = jnp.array([True, False, True, True])
    np.testing.assert_array_equal(remap(choice, survivors, 2), [[3, 2], [0, 3]])


def test_union_and_critical_set_leave_out_rows_that_are_not_live():
    ids, live = jnp.array([[0, 1], [2, 3]]), jnp.array([True, False])
    np.testing.assert_array_equal(expert_union(ids, live, 5), [True, True, False, False, False])
    scores = jnp.array([[2, 1, 0, 0], [0, 0, 0, 2]])
    logits = jnp.array([[3.0, 2.0, 1.0, 0.0], [0.0, 1.0, 2.0, 3.0]])
    kept = critical_set(scores, logits, live, k=2, floor=1)
    np.testing.assert_array_equal(kept, [True, True, False, False])
