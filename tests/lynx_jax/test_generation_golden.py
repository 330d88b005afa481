"""Generation on real checkpoints: the golden ones, in float32."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import pytest
from flax import nnx

from lynx_jax.generate_cli import run
from lynx_jax.generation import generate
from lynx_jax.harmony import FinalChannel
from lynx_jax.loading import LoadedModel, load

GOLDEN = Path(__file__).parent.parent / "golden"
SHORT = ["The quick", "Say", "日本語", "naïve"]
PROMPTS = [*SHORT, "a" * 30]


def _greedy_by_full_passes(loaded: LoadedModel, count: int) -> list[tuple[int, ...]]:
    """The likeliest token again and again, each from one pass over the whole text."""
    full_pass = nnx.jit(lambda model, tokens, live: model(tokens, live=live))
    texts = []
    for prompt in PROMPTS:
        ids = loaded.tokenizer.encode(prompt)
        length = len(ids)
        while len(ids) < length + count and ids[-1] not in loaded.eos_token_ids:
            padded = jnp.array([ids + [0] * (48 - len(ids))])
            logits = full_pass(loaded.model, padded, jnp.arange(48)[None] < len(ids))
            ids.append(int(jnp.argmax(logits[0, len(ids) - 1])))
        texts.append(tuple(ids[length:]))
    return texts


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe_dense", "deepseek_v3", "gpt_oss", "llama4"])
def test_policy_off_equals_the_reference_token_for_token(name: str) -> None:
    """Continuous batching with the default backend, against the reference backend without cache."""
    fast, reference = (
        load(GOLDEN / name, backend=backend, dtype="float32") for backend in ("auto", "reference")
    )
    batch = generate(fast, PROMPTS, policy="off", max_new_tokens=10, max_batch=3)
    expected = _greedy_by_full_passes(reference, 10)
    assert [result.token_ids for result in batch.results] == expected
    assert batch.stats.experts_per_layer == batch.stats.topk_experts_per_layer > 0


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        ("qwen3_moe", "lynx:alpha=0.5,beta=1"),
        ("qwen3_moe", "xshare:budget=4"),
        ("deepseek_v3", "lynx:alpha=0.5,beta=1"),
        ("deepseek_v2_lite", "oea:k0=2"),
        ("gpt_oss", "xshare:budget=4"),
        ("llama4_text", "xshare:budget=3"),
    ],
)
def test_no_policy_reads_more_experts_than_topk(name: str, policy: str) -> None:
    loaded = load(GOLDEN / name, dtype="float32")
    stats = generate(loaded, SHORT, policy=policy, max_new_tokens=10, ignore_eos=True).stats
    assert 0 < stats.experts_per_layer <= stats.topk_experts_per_layer


def test_of_a_harmony_conversation_the_final_channel_is_the_text(tmp_path: Path) -> None:
    folder = shutil.copytree(GOLDEN / "gpt_oss", tmp_path / "gpt_oss")
    shutil.copytree(GOLDEN / "chat" / "gpt_oss", folder, dirs_exist_ok=True)
    loaded = load(folder, dtype="float32")
    words = loaded.tokenizer.encode("Hello, fox", add_special_tokens=False)
    prompts = [[{"role": "user", "content": "Hi"}], words]
    chat, plain = generate(loaded, prompts, policy="off", max_new_tokens=4).results
    channel = FinalChannel(loaded.tokenizer)
    assert chat.text == loaded.tokenizer.decode([t for t in chat.token_ids if channel.shows(t)])
    assert len(chat.text) < len(loaded.tokenizer.decode(chat.token_ids))
    assert plain.text


def test_command_line_on_a_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    argv = [
        "--model",
        str(GOLDEN / "qwen3_moe"),
        "--chat",
        "--prompt",
        "Hello, fox",
        "--prompt",
        "Hi",
    ]
    assert run([*argv, "--max-new-tokens", "4", "--compare", "--json", "--dtype", "float32"]) == 0
    printed = capsys.readouterr()
    value = json.loads(printed.out)
    assert [len(value[side]["results"]) for side in ("off", "on")] == [2, 2]
    keys_and_values = 2 * 4 * 2 * 10  # of four layers, two heads of 10 values
    assert f"3 of 12 experts and {4 * keys_and_values} cache bytes a token" in printed.err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--policy", "xshare:budget=1"], "expected a budget from k="),
        (["--policy", "oea:k0=99"], "expected k0 of at most k="),
        (["--prompt", "fox " * 200], "tokens, expected at most"),
        (["--model", str(GOLDEN)], "expected config.json"),
    ],
)
def test_bad_input_in_a_process_of_its_own(argv: list[str], message: str) -> None:
    command = [sys.executable, "-m", "lynx_jax.generate", "--model", str(GOLDEN / "mixtral")]
    prompt = [] if "--prompt" in argv else ["--prompt", "a"]
    result = subprocess.run([*command, *prompt, *argv], capture_output=True, text=True, check=False)
    notes = ("loaded in", "the policy acts")
    lines = [line for line in result.stderr.splitlines() if not any(n in line for n in notes)]
    assert result.stderr.count("loaded in") <= 1
    assert result.returncode == 2
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert message in lines[0]
