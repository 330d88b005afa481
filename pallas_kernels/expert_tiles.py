"""Tile sizes of the expert kernels: a table of tuned ones, and defaults.

``expert_tiles.json`` holds entries for a shape on a device family. Among the entries of the same
device family and dtype, the nearest one is taken: nearest by the number of rows, then by D and F,
then by N, as ratios. Where there is none, the defaults of the table apply, which are chosen by
shared memory alone: two blocks a multiprocessor, all they have in flight.
"""

import functools
import importlib.resources
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

SMEM_LIMIT = 232_448  # bytes a block may have there
FEATURES = 64  # rows of a wgmma, and of gate and of up in a tile


@dataclass(frozen=True)
class ExpertTiles:
    """Static sizes of the two expert kernels.

    Attributes:
      gate_up_block: inputs (of D) in a step of the gate/up pipeline; 64 or 128.
      gate_up_stages: steps in flight.
      gate_up_blocks: thread blocks over which gate and up are split, at least.
      down_rows: outputs (of D) of a tile of the down projection; 64 or 128.
      down_block: inputs (of F) in a step of the down pipeline; 64 or 128.
      down_stages: steps in flight.
      down_blocks: thread blocks over which the down projection is split, at least.
    """

    gate_up_block: int
    gate_up_stages: int
    gate_up_blocks: int
    down_rows: int
    down_block: int
    down_stages: int
    down_blocks: int

    def fitted(self, width: int, hidden: int) -> "ExpertTiles":
        """The same with tiles halved where they do not divide D or F."""
        return replace(
            self,
            gate_up_block=math.gcd(self.gate_up_block, width),
            down_rows=math.gcd(self.down_rows, width),
            down_block=math.gcd(self.down_block, hidden),
        )

    def gate_up_splits(self, slots: int, width: int, hidden: int) -> int:
        """Into how many parts gate and up split their sums over D.

        1 where the tiles of ``slots`` experts are as many blocks as wanted.
        """
        parts = -(-self.gate_up_blocks // (slots * (hidden // FEATURES)))
        return min(parts, width // self.gate_up_block)

    def down_splits(self, slots: int, width: int, hidden: int) -> int:
        """Into how many parts the sum over active experts and F is split."""
        parts = -(-self.down_blocks // (width // self.down_rows))
        return min(parts, slots * (hidden // self.down_block))

    def shared_bytes(self, rows: int) -> tuple[int, int]:
        """Shared memory of a gate/up block and of a down block, for a multiple of 8 rows."""
        gate_up = self.gate_up_stages * self.gate_up_block * (2 * FEATURES + rows) * 2
        down = self.down_stages * self.down_block * (self.down_rows + rows) * 2
        return gate_up + 2 * FEATURES * rows * 4, down + self.down_rows * rows * 4


class TileKey(NamedTuple):
    """What an entry of the table is for.

    Attributes:
      device: family, as ``device_family`` names it.
      dtype: of the weights.
      experts: N.
      width: D.
      hidden: F.
      rows: a multiple of 8.
    """

    device: str
    dtype: str
    experts: int
    width: int
    hidden: int
    rows: int


def device_family(kind: str) -> str:
    """``"H200"`` of ``"NVIDIA H200 NVL"``; the name itself where it names no known family."""
    return next((family for family in ("H100", "H200", "GH200") if family in kind.split()), kind)


def expert_tiles(key: TileKey) -> ExpertTiles:
    """The tiles of the nearest entry of the table, or its defaults."""
    return nearest(key, _table()).fitted(key.width, key.hidden)


def nearest(key: TileKey, table: Mapping[str, Any]) -> ExpertTiles:
    """The tiles for a key, of a table as ``expert_tiles.json`` holds it."""
    entries = [(TileKey(**entry["key"]), ExpertTiles(**entry["tiles"])) for entry in table["tuned"]]
    usable = [
        (other, tiles)
        for other, tiles in entries
        if other[:2] == key[:2] and max(tiles.shared_bytes(key.rows)) <= SMEM_LIMIT
    ]
    if usable:
        return min(usable, key=lambda entry: _distance(entry[0], key))[1]
    defaults = table["untuned"]
    return ExpertTiles(**next(e["tiles"] for e in defaults if key.rows <= e["up_to_rows"]))


def entry(key: TileKey, tiles: ExpertTiles, microseconds: float) -> dict[str, Any]:
    """A row of the table: what was measured, and on what."""
    return {"key": key._asdict(), "tiles": asdict(tiles), "microseconds": microseconds}


def _distance(one: TileKey, other: TileKey) -> tuple[float, float, float]:
    def ratio(a: int, b: int) -> float:
        return abs(math.log(a / b))

    sizes = ratio(one.width, other.width) + ratio(one.hidden, other.hidden)
    return ratio(one.rows, other.rows), sizes, ratio(one.experts, other.experts)


@functools.cache
def _table() -> Any:
    return json.loads(
        (importlib.resources.files("lynx_jax.pallas_kernels") / "expert_tiles.json").read_text()
    )
