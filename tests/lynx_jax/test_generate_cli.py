"""The command line, with the fake checkpoint in place of one that is loaded."""

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

import pytest

from lynx_jax import generate_run
from lynx_jax.generate_cli import build_parser, run
from lynx_jax.generation import generate
from lynx_jax.loading import LoadedModel
from lynx_jax.policies import Policy
from lynx_jax.policy_spec import parse_policy
from lynx_jax.stats import Stats
from lynx_jax.tokenizer import Tokenizer
from tests.lynx_jax.conftest import byte_fallback_backend
from tests.lynx_jax.fake_model import EXPERTS_PER_ROW, NUM_EXPERTS, fake_checkpoint

_TWO = ["--prompt", "the fox", "--prompt", "stop."]


class _Stdin(io.TextIOWrapper):
    def __init__(self, text: str, *, is_terminal: bool = False) -> None:
        super().__init__(io.BytesIO(text.encode()))
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


@pytest.fixture(scope="module")
def checkpoint() -> LoadedModel:
    config = {"bos_token": "<s>", "eos_token": "</s>"}
    template = "{{ bos_token }}{{ messages[-1].content }}"
    backend = byte_fallback_backend(with_bytes=False)
    return fake_checkpoint(Tokenizer(backend, config, template), context=128)


@pytest.fixture
def loaded(checkpoint: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> LoadedModel:
    def read_policy(model: str, text: str) -> Policy:
        return parse_policy(text, EXPERTS_PER_ROW, NUM_EXPERTS)

    monkeypatch.setattr(generate_run, "load", lambda *args, **kwargs: checkpoint)
    monkeypatch.setattr(generate_run, "_read_policy", read_policy)
    monkeypatch.setattr(sys, "stdin", _Stdin("", is_terminal=True))
    return checkpoint


def _text(loaded: LoadedModel, prompt: str, new: int) -> str:
    return generate(loaded, prompt, policy="off", max_new_tokens=new).results[0].text


def test_one_prompt_prints_its_text_and_nothing_else(
    loaded: LoadedModel, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["--prompt", "the fox", "--max-new-tokens", "7"]) == 0
    captured = capsys.readouterr()
    assert captured.out == _text(loaded, "the fox", 7) + "\n"
    assert captured.err.count("policy Demand") == 1
    assert "the policy acts from 2 rows on; this batch has 1" in captured.err


def test_a_policy_that_saves_nothing_where_a_token_uses_one_expert_says_so(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    says = "demand keeps every row's first expert"
    assert run([*_TWO, "--max-new-tokens", "2"]) == 0
    assert says not in capsys.readouterr().err
    monkeypatch.setattr(loaded.config, "num_experts_per_tok", 1)
    for policy, expected in (("demand", 1), ("lynx:alpha=1,beta=1", 0)):
        assert run([*_TWO, "--max-new-tokens", "2", "--policy", policy]) == 0
        assert capsys.readouterr().err.count(says) == expected


def test_one_prompt_streams(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []

    class _Recording(io.StringIO):
        def write(self, text: str) -> int:
            written.append(text)
            return len(text)

    monkeypatch.setattr(sys, "stdout", _Recording())
    assert run(["--prompt", "the fox", "--max-new-tokens", "7", "--ignore-eos"]) == 0
    assert len([piece for piece in written if piece.strip()]) > 3


def test_several_prompts_are_labelled_in_order(
    loaded: LoadedModel, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = ["the fox", "stop.", "a\nlong " + "quick " * 10]
    argv = [part for prompt in prompts for part in ("--prompt", prompt)]
    assert run([*argv, "--max-new-tokens", "5", "--max-batch", "2"]) == 0
    out = capsys.readouterr().out
    first, second, third = (_text(loaded, prompt, 5) for prompt in prompts)
    assert out.startswith(f"=== 1: the fox\n{first}\n=== 2: stop.\n{second}\n=== 3: a long quick")
    assert out.endswith(f"...\n{third}\n")


def test_stats_go_to_standard_error(
    loaded: LoadedModel, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["--prompt", "the fox", "--max-new-tokens", "7", "--stats"]) == 0
    captured = capsys.readouterr()
    for part in ("compile:", "prefill:", "p50", "p99", "tokens/s", "plain top-k"):
        assert part in captured.err
    assert captured.out == _text(loaded, "the fox", 7) + "\n"


def test_json_is_one_object(loaded: LoadedModel, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*_TWO, "--max-new-tokens", "5", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert set(value) == {"model", "backend", "policy", "results", "stats"}
    assert set(value["stats"]) == set(Stats().to_dict())
    first = value["results"][0]
    assert first["prompt"] == "the fox"
    assert first["text"] == _text(loaded, "the fox", 5)
    assert first["finish_reason"] in ("eos", "length")
    assert len(first["token_ids"]) <= 5
    assert set(first) == {"prompt", "text", "token_ids", "prompt_tokens", "finish_reason"}


def test_compare_prints_both_and_the_ratios(
    loaded: LoadedModel, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*_TWO, "--max-new-tokens", "5", "--compare", "--stats"]) == 0
    captured = capsys.readouterr()
    for part in ("=== 1 off: the fox", "=== 1 on: the fox", "=== 2 on: stop.", "2 of 2 identical"):
        assert part in captured.out
    assert "2.00x" in captured.out
    assert captured.err.count("prefill:") == 2


def test_compare_as_json(loaded: LoadedModel, capsys: pytest.CaptureFixture[str]) -> None:
    argv = [*_TWO, "--max-new-tokens", "5", "--compare", "--json", "--policy", "oea:k0=2"]
    assert run(argv) == 0
    value = json.loads(capsys.readouterr().out)
    assert set(value) == {"model", "backend", "off", "on", "comparison"}
    assert value["on"]["policy"] == "OEA(k0=2, min_rows=2, damping=0.0)"
    assert value["comparison"]["experts_ratio"] == pytest.approx(2)
    assert value["comparison"]["agreements"][1]["identical"] is True


def test_standard_input_is_a_prompt(
    loaded: LoadedModel, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", _Stdin("the fox\n"))
    assert run(["--max-new-tokens", "7"]) == 0
    assert capsys.readouterr().out == _text(loaded, "the fox", 7) + "\n"


def test_prompts_file_with_text_and_messages(
    loaded: LoadedModel, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "p.jsonl"
    messages = [{"role": "user", "content": "stop."}]
    path.write_text(f'"the fox"\n{json.dumps({"messages": messages})}\n')
    assert run(["--prompts", str(path), "--max-new-tokens", "5", "--json"]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    assert results[1]["prompt"] == messages
    assert run(["--prompts", str(path), "--chat", "--max-new-tokens", "5", "--json"]) == 0
    chat = json.loads(capsys.readouterr().out)["results"]
    assert chat[0]["prompt"] == [{"role": "user", "content": "the fox"}]
    assert chat[0]["token_ids"] == results[0]["token_ids"]


def test_stop_strings_and_sampling_reach_generation(
    loaded: LoadedModel, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--prompt", "the fox", "--max-new-tokens", "12", "--ignore-eos", "--json"]
    run([*argv, "--temperature", "50", "--top-k", "9", "--seed", "4"])
    sampled = json.loads(capsys.readouterr().out)["results"][0]
    run([*argv, "--temperature", "50", "--top-k", "9", "--seed", "4", "--stop", sampled["text"][3]])
    stopped = json.loads(capsys.readouterr().out)["results"][0]
    assert stopped["finish_reason"] == "stop"
    assert sampled["text"].startswith(stopped["text"])
    assert sampled["text"].strip() != _text(loaded, "the fox", 12).strip()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "no prompt"),
        (["--prompt", "a", "--prompts", "b"], "not allowed with"),
        (["--prompts", "/none.jsonl"], "/none.jsonl: cannot be read"),
        (["--prompt", "a", "--max-new-tokens", "0"], "--max-new-tokens of at least 1"),
        (["--prompt", "a", "--max-new-tokens", "-5"], "--max-new-tokens of at least 1"),
        (["--prompt", "a", "--max-new-tokens", "x"], "invalid int value"),
        (["--prompt", "a", "--max-batch", "0"], "--max-batch of at least 1"),
        (["--prompt", "a", "--temperature", "-1"], "temperature from 0 to 1e6"),
        (["--prompt", "a", "--temperature", "1e300"], "temperature from 0 to 1e6"),
        (["--prompt", "a", "--top-k", "-1", "--temperature", "1"], "top_k of 0"),
        (["--prompt", "a", "--top-p", "0", "--temperature", "1"], "top_p above 0"),
        (["--prompt", "a", "--min-p", "7", "--temperature", "1"], "min_p from 0 to 1"),
        (["--prompt", "a", "--repetition-penalty", "-2"], "repetition_penalty above 0"),
        (["--prompt", "a", "--seed", "-1"], "seed from 0"),
        (["--prompt", "a", "--top-p", "0.9"], "--top-p has no effect at temperature 0"),
        (["--prompt", "a", "--stop", ""], "--stop with at least one character"),
        (["--prompt", "a", "--policy", "off", "--compare"], "--compare needs a policy"),
        (["--prompt", "a", "--policy", " off", "--compare"], "--compare needs a policy"),
        (["--prompt", "a", "--policy", "nonsense"], "'nonsense' is not known"),
        (["--prompt", "a", "--policy", "lynx:alpha=x,beta=2"], "expected alpha as a number"),
        (["--prompt", "a", "--policy", "xshare:budget=3"], "expected a budget from k=4"),
        (["--prompt", "a", "--backend", "magic"], "invalid choice"),
        (["--prompt", "a", "--dtype", "int8"], "invalid choice"),
        (["--prompt", "a", "--nonsense"], "unrecognized arguments"),
        (["--prompt", "the fox " * 30], "prompt 1 has"),
        (["--prompt", "a", "--prompt", "the fox " * 30], "prompt 2 has"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    loaded: LoadedModel, capsys: pytest.CaptureFixture[str], argv: list[str], message: str
) -> None:
    try:
        code: Any = run(argv)
    except SystemExit as e:
        code = e.code
    captured = capsys.readouterr()
    notes = ("demo: fake", "the policy acts")
    errors = [line for line in captured.err.splitlines() if not line.startswith(notes)]
    assert code == 2
    assert len(errors) == 1
    assert errors[0].startswith("error: ")
    assert message in errors[0]
    assert captured.out == ""


@pytest.mark.parametrize(
    ("model", "message"), [("/no/such/folder", "no such folder"), (".", "expected config.json")]
)
def test_missing_checkpoint(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, model: str, message: str
) -> None:
    folder = str(tmp_path) if model == "." else model
    assert run(["--model", folder, "--prompt", "a"]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_chat_without_template_is_refused(
    letters: Tokenizer,
    loaded: LoadedModel,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(generate_run, "load", lambda *args, **kwargs: fake_checkpoint(letters))
    assert run(["--prompt", "a", "--chat"]) == 2
    assert "no chat template" in capsys.readouterr().err


def test_interrupt_ends_with_130(
    loaded: LoadedModel, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: object, **kwargs: object) -> LoadedModel:
        raise KeyboardInterrupt

    monkeypatch.setattr(generate_run, "load", interrupted)
    assert run(["--prompt", "a"]) == 130
    assert "Traceback" not in capsys.readouterr().err


# Runs the command in a process of its own, on the fake checkpoint.
# A background job of a shell inherits SIGINT ignored; the program is tested as in the foreground.
_PROGRAM = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from lynx_jax import generate_run
from lynx_jax.generate_cli import main
from lynx_jax.policies import TopK
from lynx_jax.tokenizer import Tokenizer
from tests.lynx_jax.conftest import byte_fallback_backend
from tests.lynx_jax.fake_model import fake_checkpoint

backend = byte_fallback_backend(with_bytes=False)
checkpoint = fake_checkpoint(Tokenizer(backend, {"bos_token": "<s>"}), context=100_000)
generate_run.load = lambda *args, **kwargs: checkpoint
generate_run._read_policy = lambda *args: TopK()
main()
"""


def _start(*argv: str, stdout: int | IO[str] = subprocess.PIPE) -> subprocess.Popen[str]:
    root = str(Path(__file__).parents[2])
    return subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, "--prompt", "a", "--ignore-eos", *argv],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        cwd=root,
        env={**os.environ, "PYTHONPATH": root},
    )


def test_ctrl_c_while_generating_is_clean() -> None:
    process = _start("--max-new-tokens", "90000")
    assert process.stdout is not None
    assert process.stdout.read(5)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert err.endswith("interrupted\n")


def test_reader_that_leaves_is_no_error() -> None:
    process = _start("--max-new-tokens", "90000")
    assert process.stdout is not None
    assert process.stdout.read(5)
    process.stdout.close()
    assert process.stderr is not None
    err = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=60) == 141
    assert "Traceback" not in err
    assert "Broken" not in err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_output_that_cannot_be_written_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        process = _start("--max-new-tokens", "4", stdout=full)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "Traceback" not in err
    assert err.splitlines()[-1].startswith("error: ")


def test_help_names_every_option_and_needs_no_jax() -> None:
    code = (
        "import sys, lynx_jax.generate_cli as g\n"
        "try: g.run(['--help'])\nfinally: assert 'jax' not in sys.modules"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    for action in build_parser()._actions:
        assert action.option_strings[-1] in result.stdout
        assert action.help
