"""Choosing tile sizes: candidates, the search, the table, the command line; no GPU."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jax.experimental.pallas import mosaic_gpu as plgpu

from lynx_jax.pallas_kernels import tune
from lynx_jax.pallas_kernels.expert_kernels import expert_ffn
from lynx_jax.pallas_kernels.expert_shapes import FAMILIES, ExpertShape
from lynx_jax.pallas_kernels.expert_tiles import (
    SMEM_LIMIT,
    ExpertTiles,
    TileKey,
    entry,
    expert_tiles,
    nearest,
)
from lynx_jax.pallas_kernels.operand_tiles import IN_FLIGHT
from lynx_jax.pallas_kernels.tile_candidates import best_tiles, down_candidates, gate_up_candidates
from lynx_jax.pallas_kernels.tile_table import PACKAGED, read_table, table_text, with_row

SMALL = ExpertShape(4, 2, 64, 64)
keys = st.builds(
    TileKey,
    st.just("H200"),
    st.just("bfloat16"),
    st.integers(1, 256),
    st.integers(1, 120).map(lambda n: 64 * n),
    st.integers(1, 240).map(lambda n: 64 * n),
    st.integers(1, 8).map(lambda n: 8 * n),
)


def halves(tiles: ExpertTiles) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What belongs to the gate/up kernel and what to the down kernel."""
    sizes = (tiles.gate_up_block, tiles.gate_up_stages, tiles.gate_up_blocks)
    return sizes, (tiles.down_rows, tiles.down_block, tiles.down_stages, tiles.down_blocks)


