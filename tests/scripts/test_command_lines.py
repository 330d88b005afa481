"""Wrong options of the scripts: one line and exit code 2, as of the package's commands."""

import runpy
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


def test_a_file_in_no_folder_is_seen_before_anything_is_measured(tmp_path, monkeypatch, capsys):
    missing = tmp_path / "missing" / "results.json"
    monkeypatch.setattr("sys.argv", ["bench_decode", "no/checkpoint", "--out", str(missing)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(SCRIPTS / "bench_decode.py"), run_name="__main__")
    assert ended.value.code == 2
    assert "--out: expected a file in a folder that exists" in capsys.readouterr().err


@pytest.mark.parametrize(
    "script",
    [
        "bench_decode",
        "compare_policies",
        "gpu_check",
        "make_bench_checkpoint",
        "make_held_out",
        "measure_convert_memory",
        "train_demo",
    ],
)
def test_an_unknown_option_is_one_line(script, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", [script, "--no-such-option"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(SCRIPTS / f"{script}.py"), run_name="__main__")
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
