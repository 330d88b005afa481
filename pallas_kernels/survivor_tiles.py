"""Which experts survive for a batch, inside a kernel; the formulas of ``lynx_jax.policies``."""

from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from lynx_jax.pallas_kernels.router_tiles import adaptive_scores, votes_of
from lynx_jax.pallas_kernels.row_batch import Batch, Tile
from lynx_jax.pallas_kernels.row_tiles import (
    along_experts,
    along_rows,
    critical_experts,
    is_usable,
    load_per_expert,
    load_per_row,
    replace,
    row_count,
    zeros,
)
from lynx_jax.pallas_kernels.scoring import vote_levels
from lynx_jax.pallas_kernels.selection import (
    LynxSelection,
    OEASelection,
    TopKSelection,
    XShareSelection,
)


def survivors(batch: Batch) -> Array | None:
    """bool [R, N]: the experts that survive for the batch; None if all do.

    Reads the tiles' keys, weights, live rows, and their states: bin (Lynx) and place in top-k.
    """
    match batch.spec.selection:
        case TopKSelection():
            return None
        case LynxSelection() as lynx:
            return _lynx_survivors(batch, lynx)
        case OEASelection() as oea:
            return _oea_survivors(batch, oea)
        case XShareSelection() as xshare:
            return _xshare_survivors(batch, xshare)


def _lynx_survivors(batch: Batch, lynx: LynxSelection) -> Array:
    levels = vote_levels(batch.spec.rows, lynx.beta)
    size = jnp.maximum(batch.num_live, 1)

    def add_votes(tile: Tile, votes: Array) -> Array:
        return votes + votes_of(tile.upper(), tile.live(), size, levels)

    popularity = batch.total(batch.fold(add_votes, zeros(batch.width)), 0)

    def add_critical(tile: Tile, critical: Array) -> Array:
        bins, live = tile.upper(), tile.live()
        own = votes_of(bins, live, size, levels)
        score = adaptive_scores(bins, own, popularity, size, levels)
        named = critical_experts(score, tile.key(), batch.spec.k)
        named = named | (tile.top_rank() < lynx.floor)
        return replace(critical, named & live, 1)

    return batch.total(batch.fold(add_critical, zeros(batch.width)), 1) > 0


def _oea_survivors(batch: Batch, oea: OEASelection) -> Array:
    k = batch.spec.k

    def places_ahead(tile: Tile, ahead: Array) -> Array:
        """Places before the k-th."""
        return jnp.maximum(ahead, jnp.where(tile.live(), k - tile.top_rank(), 0))

    best_rank = k - batch.total(batch.fold(places_ahead, zeros(batch.width)), 0, "max")
    k0 = zeros(batch.width) + oea.k0
    for rank in range(oea.k0, k):
        k0 = k0 + jnp.where(row_count(best_rank < rank) < k, 1, 0)
    return best_rank < k0


def _xshare_survivors(batch: Batch, xshare: XShareSelection) -> Array:
    def add_demand(tile: Tile, demand: Array) -> Array:
        return demand + jnp.where(tile.live() & is_usable(tile.key()), tile.weight(), 0.0)

    def add_favourites(tile: Tile, favourite: Array) -> Array:
        return replace(favourite, tile.live() & (tile.top_rank() < xshare.k0), 1)

    batch.total(batch.fold(add_demand, zeros(batch.width, jnp.float32)), 0)
    batch.total(batch.fold(add_favourites, zeros(batch.width)), 1)

    def lifted(demand: Array, favourites: Array) -> Array:
        value = lax.bitcast_convert_type(demand, jnp.float32)
        return jnp.where(favourites > 0, value + (batch.spec.rows + 1.0), value)

    def goes_before(experts: Any, expert: Array, column: Array) -> Array:
        asked, favoured = batch.totals_ref.at[0], batch.totals_ref.at[1]
        other = along_experts(
            lifted(load_per_row(asked.at[experts]), load_per_row(favoured.at[experts])),
            batch.width,
        )
        own = along_rows(lifted(load_per_expert(asked), load_per_expert(favoured)))
        return (other > own) | ((other == own) & (expert < column))

    place = batch.total(batch.block.count_experts(batch.width, goes_before), 2)
    return place < xshare.budget