@given(key=keys, slots=st.integers(1, 256))
@example(key=TileKey("H200", "bfloat16", 128, 2048, 768, 8), slots=1)  # 132 blocks exactly
@settings(max_examples=100, deadline=None)
def test_splits_are_the_fewest_that_give_enough_blocks(key, slots):
    tiles = expert_tiles(key)
    gate_up = tiles.gate_up_splits(slots, key.width, key.hidden)
    down = tiles.down_splits(slots, key.width, key.hidden)
    for splits, wanted, blocks, steps in [
        (gate_up, tiles.gate_up_blocks, slots * key.hidden // 64, key.width // tiles.gate_up_block),
        (
            down,
            tiles.down_blocks,
            key.width // tiles.down_rows,
            slots * key.hidden // tiles.down_block,
        ),
    ]:
        assert 1 <= splits <= steps  # no part without a step
        assert splits == steps or splits * blocks >= wanted
        assert (splits - 1) * blocks < wanted


@given(key=keys)
@settings(max_examples=100, deadline=None)
def test_candidates_fit_and_vary_one_kernel(key):
    base = expert_tiles(key)
    for own, candidates in enumerate((gate_up_candidates, down_candidates)):
        found = candidates(base, key)
        assert base in found  # no search ends with slower tiles than the defaults
        assert len(set(found)) == len(found) > 1
        for tiles in found:
            assert halves(tiles)[1 - own] == halves(base)[1 - own]
            assert tiles == tiles.fitted(key.width, key.hidden)
            assert max(tiles.shared_bytes(key.rows)) <= SMEM_LIMIT
            assert min(tiles.gate_up_stages, tiles.down_stages) > IN_FLIGHT


def test_kernels_take_the_candidates():
    shape, rows = FAMILIES["gpt-oss-20b"], 64
    n, _, d, f, form = shape
    key = TileKey("H200", "bfloat16", n, d, f, rows)
    base = expert_tiles(key)
    weights = jax.eval_shape(lambda: tune.random_experts(shape, 0))
    (work,) = tune.rotating_work(shape, rows, n, 1)
    x = jnp.zeros((rows, d), jnp.bfloat16)
    arguments = x, *work, weights
    for tiles in (gate_up_candidates(base, key)[-1], down_candidates(base, key)[-1]):
        y = jax.eval_shape(
            lambda *a, tiles=tiles: expert_ffn(*a, form=form, slots=n, tiles=tiles), *arguments
        )
        assert y.shape == (rows, d)


KEY = TileKey("H200", "bfloat16", 128, 2048, 768, 16)


def test_the_search_takes_the_fastest_of_each_kernel():
    base = expert_tiles(KEY)
    wanted = replace(base, gate_up_stages=4, down_rows=64, down_stages=6)

    def measure(tiles):
        sizes = zip(sum(halves(tiles), ()), sum(halves(wanted), ()), strict=True)
        return 1.0 + sum(a != b for a, b in sizes)

    assert best_tiles(base, KEY, measure) == (wanted, 1.0)


def test_the_search_takes_no_tiles_that_fail():
    base = expert_tiles(KEY)
    assert best_tiles(base, KEY, lambda tiles: None) is None
    right = replace(base, down_stages=6)

    def measure(tiles):
        return 5.0 if tiles == right else None

    assert best_tiles(base, KEY, measure) == (right, 5.0)


def test_the_table_keeps_its_form_and_one_row_a_key(tmp_path):
    table = read_table(PACKAGED)
    assert table_text(table) == PACKAGED.read_text(encoding="utf-8")
    tiles = replace(expert_tiles(KEY), down_stages=6)
    rows = [entry(KEY._replace(rows=rows), tiles, 12.5) for rows in (64, 8, 16)]
    for row in [*rows, {**rows[0], "microseconds": 11.0}]:
        table = with_row(table, row)
    assert [row["key"]["rows"] for row in table["tuned"]] == [8, 16, 64]
    assert table["tuned"][2]["microseconds"] == 11.0
    assert json.loads(table_text(table)) == table
    assert nearest(KEY, table) == tiles


def test_a_layer_is_timed_only_where_its_result_is_right():
    bench = tune.Bench(SMALL, 8, steps=1, repeats=1, interpret=plgpu.InterpretGPUParams())
    tiles = expert_tiles(TileKey("H200", "bfloat16", 4, 64, 64, 8))
    assert bench.measure(tiles) > 0
    bench.wanted = bench.wanted.at[7, 63].add(0.5)
    assert bench.measure(tiles) is None


def run(*arguments):
    try:
        return tune.run(list(arguments))
    except SystemExit as e:
        return e.code


@pytest.fixture
def fake_gpu(monkeypatch):
    """A device on which deeper down pipelines are faster and everything else fails."""

    class Bench:
        def __init__(self, shape, rows):
            pass

        def measure(self, tiles):
            return 100.0 / tiles.down_stages if tiles.down_block == 64 else None

    monkeypatch.setattr(tune, "_device", lambda: "H200")
    monkeypatch.setattr(tune, "Bench", Bench)
    return Bench


def test_rows_are_written_and_replaced(fake_gpu, tmp_path, capsys):
    out = tmp_path / "tiles.json"
    arguments = ("--family", "OLMoE-1B-7B", "--rows", "7", "30", "32", "--out", str(out))
    assert run(*arguments) == 0
    table = read_table(out)
    assert [row["key"]["rows"] for row in table["tuned"]] == [8, 32]
    assert table["tuned"][0]["tiles"]["down_stages"] == 8
    assert table["untuned"] == read_table(PACKAGED)["untuned"]
    captured = capsys.readouterr()
    assert "OLMoE-1B-7B, B=32: 12.5 us with ExpertTiles(" in captured.out
    assert "tilings gave wrong results" in captured.err
    assert run(*arguments) == 0
    assert read_table(out) == table


def test_a_shape_without_right_tiles_fails(fake_gpu, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(fake_gpu, "measure", lambda self, tiles: None)
    out = tmp_path / "tiles.json"
    arguments = ("--experts", "4", "--width", "64", "--hidden", "64", "--top-k", "2")
    assert run(*arguments, "--rows", "8", "--out", str(out)) == 1
    assert "error: this shape, B=8: no tiling gave a right result" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--family", "OLMoE-1B-7B"], "expected a GPU of compute capability 9.x"),
        ([], "nothing to tune"),
        (["--experts", "4"], "expected --experts, --width and --hidden"),
        (["--experts", "4", "--width", "96", "--hidden", "64", "--top-k", "2"], "got 96, 64"),
        (["--family", "OLMoE-1B-7B", "--rows", "65"], "expected 1 to 64 rows, got 65"),
        (["--family", "OLMoE-1B-7B", "--dtype", "float32"], "in bfloat16, got float32"),
        (["--family", "OLMoE-1B-7B", "--dtype", "half-baked"], "expected --dtype bfloat16"),
        (["--family", "GPT-2"], "invalid choice"),
    ],
)
def test_what_cannot_be_tuned_is_one_line(arguments, message, capsys):
    assert run(*arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert message in line


def test_a_dry_run_lists_candidates(capsys):
    assert run("--family", "OLMoE-1B-7B", "--rows", "8", "--dry-run") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "OLMoE-1B-7B, B=8:"
    assert "  gate_up: block 64, 6 stages, 132 thread blocks" in lines
    assert "  down: 128 rows, block 64, 5 stages, 264 thread blocks" in lines
    assert len(lines) == len(set(lines)) > 20
