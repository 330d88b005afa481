"""What a warpgroup does with a tile of router rows: one row a warp, its experts over the lanes.

A tile is [R, N] with R = 4 rows and N a multiple of 32 experts, N / 32 registers a thread. What a
row needs (its largest score, its k-th choice) then stays inside one warp; integers are reduced
there by one instruction. Choices are therefore made on integers that order as the scores do.

Axes in comments: R rows of a tile, N experts, W warpgroups of a block.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.typing import DTypeLike
from jaxtyping import Array

ROWS, LANES = 4, 32

TILE = plgpu.Layout.TILED(
    plgpu.Tiling(((ROWS, LANES), (1,))), warp_dims=(-3,), lane_dims=(-2,), vector_dim=-1
)
PER_ROW = TILE.reduce(1)
PER_EXPERT = TILE.reduce(0)

COMPILER_PARAMS = plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Lane)

# Below every key of a float: an expert taken already, or not to be taken.
NEVER = -(2**31)


def load_tile(ref: Any) -> Array:
    """[R, N] of a reference to R rows."""
    loaded: Array = plgpu.load(ref, layout=TILE, optimized=False)
    return loaded


def load_per_row(ref: Any) -> Array:
    """[R], a value a warp."""
    loaded: Array = plgpu.load(ref, layout=PER_ROW, optimized=False)
    return loaded


def load_per_expert(ref: Any) -> Array:
    """[N], the same in every warp."""
    loaded: Array = plgpu.load(ref, layout=PER_EXPERT, optimized=False)
    return loaded


def along_experts(x: Array, experts: int) -> Array:
    """[R] to [R, N]."""
    spread: Array = plgpu.layout_cast(lax.broadcast_in_dim(x, (ROWS, experts), (0,)), TILE)
    return spread


def along_rows(x: Array) -> Array:
    """[N] to [R, N]."""
    spread: Array = plgpu.layout_cast(lax.broadcast_in_dim(x, (ROWS, x.shape[0]), (1,)), TILE)
    return spread


def expert_index(experts: int) -> Array:
    """int32 [R, N]: the expert."""
    index: Array = plgpu.broadcasted_iota(jnp.int32, (ROWS, experts), 1, layout=TILE)
    return index


def row_index(experts: int) -> Array:
    """int32 [R, N]: the row within the tile."""
    index: Array = plgpu.broadcasted_iota(jnp.int32, (ROWS, experts), 0, layout=TILE)
    return index


def zeros(experts: int, dtype: DTypeLike = jnp.int32) -> Array:
    """[R, N] of zeros."""
    made: Array = plgpu.layout_cast(jnp.zeros((ROWS, experts), dtype), TILE)
    return made


def ordered(x: Array) -> Array:
    """int32 keys that order as the float32 values do; -0 equals 0."""
    bits = lax.bitcast_convert_type(jnp.where(x == 0, 0.0, x), jnp.int32)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def is_usable(key: Array) -> Array:
    """Where a key is not that of minus infinity."""
    return key > -0x7F800001


def replace(x: Array, mask: Array, value: int) -> Array:
    """``x`` with ``value`` where the mask holds.

    ``jnp.where(mask, value, x)`` would be taken for unsigned on a GPU (jax 0.11 and 0.12): what it
    selects from first decides, and of a constant nothing is known.
    """
    return jnp.where(~mask, x, value)


def row_max(x: Array) -> Array:
    """[R, N] of each row's largest value."""
    return along_experts(jnp.max(x, axis=1), x.shape[1])


def row_sum(x: Array) -> Array:
    """[R, N] of each row's sum."""
    return along_experts(jnp.sum(x, axis=1), x.shape[1])


def row_count(mask: Array) -> Array:
    """int32 [R, N]: how many of its row a mask holds."""
    return row_sum(jnp.where(mask, 1, 0))


def first(mask: Array) -> Array:
    """Only the first expert of each row's mask."""
    backwards = mask.shape[1] - 1 - expert_index(mask.shape[1])
    return backwards == row_max(jnp.where(mask, backwards, -1))


