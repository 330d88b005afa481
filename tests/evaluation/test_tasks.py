"""Questions are held out and right, answers are scored exactly, intervals are wide enough."""

import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lynx_jax.demo import facts
from lynx_jax.errors import InputError
from lynx_jax.evaluation import answering, cli
from lynx_jax.evaluation.estimates import bootstrap, clustered
from lynx_jax.evaluation.questions import TASKS, Question, read_questions
from lynx_jax.evaluation.table import task_table
from lynx_jax.policies import OEA, Lynx, TopK
from lynx_jax.stats import Stats

_SIGNS = {"+": "add", "-": "sub", "*": "mul"}
_LINE = re.compile(r"(\d+) ([-+*]) (\d+) = (\d+)")


def _text(question: Question) -> str:
    """Everything that was shown, then the answer."""
    if isinstance(question.prompt, str):
        return f"{question.prompt} {question.answer}"
    return "\n".join([*(turn["content"] for turn in question.prompt), question.answer])


@pytest.mark.parametrize("task", TASKS)
@given(st.integers(0, 999), st.integers(1, 200))
@settings(max_examples=20, deadline=None)
def test_questions_are_right_distinct_and_of_their_side(task, seed, count):
    questions = TASKS[task](count, seed)
    assert len({repr(question.prompt) for question in questions}) == len(questions) == count
    assert questions == TASKS[task](count + 7, seed)[:count]
    for number, question in enumerate(questions):
        *shown, asked = _LINE.findall(_text(question))
        assert len(shown) == {"arithmetic": 2, "chat": 1}[task]
        for left, sign, right, value in (*shown, asked):
            assert eval(f"{left} {sign} {right}") == int(value)
        held_out = [facts.is_held_out(_SIGNS[s], int(a), int(b)) for a, s, b, _ in (*shown, asked)]
        assert not any(held_out[:-1])
        assert question.kind == ("sums", "differences", "products")[number % 3]
        assert held_out[-1] == (question.kind != "products")
        # The answer does not stand above, not even with the operands the other way round.
        assert all({a, b} != {asked[0], asked[2]} or s != asked[1] for a, s, b, _ in shown)


def test_another_seed_asks_other_questions():
    assert TASKS["chat"](50, 0) != TASKS["chat"](50, 1)


def test_no_question_comes_twice():
    questions = TASKS["chat"](6000, 0)  # many enough that some would by chance
    assert len({repr(question.prompt) for question in questions}) == len(questions)


def test_one_fact_has_one_name_in_both_orders():
    questions = TASKS["arithmetic"](2000, 0)
    asked = {q.fact for q in questions if q.kind == "products"}
    assert asked == {f"{a} * {b}" for a in range(10) for b in range(a, 10)}


@given(st.lists(st.sampled_from([-1.0, 0.0, 1.0]), min_size=1, max_size=30), st.integers(0, 9))
@settings(max_examples=20, deadline=None)
def test_an_interval_contains_its_mean_and_stays_among_the_values(values, seed):
    found = bootstrap(np.array(values), range(len(values)), seed)
    assert min(values) <= found.low <= found.value <= found.high <= max(values)
    assert found == bootstrap(np.array(values), [str(i) for i in range(len(values))], seed)


def test_an_interval_is_of_the_mean_of_all_questions_of_the_facts_that_are_drawn():
    found = bootstrap(np.ones(9), [*"aaaaaabcd"], seed=0)
    assert (found.low, found.value, found.high) == (1, 1, 1)


def test_an_interval_has_the_width_of_the_clustered_error():
    rng = np.random.default_rng(0)
    clusters = np.repeat(np.arange(150), rng.integers(1, 6, 150))
    values = (rng.normal(size=150)[clusters] + 0.3 * rng.normal(size=len(clusters))) * 0.5
    found = bootstrap(values, clusters.tolist(), seed=0)
    estimate = clustered(values, clusters)
    assert found.value == pytest.approx(estimate.value)
    np.testing.assert_allclose(found.high - found.low, 2 * 1.96 * estimate.error, rtol=0.05)


class _FakeGenerator:
    """Gives fixed texts by policy, and notes how it was asked."""

    texts: dict[object, list[str]]
    calls: list[dict[str, object]]

    def __init__(self, loaded, *, policy, max_batch):
        self.policy, self.max_batch = policy, max_batch

    def generate(self, prompts, *, max_new_tokens, stop, on_result):
        call = {"batch": self.max_batch, "max_new_tokens": max_new_tokens, "stop": stop}
        self.calls.append(call | {"policy": self.policy, "prompts": prompts})
        results = [SimpleNamespace(text=text) for text in self.texts[self.policy]]
        for index, result in enumerate(results):
            on_result(index, result)
        experts = 8.0 if self.policy == TopK() else 6.0
        stats = Stats(experts_per_layer=experts, mean_rows=3.5)
        return SimpleNamespace(results=results, stats=stats)


class _Letters:
    """A tokenizer of one token a letter."""

    def encode(self, text, *, add_special_tokens):
        return list(text)


