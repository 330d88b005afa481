"""The benchmark scripts end to end on a tiny checkpoint: files that load, a table that adds up."""

import json
import runpy
import sys
from pathlib import Path

import pytest

from lynx_jax.loading import load

SCRIPTS = Path(__file__).parents[2] / "scripts"
TINY = [
    "--layers=2",
    "--width=32",
    "--hidden=16",
    "--experts=16",
    "--top-k=4",
    "--heads=4",
    "--kv-heads=2",
    "--head-dim=8",
    "--vocab=64",
]


def run(script, *arguments):
    saved, sys.argv = sys.argv, [script, *map(str, arguments)]
    try:
        runpy.run_path(str(SCRIPTS / script), run_name="__main__")
    finally:
        sys.argv = saved


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench") / "checkpoint"
    run("make_bench_checkpoint.py", folder, *TINY)
    return folder


def test_checkpoint_loads_and_is_reproducible(checkpoint, tmp_path):
    loaded = load(checkpoint)
    assert loaded.tokenizer.encode("t3 t17") == [3, 17]
    assert loaded.eos_token_ids == {2}
    run("make_bench_checkpoint.py", tmp_path / "again", *TINY)
    for path in checkpoint.iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes()


def test_bench_prints_the_table_and_writes_it(checkpoint, tmp_path, capsys):
    out = tmp_path / "bench.json"
    policies = ["off", "xshare:budget=5", "lynx:alpha=1,beta=1"]
    run(
        "bench_decode.py",
        *(checkpoint, "--out", out, "--steps", 3, "--batches", 1, "--batch", 6),
        *("--policies", *policies, "--read-gigabytes", 0.01),
    )
    result = json.loads(out.read_text())
    rows = {row["policy"]: row for row in result["rows"]}
    assert list(rows) == policies
    assert rows["off"]["of_topk"] == rows["off"]["speedup"] == 1.0
    assert rows["xshare:budget=5"]["experts"] == 5.0
    assert result["off"][0]["experts"] == 4.0  # one row uses its top-k
    assert all(row["ms"] > 0 and row["gb_s"] > 0 for row in rows.values())
    table = capsys.readouterr().out
    assert all(policy in table for policy in policies)
    assert "R2 = " in table
