"""Which experts survive for a batch, inside a kernel; the formulas of ``lynx_jax.policies``."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from lynx_jax.pallas_kernels.router_tiles import SMALLEST_SUM, adaptive_scores, power_of, votes_of
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
    row_sum,
    zeros,
)
from lynx_jax.pallas_kernels.scoring import vote_levels
from lynx_jax.pallas_kernels.selection import (
    LEAST_SHARE,
    DemandSelection,
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
        case DemandSelection() as demand:
            return _demand_survivors(batch, demand)


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
    def asked(tile: Tile) -> Array:
        return jnp.where(tile.live() & is_usable(tile.key()), tile.weight(), 0.0)

    def lifted(wished: Array, favourite: Array) -> Array:
        return jnp.where(favourite > 0, wished + (batch.spec.rows + 1.0), wished)

    _add_up(batch, asked, xshare.k0)
    return _first_by(batch, lifted, xshare.budget)


def _demand_survivors(batch: Batch, demand: DemandSelection) -> Array:
    k = batch.spec.k
    size = jnp.maximum(batch.num_live, 1).astype(jnp.float32)

    def used(tile: Tile) -> Array:
        return jnp.where(tile.live() & (tile.top_rank() < k), tile.weight(), 0.0)

    def add_mass(tile: Tile, mass: Array) -> Array:
        return mass + row_sum(used(tile))

    if demand.row_power:
        mass = batch.total(batch.fold(add_mass, zeros(batch.width, jnp.float32)), 2)
        mass = lax.bitcast_convert_type(mass, jnp.float32)
        mean_mass = mass / size + SMALLEST_SUM

    def power_of_demand(tile: Tile) -> Array:
        weight = used(tile)
        total = row_sum(weight) + SMALLEST_SUM
        share = weight / total
        if demand.row_power:
            share = share * power_of(total / mean_mass, demand.row_power)
        asked = tile.live() & (tile.top_rank() < k)
        return jnp.where(asked, power_of(jnp.maximum(share, LEAST_SHARE), demand.power), 0.0)

    wished, favourite = _add_up(batch, power_of_demand, k0=1)
    kept: Array = (wished >= demand.threshold**demand.power * size) | (favourite > 0)
    return kept | _first_by(batch, lambda wished, _: wished, k)


def _add_up(batch: Batch, wish: Callable[[Tile], Array], k0: int) -> tuple[Array, Array]:
    """(float32 [R, N] sum of the rows' wishes, int32 [R, N] how many have the expert among their
    first k0); they stay in the first two slots.
    """

    def add_wishes(tile: Tile, wished: Array) -> Array:
        return wished + wish(tile)

    def add_favourites(tile: Tile, favourite: Array) -> Array:
        return replace(favourite, tile.live() & (tile.top_rank() < k0), 1)

    wished = batch.total(batch.fold(add_wishes, zeros(batch.width, jnp.float32)), 0)
    favourite = batch.total(batch.fold(add_favourites, zeros(batch.width)), 1)
    return lax.bitcast_convert_type(wished, jnp.float32), favourite


def _first_by(batch: Batch, value: Callable[[Array, Array], Array], count: int) -> Array:
    """bool [R, N]: the first experts by a value of what ``_add_up`` left; the lower index wins a
    tie.
    """
    wished_ref, favourite_ref = batch.totals_ref.at[0], batch.totals_ref.at[1]

    def value_of(wished: Array, favourite: Array) -> Array:
        return value(lax.bitcast_convert_type(wished, jnp.float32), favourite)

    def goes_before(experts: Any, expert: Array, column: Array) -> Array:
        other = value_of(
            load_per_row(wished_ref.at[experts]), load_per_row(favourite_ref.at[experts])
        )
        other = along_experts(other, batch.width)
        own = along_rows(value_of(load_per_expert(wished_ref), load_per_expert(favourite_ref)))
        return (other > own) | ((other == own) & (expert < column))

    return batch.total(batch.block.count_experts(batch.width, goes_before), 2) < count
