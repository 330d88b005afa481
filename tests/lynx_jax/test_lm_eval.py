"""The adapter for lm-eval, by lm-eval itself, on tasks that are written here."""

import json
import os
import subprocess
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lynx_jax.errors import InputError
from lynx_jax.generation import Generator
from lynx_jax.lm_eval import main
from lynx_jax.loading import load

lm_eval = pytest.importorskip("lm_eval", reason="the extra 'lm-eval' is missing")

from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

from lynx_jax.lm_eval_model import LynxJaxLM  # noqa: E402

SETTINGS = {"policy": "lynx", "backend": "reference", "dtype": "float32", "max_gen_toks": 5}
ARGUMENTS = ",".join(f"{name}={value}" for name, value in {"path": "demo", **SETTINGS}.items())
BATCH = 4
PROMPTS = [f"{a} * {b} =" for a, b in [(2, 3), (6, 7), (3, 3), (9, 1), (4, 5), (7, 8)]]
COMMON = """
task: {name}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
doc_to_text: "{{{{question}}}}"
"""
TASKS = {
    "products_written": """
output_type: generate_until
doc_to_target: "{{answer}}"
generation_kwargs:
  until: ["\\n", "."]
  max_gen_toks: 6
metric_list:
  - metric: exact_match
filter_list:
  - name: number
    filter:
      - function: regex
        regex_pattern: "(\\\\d+)"
      - function: take_first
""",
    "products_chosen": """
output_type: multiple_choice
doc_to_choice: "{{choices}}"
doc_to_target: 0
metric_list:
  - metric: acc
""",
    "products_read": """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{question}} {{answer}}"
metric_list:
  - metric: word_perplexity
""",
}


def product(prompt):
    a, b = prompt.removesuffix(" =").split(" * ")
    return int(a) * int(b)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """A folder of task files with their data."""
    folder = tmp_path_factory.mktemp("tasks")
    data = folder / "products.jsonl"
    rows = [
        {
            "question": prompt,
            "answer": str(product(prompt)),
            "choices": [str(product(prompt)), "zebra", "import"],
        }
        for prompt in PROMPTS
    ]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, text in TASKS.items():
        (folder / f"{name}.yaml").write_text(COMMON.format(name=name, data=data) + text)
    return folder


@pytest.fixture(scope="module")
def model():
    return LynxJaxLM("demo", batch_size=BATCH, **SETTINGS)


@pytest.fixture(scope="module")
def loaded():
    """The same checkpoint, apart from the adapter."""
    return load("demo", backend="reference", dtype="float32")


