"""The rows that a thread block routes, and what its warpgroups keep about them in shared memory."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jax import lax
from jax.experimental import pallas as pl
from jaxtyping import Array

from lynx_jax.pallas_kernels.routing_tiling import RowTiling, padded_experts
from lynx_jax.pallas_kernels.row_tiles import (
    ROWS,
    Block,
    along_experts,
    along_rows,
    load_per_expert,
    load_per_row,
    load_tile,
)
from lynx_jax.pallas_kernels.selection import Selection

_RANK_BITS = 6  # a state's low bits: the place in the row's top-k, up to 32


def packed_state(upper: Array, top_rank: Array) -> Array:
    """A number (a bin, or the final place) and the place in the row's top-k in one int32."""
    return (upper << _RANK_BITS) | top_rank


def unpacked_state(state: Array) -> tuple[Array, Array]:
    """What ``packed_state`` holds."""
    return state >> _RANK_BITS, state & ((1 << _RANK_BITS) - 1)


@dataclass(frozen=True)
class Spec:
    """What a kernel that goes over a whole batch is compiled for.

    Attributes:
      rows, experts: B and N as the caller has them.
      k: experts a row.
      selection: which experts of the batch survive.
      tiling: how the rows lie over the warpgroups.
    """

    rows: int
    experts: int
    k: int
    selection: Selection
    tiling: RowTiling


@dataclass(frozen=True)
class Tile:
    """R rows of the batch; what was found out about them lies in shared memory."""

    slice: Any
    width: int
    live_ref: Any
    key_ref: Any
    weight_ref: Any
    state_ref: Any

    def live(self) -> Array:
        live = load_per_row(self.live_ref.at[self.slice])
        return along_experts(live, self.width) != 0

    def key(self) -> Array:
        return load_tile(self.key_ref.at[self.slice])

    def weight(self) -> Array:
        return load_tile(self.weight_ref.at[self.slice])

    def keep(self, upper: Array, top_rank: Array) -> None:
        """Keeps a bin, or the final place, with the place in the row's top-k."""
        self.state_ref[self.slice] = packed_state(upper, top_rank)

    def upper(self) -> Array:
        return unpacked_state(load_tile(self.state_ref.at[self.slice]))[0]

    def top_rank(self) -> Array:
        return unpacked_state(load_tile(self.state_ref.at[self.slice]))[1]


@dataclass(frozen=True)
class Batch:
    """The rows of this warpgroup within the batch.

    Attributes:
      spec: static.
      block: this warpgroup among those of the thread block.
      live_ref, key_ref, weight_ref, state_ref: the rows of all warpgroups.
      num_live: int32, live rows.
      totals_ref: int32 [3, N], what all rows have of every expert.
    """

    spec: Spec
    block: Block
    live_ref: Any
    key_ref: Any
    weight_ref: Any
    state_ref: Any
    num_live: Array
    totals_ref: Any

    @property
    def width(self) -> int:
        return padded_experts(self.spec.experts)

    def fold[T](self, body: Callable[[Tile, T], T], start: T) -> T:
        """Runs ``body`` over this warpgroup's tiles, one after the other."""
        tiles = self.spec.tiling.tiles

        def step(index: Array, so_far: T) -> T:
            rows = pl.ds((self.block.index * tiles + index) * ROWS, ROWS)
            refs = self.live_ref, self.key_ref, self.weight_ref, self.state_ref
            return body(Tile(rows, self.width, *refs), so_far)

        folded: T = lax.fori_loop(0, tiles, step, start)
        return folded

    def each(self, body: Callable[[Tile], None]) -> None:
        self.fold(lambda tile, _: body(tile), None)

    def total(self, tile: Array, slot: int, op: str = "sum") -> Array:
        """[R, N]: the tile's sum (or max) over all rows of the batch, kept in a slot."""
        self.block.total(tile, self.totals_ref.at[slot], op)
        return along_rows(load_per_expert(self.totals_ref.at[slot]))
