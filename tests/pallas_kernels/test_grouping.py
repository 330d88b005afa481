"""Rows by expert and their blocks."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lynx_jax.pallas_kernels.grouping import blocks_of_groups, max_blocks, pairs_by_expert


@settings(max_examples=12, deadline=None)
@given(st.lists(st.integers(0, 20), min_size=1, max_size=9), st.integers(0, 30), st.integers(1, 8))
@example([1] * 9, 0, 8)
@example([0, 8, 0, 9], 0, 8)
@example([0], 1, 8)
def test_every_place_is_in_one_block_of_its_group(sizes, more, size):
    places = max(sum(sizes) + more, 1)
    found = blocks_of_groups(jnp.asarray(sizes, jnp.int32), places, size)
    blocks = jax.tree.map(np.asarray, found)
    assert len(blocks.group) == max_blocks(len(sizes), places, size)
    held = [
        (blocks.group[block], blocks.first[block] + i, size * block + i)
        for block in range(blocks.in_use)
        for i in range(size)
    ]
    ends = np.cumsum(sizes)
    wanted = [
        (group, place, place + blocks.shift[group])
        for group, end in enumerate(ends)
        for place in range(end - sizes[group], end)
    ]
    assert [place for place in held if place[1] < ends[place[0]]] == wanted


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=10, deadline=None)
def test_pairs_are_ordered_by_expert(seed):
    rng = np.random.default_rng(seed)
    ids = rng.permuted(np.tile(np.arange(5), (7, 1)), axis=1)[:, :3]
    live = rng.random(7) < 0.7
    pairs = jax.tree.map(np.asarray, pairs_by_expert(jnp.asarray(ids), jnp.asarray(live), 5))
    chosen = ids[live].ravel()
    np.testing.assert_array_equal(pairs.sizes, np.bincount(chosen, minlength=5))
    np.testing.assert_array_equal(ids.ravel()[pairs.order[: len(chosen)]], np.sort(chosen))
    np.testing.assert_array_equal(pairs.expert == 5, np.repeat(~live, 3))