@pytest.fixture
def faked(monkeypatch) -> tuple[answering.TaskResult, int]:
    """Three policies that answer four questions, and how often progress was told."""
    questions = [
        Question("1 =", "1", "sums", "a"),
        Question("2 =", " 2 ", "sums", "a"),
        Question("3 =", "3", "products", "b"),
        Question("4 =", "four", "products", "c"),
    ]
    _FakeGenerator.calls = []
    _FakeGenerator.texts = {
        TopK(): [" 1", "2", "3", "for"],
        Lynx(3, 4): [" 1", "x", "3 3", "four"],
        OEA(2): [" 1", "2", "3", "four"],
    }
    monkeypatch.setattr(answering, "Generator", _FakeGenerator)
    ticks: list[int] = []
    policies = {"off": TopK(), "lynx": Lynx(3, 4), "oea": OEA(2)}
    result = answering.evaluate_task(
        SimpleNamespace(tokenizer=_Letters()),
        "mine",
        questions,
        policies,
        batch=4,
        seed=0,
        against="oea",
        progress=lambda: ticks.append(1),
    )
    return result, len(ticks)


def test_answers_are_scored_exactly_and_in_pairs(faked):
    result, ticks = faked
    assert (result.accuracy, result.questions, result.facts, ticks) == (0.75, 4, 3, 12)
    off, lynx, oea = result.policies
    assert (off.difference.low, off.difference.high, off.lost, off.gained) == (0, 0, 0, 0)
    assert (lynx.accuracy.value, lynx.difference.value, lynx.lost, lynx.gained) == (
        0.5,
        -0.25,
        2,
        1,
    )
    assert (lynx.experts, lynx.share, lynx.mean_rows) == (6, 0.75, 3.5)
    assert lynx.against.value == -0.5
    assert oea.against == answering.Interval(0, 0, 0)
    assert (lynx.kinds["sums"].accuracy, lynx.kinds["sums"].difference.value) == (0.5, -0.5)
    assert (lynx.kinds["products"].questions, lynx.kinds["products"].difference.value) == (2, 0)
    # Both sums are one fact, so resampling it cannot change them.
    assert lynx.kinds["sums"].difference.low == lynx.kinds["sums"].difference.high == -0.5
    assert [call["policy"] for call in _FakeGenerator.calls] == [TopK(), Lynx(3, 4), OEA(2)]
    for call in _FakeGenerator.calls:
        assert (call["batch"], call["stop"]) == (4, "\n")
        assert call["max_new_tokens"] > len("four")
        assert call["prompts"] == ["1 =", "2 =", "3 =", "4 ="]


def test_the_table_has_the_kinds_of_what_changed(faked):
    lines = task_table(faked[0]).splitlines()
    assert lines[0].startswith("mine, B=4: 4 questions for 3 facts; plain top-k: 75.0% right")
    assert "less oea" in lines[1]
    assert [line.split()[0] for line in lines[2:]] == [
        *("off", "lynx", "sums", "products", "oea", "sums", "products")
    ]
    assert "-25.0 [" in lines[3]


def test_the_policy_acts_while_questions_are_answered(tmp_path):
    arguments = ["--task", "arithmetic", "--questions", "8", "--batch", "4", "--out", str(tmp_path)]
    arguments += ["--backend", "reference", "--policies", "off,xshare:budget=8"]
    assert cli.run(arguments) == 0
    report = json.loads((tmp_path / "results.json").read_text())
    (result,) = report["results"]
    off, ruined = result["policies"]
    assert off["difference"] == {"value": 0, "low": 0, "high": 0}
    assert result["questions"] == 8
    assert off["experts"] == result["experts"] > 12
    assert ruined["experts"] == 8
    assert 2 < ruined["mean_rows"] <= 4
    assert report["settings"]["questions"] == 8


def test_questions_of_a_file(tmp_path):
    path = tmp_path / "mine.jsonl"
    messages = [{"role": "user", "content": "Hi"}]
    lines = [{"prompt": "a", "answer": "b"}, {"messages": messages, "answer": "c", "kind": "x"}]
    path.write_text("\n\n".join(map(json.dumps, lines)))
    one, other = read_questions(path)
    assert (one.prompt, one.answer, one.kind) == ("a", "b", "all")
    assert (other.prompt, other.answer, other.kind) == (messages, "c", "x")
    assert one.fact != other.fact


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        ('{"prompt": "a", "answer": "b"}\n{"prompt": "a"}', "line 2: expected 'answer'"),
        ('{"prompt": "a", "answer": ""}', "one line"),
        ('{"prompt": "a", "answer": "b\\nc"}', "one line"),
        ('{"prompt": "a", "answer": 3}', "got 3"),
        ('{"prompt": "a", "answer": "b", "kind": 1}', "'kind'"),
        ('"a"', "text alone"),
        ('{"answer": "b"}', "'prompt'"),
        ("[1]", "'prompt'"),
        ("{", "JSON"),
    ],
)
def test_files_of_another_form_are_refused(tmp_path, text, says):
    path = tmp_path / "mine.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match=re.escape(says)):
        read_questions(path)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--task", "algebra"], "'algebra' is not known"),
        (["--task", ""], "task '' is not known"),
        (["--task", "no/such.jsonl"], "no/such.jsonl"),
        (["--task", "chat", "--questions", "0"], "--questions"),
        (["--task", "chat", "--length", "128"], "--length has no effect"),
        (["--task", "chat", "--prompt-tokens", "9"], "--prompt-tokens has no effect"),
        (["--task", "chat", "--composition", "mixed"], "--composition has no effect"),
        (["--demo-data", "--questions", "10"], "--questions has no effect"),
        (["--task", "chat", "--seed", "-1"], "--seed"),
    ],
)
def test_bad_options_are_one_line_and_exit_code_2(capsys, arguments, says):
    assert cli.run([*arguments, "--policies", "off"]) == 2
    error = capsys.readouterr().err
    assert re.fullmatch(r"error: [^\n]+\n", error), error
    assert says in error