@pytest.fixture(scope="module")
def manager(tasks, tmp_path_factory):
    """What lm-eval finds the tasks by."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
        yield TaskManager(include_path=str(tasks), include_defaults=False)


def evaluated_by_name(manager, names, arguments=ARGUMENTS):
    return lm_eval.simple_evaluate(
        "lynx_jax",
        arguments,
        tasks=names,
        batch_size=BATCH,
        task_manager=manager,
        bootstrap_iters=0,
    )


@pytest.fixture(scope="module")
def results(manager):
    """What lm-eval makes of all tasks."""
    return evaluated_by_name(manager, list(TASKS))


def test_lm_eval_runs_every_kind_of_request(results):
    found = results["results"]
    assert found["products_written"]["exact_match,number"] >= 0.5
    assert found["products_chosen"]["acc,none"] >= 0.9
    assert 1 < found["products_read"]["word_perplexity,none"] < 1e6


def test_results_say_what_was_run(results, model):
    told = model.get_model_info()
    assert told["lynx_jax_policy"].startswith("Lynx(")
    assert "plain top-k" in told["lynx_jax_loglikelihood"]
    assert told.items() <= results["config"].items()


def answers(results, task):
    """What the model answered to each request of a task."""
    return [sample["resps"] for sample in results["samples"][task]]


def test_a_model_by_name_equals_the_instance(results, model, manager):
    found = lm_eval.evaluate(model, manager.load(list(TASKS)), bootstrap_iters=0)
    assert found["results"] == results["results"]
    for task in TASKS:
        assert answers(found, task) == answers(results, task)


def test_results_of_scoring_by_decode_say_so(results, manager):
    found = evaluated_by_name(manager, ["products_chosen"], f"{ARGUMENTS},scoring=decode")
    assert found["results"]["products_chosen"]["acc,none"] >= 0.9
    assert found["config"]["lynx_jax_loglikelihood"].startswith("teacher-forced decode")
    scores, plain = (
        np.array([[score for ((score, _),) in sample] for sample in answers(r, "products_chosen")])
        for r in (found, results)
    )
    assert np.abs(scores - plain).max() > 0.1  # the policy acts


def requests(kind, arguments):
    return [Instance(kind, {}, argument, i) for i, argument in enumerate(arguments)]


def test_greedy_texts_equal_the_engines_in_the_seeds_order(model, loaded):
    prompts = ["The king", "To be or", "class Stack", "To sum up", "What", "A list of"]
    options = {"until": ["king,"], "max_gen_toks": 11, "do_sample": False}
    asked = requests("generate_until", [(prompt, options) for prompt in prompts])
    engine = Generator(loaded, policy="lynx", max_batch=BATCH)
    texts = []
    for seed in (0, 3):
        adapter = LynxJaxLM("demo", batch_size=BATCH, seed=seed, **SETTINGS) if seed else model
        order = np.random.default_rng(seed).permutation(len(prompts))
        batch = engine.generate([prompts[i] for i in order], max_new_tokens=11, stop=["king,"])
        wanted = {i: result.text for i, result in zip(order, batch.results, strict=True)}
        texts.append(adapter.generate_until(asked, True))
        assert texts[-1] == [wanted[i] for i in range(len(prompts))]
    assert texts[0] != texts[1]  # other batch mates


one_pass = nnx.jit(lambda model, ids: model(ids))


def by_hand(loaded, context, continuation):
    """Log-likelihood and greedy agreement of one pair, by a pass of one row."""
    before, ids = (loaded.tokenizer.encode(text) for text in (context, context + continuation))
    padded = jnp.asarray([ids + [0] * (24 - len(ids))])  # what follows is not seen
    log_probabilities = jax.nn.log_softmax(one_pass(loaded.model, padded)[0])
    places = range(len(before) - 1, len(ids) - 1)
    total = sum(float(log_probabilities[i, ids[i + 1]]) for i in places)
    return total, all(int(jnp.argmax(log_probabilities[i])) == ids[i + 1] for i in places)


def test_loglikelihoods_equal_a_pass_by_hand(model, loaded):
    following = one_pass(loaded.model, jnp.asarray([loaded.tokenizer.encode("import os")]))
    likeliest = loaded.tokenizer.decode([int(jnp.argmax(following[0, -1]))])
    pairs = [("2 * 3 =", " 6"), ("def f(x):", "\n    return x"), ("import os", likeliest)] * 2
    found = model.loglikelihood(requests("loglikelihood", pairs), disable_tqdm=True)
    for (total, agrees), pair in zip(found, pairs, strict=True):
        wanted, wanted_agrees = by_hand(loaded, *pair)
        assert total == pytest.approx(wanted, abs=1e-3)
        assert agrees == wanted_agrees
    assert found[2][1]


def test_rolling_windows_cover_every_token_once(model, monkeypatch):
    text = "for i in range(10):\n    print(i)\n\nclass Stack:\n    def push(self, item):"
    (whole,) = model.loglikelihood_rolling(requests("loglikelihood_rolling", [(text,)]), True)
    ids = model.tok_encode(text, add_special_tokens=False)
    start = model.loglikelihood(requests("loglikelihood", [("", text)]), True)[0][0]
    assert whole == pytest.approx(start, abs=1e-3)
    monkeypatch.setattr(LynxJaxLM, "max_length", 9)
    (pieces,) = model.loglikelihood_rolling(requests("loglikelihood_rolling", [(text,)]), True)
    assert len(ids) > 16
    assert pieces != whole
    assert 0.3 < pieces / whole < 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"until": [], "max_gen_toks": 5, "num_beams": 4}, "num_beams are not supported"),
        ({"until": [], "max_gen_toks": 10**6}, "max_gen_toks below the model's context"),
    ],
)
def test_impossible_options(model, options, message):
    with pytest.raises(InputError, match=message):
        model.generate_until(requests("generate_until", [("a", options)]), True)


def test_scoring_is_known():
    with pytest.raises(InputError, match="scoring of prefill or decode, got 'x'"):
        LynxJaxLM("demo", scoring="x", backend="reference")


@pytest.mark.parametrize("value", ["x", "1.5", -1, "9" * 5000])
@pytest.mark.parametrize("name", ["batch_size", "seed", "max_gen_toks"])
def test_numbers_that_are_none(name, value):
    with pytest.raises(InputError, match=f"expected {name} as a whole number from"):
        LynxJaxLM("no/such", **{name: value})


def command(tasks, arguments, task):
    """The arguments of ``python -m lynx_jax.lm_eval`` for one task."""
    return [
        *["run", "--model", "lynx_jax", "--model_args", arguments, "--batch_size", str(BATCH)],
        *["--tasks", task, "--include_path", str(tasks)],
    ]


def test_the_command_runs_a_task(tasks, tmp_path):
    ran = subprocess.run(
        [sys.executable, "-m", "lynx_jax.lm_eval", *command(tasks, ARGUMENTS, "products_chosen")],
        env={**os.environ, "HF_DATASETS_CACHE": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    (row,) = (line for line in ran.stdout.splitlines() if line.startswith("|products_chosen"))
    assert [cell.strip() for cell in row.split("|")][5:8] == ["acc", "↑", "1"]


def test_bad_arguments_end_with_one_line(tasks, monkeypatch, capsys):
    # Without lm-eval's own tasks, which take seconds to list.
    monkeypatch.setattr("lm_eval.tasks.TaskManager", partial(TaskManager, include_defaults=False))
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")  # as the command sets it
    monkeypatch.setattr(
        "sys.argv", ["lm_eval", *command(tasks, "path=demo,policy=oea:k0=99", "products_written")]
    )
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: oea: expected k0")
