"""How rows are laid out over the thread blocks of the routing kernels."""

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from lynx_jax.pallas_kernels.row_tiles import LANES, ROWS

MOST_ROWS, MOST_EXPERTS = 64, 256  # of a batch that one thread block routes
MOST_ROWS_OF_BLOCKS = 2**15 - 1  # where blocks share a batch: what ``active_list`` can count


@dataclass(frozen=True)
class RowTiling:
    """Rows of one thread block.

    Attributes:
      warpgroups: W, a power of two; each holds tiles of R = 4 rows.
      tiles: tiles of a warpgroup.
    """

    warpgroups: int
    tiles: int

    @property
    def rows(self) -> int:
        return ROWS * self.warpgroups * self.tiles


def one_block(rows: int, experts: int) -> RowTiling:
    """A block that holds all rows.

    A warp a row while there are warps enough: nothing else shortens the chain of dependent
    reductions. 8 warpgroups leave 64 registers a thread, too few for rows of more than 128 experts.
    """
    most = 8 if experts <= 128 else 4
    warpgroups = 1
    while warpgroups < most and warpgroups * ROWS < rows:
        warpgroups *= 2
    return RowTiling(warpgroups, -(-rows // (warpgroups * ROWS)))


def row_blocks(rows: int) -> int:
    """Thread blocks of one warpgroup, each with one tile of R = 4 rows, for any number of rows.

    A multiple of R: what the blocks leave about their rows is read in tiles again.
    """
    return -(-rows // ROWS**2) * ROWS


def padded_experts(experts: int) -> int:
    """N as tiles hold it: a multiple of the lanes of a warp."""
    return -(-experts // LANES) * LANES


def pad_rows(x: Array, rows: int, fill: float = 0) -> Array:
    """More rows, up to ``rows``, and experts up to a whole number of lanes."""
    widths = [(0, rows - x.shape[0])]
    if x.ndim == 2:
        widths.append((0, padded_experts(x.shape[1]) - x.shape[1]))
    return jnp.pad(x, widths, constant_values=fill) if any(b for _, b in widths) else x


def pad_inputs(
    logits: Float[Array, "rows experts"],
    live: Bool[Array, " rows"],
    bias: Float[Array, " experts"] | None,
    rows: int,
) -> list[Array]:
    """Logits, live rows, and the bias if there is one, as the kernels take them."""
    inputs = [pad_rows(logits, rows, -jnp.inf), pad_rows(live.astype(jnp.int32), rows)]
    if bias is not None:
        # Repeating the last value leaves the middle of the biases where it is.
        extra = padded_experts(bias.shape[0]) - bias.shape[0]
        inputs.append(jnp.pad(bias.astype(jnp.float32), (0, extra), mode="edge"))
    return inputs


def count_live(live: Bool[Array, " rows"]) -> Int[Array, " 1"]:
    """How many rows are live; one computation for all layers of a step."""
    return jnp.sum(live, dtype=jnp.int32).reshape(1)