def top_ranks(key: Array, k: int) -> Array:
    """int32 [R, N]: an expert's place among its row's k best keys, k where it has none."""

    def take_best(place: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        rank, key = state
        best = first(key == row_max(key))
        return jnp.where(~best, rank, place), replace(key, best, NEVER)

    start = zeros(key.shape[1]) + k, key
    rank: Array = lax.fori_loop(0, k, take_best, start)[0]
    return rank


def remapped_ranks(key: Array, survives: Array, k: int) -> Array:
    """As ``top_ranks``, but usable survivors come first, then the row's best others."""
    usable = survives & is_usable(key)
    count = row_count(usable)

    def take_best(place: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        rank, key = state
        in_turn = jnp.where(usable == (place < count), key, NEVER)
        best = first(in_turn == row_max(in_turn))
        return jnp.where(~best, rank, place), replace(key, best, NEVER)

    start = zeros(key.shape[1]) + k, key
    rank: Array = lax.fori_loop(0, k, take_best, start)[0]
    return rank


def critical_experts(score: Array, key: Array, k: int) -> Array:
    """bool [R, N]: the row's k best usable experts by ``(score, key)``, lower index first."""

    def take_best(_: Array, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        chosen, score, key = state
        level = score == row_max(score)
        among = jnp.where(level, key, NEVER)
        best = first(level & (among == row_max(among)))
        return replace(chosen, best, 1), replace(score, best, NEVER), replace(key, best, NEVER)

    start = zeros(key.shape[1]), jnp.where(is_usable(key), score, NEVER), key
    chosen: Array = lax.fori_loop(0, k, take_best, start)[0]
    return chosen == 1


def rank_ids(rank: Array, k: int) -> Array:
    """int32 [R, 32]: the expert at each of the first k places, then zeros."""
    expert, place = expert_index(rank.shape[1]), expert_index(LANES)

    def put(j: Array, ids: Array) -> Array:
        found = jnp.max(jnp.where(rank == j, expert, 0), axis=1)
        return jnp.where(place == j, along_experts(found, LANES), ids)

    ids: Array = lax.fori_loop(0, k, put, zeros(LANES))
    return ids


@dataclass(frozen=True)
class Block:
    """The warpgroups of a thread block, and how they add up what each has of every expert.

    Reducing over rows inside a warpgroup goes through shared memory that all warpgroups of a block
    have in common, so only the first one does it; the others hand it their tiles.

    Attributes:
      warpgroups: W.
      index: which of them this is.
      tiles_ref: int32 [R * W, N], in shared memory: a tile of each warpgroup.
      barrier: of W arrivals.
    """

    warpgroups: int
    index: Array
    tiles_ref: Any
    barrier: Any

    def sync(self) -> None:
        plgpu.barrier_arrive(self.barrier)
        plgpu.barrier_wait(self.barrier)

    def first_only(self, body: Callable[[], None]) -> None:
        """Runs ``body`` in the first warpgroup."""
        pl.when(self.index == 0)(body)

    def total(self, tile: Array, total_ref: Any, op: str = "sum") -> None:
        """Leaves the sum or max over all rows of all warpgroups' tiles in ``total_ref`` [N].

        Both references are of int32 and hold the bits of what is added; float32 is added in a
        fixed order.
        """
        reduce, join = _REDUCTIONS[op]
        dtype = tile.dtype
        self.tiles_ref[pl.ds(self.index * ROWS, ROWS)] = _cast_bits(tile, jnp.int32)
        self.sync()

        def add_up() -> None:
            joined = self._tile(0, dtype)
            for warpgroup in range(1, self.warpgroups):
                joined = join(joined, self._tile(warpgroup, dtype))
            total_ref[...] = _cast_bits(reduce(joined, axis=0), jnp.int32)

        self.first_only(add_up)
        self.sync()

    def _tile(self, warpgroup: int, dtype: Any) -> Array:
        tile = load_tile(self.tiles_ref.at[pl.ds(warpgroup * ROWS, ROWS)])
        return _cast_bits(tile, dtype)

    def count_experts(self, experts: int, test: Callable[[Any, Array, Array], Array]) -> Array:
        """int32 [R, N]: this warpgroup's share of how many experts pass a test, for each column.

        Args:
          experts: N, divided among the warpgroups.
          test: bool [R, N] from a slice of R experts, their indices and the columns' [R, N].
        """
        share = experts // self.warpgroups
        column, row = expert_index(experts), row_index(experts)

        def add(step: Array, count: Array) -> Array:
            start = self.index * share + step * ROWS
            return count + jnp.where(test(pl.ds(start, ROWS), start + row, column), 1, 0)

        counted: Array = lax.fori_loop(0, share // ROWS, add, zeros(experts))
        return counted


_REDUCTIONS: dict[str, tuple[Callable[..., Array], Callable[..., Array]]] = {
    "sum": (jnp.sum, jnp.add),
    "max": (jnp.max, jnp.maximum),
}


def _cast_bits(x: Array, dtype: Any) -> Array:
    return x if x.dtype == dtype else lax.bitcast_convert_type(x, dtype)
