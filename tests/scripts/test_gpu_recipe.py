"""What the GPU check's sections run on: processes, deadlines, poisoned buffers, rows."""

import json
import subprocess
import sys
import time
from pathlib import Path

import gpu_check
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gpu_recipe import expert_times, poison
from gpu_recipe.cases import Deadline, OutOfTimeError, Programs, attempt
from gpu_recipe.report import failures, table, with_shares
from gpu_recipe.runner import LIMITS, section_rows
from gpu_recipe.settings import Settings

SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu_check.py"


def test_without_a_gpu_it_says_so(tmp_path):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--out", str(tmp_path / "out.json")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: gpu_check: expected a GPU of compute capability 9.x")
    assert not (tmp_path / "out.json").exists()


def test_the_whole_run_stays_under_eight_minutes():
    assert sum(LIMITS.values()) < 480


CHILD = """
import json, sys, time
with open(sys.argv[-1], "w") as rows:
    for value in (1, 2):
        rows.write(json.dumps({"case": "c", "value": value}) + "\\n")
    rows.write('{"case": "cut o')
    rows.flush()
    if sys.argv[1] == "hang":
        time.sleep(60)
    if sys.argv[1] == "crash":
        raise SystemExit("device lost")
"""


@pytest.mark.parametrize(
    ("how", "failed"), [("end", None), ("crash", "device lost"), ("hang", "killed after 0.5 s")]
)
def test_rows_of_a_section_are_kept_however_it_ends(how, failed):
    began = time.monotonic()
    limit = 0.5 if how == "hang" else 30
    rows = list(section_rows("s", [sys.executable, "-c", CHILD, how], limit))
    assert [row["value"] for row in rows[:2]] == [1, 2]
    assert [row["failed"] for row in failures(rows)] == ([] if failed is None else [failed])
    assert rows[-1]["case"] == "section s"
    assert time.monotonic() - began < 20


def test_a_case_that_fails_or_is_too_late_is_a_row():
    def late():
        raise OutOfTimeError

    def broken():
        raise ValueError("first line\nsecond")

    assert attempt({"case": "a"}, lambda: {"x": 1}) == {"case": "a", "x": 1}
    assert attempt({"case": "b"}, late) == {"case": "b", "skipped": "out of time"}
    row = attempt({"case": "c"}, broken)
    assert row == {"case": "c", "ok": False, "failed": "ValueError: first line"}
    assert failures([row, {"case": "d", "ok": True}]) == [row]
    assert "ValueError: first line" in table([row])


def test_programs_compile_side_by_side_and_their_errors_wait():
    programs = Programs(Settings(interpret=True), Deadline(60))
    x = jax.ShapeDtypeStruct((2,), jnp.float32)
    programs.add("twice", lambda x: 2 * x, x)
    programs.add("broken", lambda x: x @ jnp.ones(3), x)
    programs.wait()
    np.testing.assert_array_equal(programs.get("twice")(jnp.ones(2)), [2, 2])
    with pytest.raises(TypeError):
        programs.get("broken")


def test_nothing_more_is_lowered_when_time_is_over():
    programs, traced = Programs(Settings(interpret=True), Deadline(0)), []
    programs.add("late", lambda x: traced.append(x) or x, jnp.ones(2))
    programs.wait()
    with pytest.raises(OutOfTimeError):
        programs.get("late")
    assert not traced


def test_results_land_in_poisoned_buffers(monkeypatch):
    held = []

    def remember(shape, poison=poison._poison):
        held.append(poison(shape))
        assert not np.isfinite(held[-1]).all() or np.asarray(held[-1]).all()
        return held[-1]

    monkeypatch.setattr(poison, "_poison", remember)
    poison.fill_memory(2**16)
    x = jnp.arange(6.0)
    got = poison.poisoned(lambda x: (2 * x, x.astype(jnp.int32), x > 2))(x)
    np.testing.assert_array_equal(got[0], 2 * x)
    np.testing.assert_array_equal(got[1], x)
    np.testing.assert_array_equal(got[2], x > 2)
    assert [array.is_deleted() for array in held] == [True] * 3  # taken over


def test_shares_are_of_the_runs_own_copy():
    rows = with_shares(
        [{"case": "copy", "copy_gb_s": 4000.0}, {"case": "a", "mosaic_gb_s": 3400.0}]
    )
    assert rows[1]["share_of_copy"] == pytest.approx(0.85)


def test_the_line_is_least_squares():
    points = [{"active": a, "mosaic_us": 3.0 + 2 * a} for a in (1, 4, 9)]
    found = expert_times.line([*points, {"active": 7, "skipped": "out of time"}])
    assert found == pytest.approx({"us_an_expert": 2, "us_without_experts": 3, "r2": 1})


SECTION = """
import json, sys
section, broken, file = sys.argv[1:3] + sys.argv[-1:]
row = {"case": section, "copy_gb_s": 4000.0} if section == "device" else {"case": section}
row |= {"mosaic_gb_s": 3000.0} if section == "experts" else {"ok": section != broken}
open(file, "w").write(json.dumps(row) + "\\n")
"""


@pytest.mark.parametrize(("broken", "code"), [("none", 0), ("kernels", 1)])
def test_a_run_writes_all_sections_and_says_what_failed(
    broken, code, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(
        gpu_check,
        "child_command",
        lambda script, section, seed: [sys.executable, "-c", SECTION, section, broken],
    )
    monkeypatch.setenv("OUT", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--sections", "kernels", "experts"])
    assert gpu_check.main() == code
    result = json.loads((tmp_path / "gpu_check.json").read_text())
    rows = {row["case"]: row for row in result["rows"] if "section_s" not in row}
    assert list(rows) == ["device", "kernels", "experts"]
    assert rows["experts"]["share_of_copy"] == 0.75
    assert f"(seed {result['seed']})" in capsys.readouterr().out
    assert gpu_check.failures(result["rows"]) == ([rows["kernels"]] if code else [])


def test_results_need_a_folder_before_anything_runs(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--out", str(tmp_path / "none" / "x.json")])
    monkeypatch.setattr(gpu_check, "section_rows", None)
    with pytest.raises(SystemExit) as stopped:
        gpu_check.main()
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: argument --out: expected a file in a folder that exists")
