"""Tile sizes of the expert kernels that are worth timing for a shape."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product

from lynx_jax.pallas_kernels.expert_tiles import SMEM_LIMIT, ExpertTiles, TileKey

_BLOCKS = (64, 128)
_STAGES = (3, 4, 5, 6, 8)
_THREAD_BLOCKS = (132, 264)  # one or two a multiprocessor of an H200


def gate_up_candidates(base: ExpertTiles, key: TileKey) -> list[ExpertTiles]:
    """``base`` with other sizes of the gate/up kernel; each fits the shape and shared memory."""
    return _usable(
        key,
        (
            replace(base, gate_up_block=block, gate_up_stages=stages, gate_up_blocks=blocks)
            for block, stages, blocks in product(_BLOCKS, _STAGES, _THREAD_BLOCKS)
        ),
    )


def down_candidates(base: ExpertTiles, key: TileKey) -> list[ExpertTiles]:
    """``base`` with other sizes of the down kernel; each fits the shape and shared memory."""
    return _usable(
        key,
        (
            replace(base, down_rows=rows, down_block=block, down_stages=stages, down_blocks=blocks)
            for rows, block, stages, blocks in product(_BLOCKS, _BLOCKS, _STAGES, _THREAD_BLOCKS)
        ),
    )


def best_tiles(
    base: ExpertTiles, key: TileKey, measure: Callable[[ExpertTiles], float | None]
) -> tuple[ExpertTiles, float] | None:
    """The fastest tiles found, and their time; first the gate/up kernel is varied, then down.

    Args:
      base: tiles that fit, to start with.
      key: the shape.
      measure: time of a layer with these tiles, or None where its result is wrong.

    Returns:
      None if no tiles gave a right result.
    """
    best: tuple[ExpertTiles, float] | None = None
    for candidates in (gate_up_candidates, down_candidates):
        for tiles in candidates(base, key):
            time = measure(tiles)
            if time is not None and (best is None or time < best[1]):
                best = tiles, time
        if best is not None:
            base = best[0]
    return best


def _usable(key: TileKey, tiles: Iterator[ExpertTiles]) -> list[ExpertTiles]:
    """Those that fit, each once."""
    fitted = dict.fromkeys(t.fitted(key.width, key.hidden) for t in tiles)
    return [t for t in fitted if max(t.shared_bytes(key.rows)) <= SMEM_LIMIT]
