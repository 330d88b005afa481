"""Rows that chose an expert, ordered by expert and cut into blocks of one expert each."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


class Pairs(NamedTuple):
    """Pairs of a row and an expert that it chose.

    Attributes:
      order: int32 indices into flattened ids, by expert; those of rows that are not live last.
      expert: int32 expert of each index, before the ordering; N where the row is not live.
      sizes: int32 pairs of each expert.
    """

    order: Int[Array, " pairs"]
    expert: Int[Array, " pairs"]
    sizes: Int[Array, " experts"]


class Blocks(NamedTuple):
    """Groups of consecutive places, cut into blocks of equal size.

    Attributes:
      group: int32, which group a block belongs to.
      first: int32, its first place; it may reach beyond the end of its group.
      in_use: int32, how many blocks there are; what follows them is arbitrary.
      shift: int32, for each group: what to add to a place for its index among all blocks' places.
    """

    group: Int[Array, " blocks"]
    first: Int[Array, " blocks"]
    in_use: Int[Array, ""]
    shift: Int[Array, " groups"]


def pairs_by_expert(
    ids: Int[Array, "rows k"], live: Bool[Array, " rows"], num_experts: int
) -> Pairs:
    """The pairs of all rows.

    Args:
      ids: k distinct experts a row.
      live: rows that count.
      num_experts: N.
    """
    expert = jnp.where(live[:, None], ids, num_experts).reshape(-1)
    sizes = jnp.sum(expert[:, None] == jnp.arange(num_experts), axis=0, dtype=jnp.int32)
    return Pairs(jnp.argsort(expert), expert, sizes)


def max_blocks(groups: int, places: int, size: int) -> int:
    """How many blocks there are at most; a group in use may lack size - 1 places in its last."""
    return (places + (size - 1) * min(groups, places)) // size


def blocks_of_groups(sizes: Int[Array, " groups"], places: int, size: int) -> Blocks:
    """Blocks of ``size`` places.

    Args:
      sizes: int32 places of each group; the groups follow one another.
      places: at least their sum; static.
      size: static.
    """
    blocks = -(-sizes // size)
    last = jnp.cumsum(blocks)
    shift = size * (last - blocks) - (jnp.cumsum(sizes) - sizes)
    block = jnp.arange(max_blocks(len(sizes), places, size), dtype=jnp.int32)
    group = jnp.searchsorted(last, block, side="right", method="compare_all")
    group = jnp.minimum(group, len(sizes) - 1)
    return Blocks(group, size * block - shift[group], last[-1], shift)
