"""The paired comparison of policies."""

import json

import compare_policies
import numpy as np
import pytest
import tokenizers
from flax import nnx

from lynx_jax.errors import InputError
from lynx_jax.policies import OEA, Demand, TopK, XShare
from lynx_jax.tokenizer import Tokenizer
from tests.models import golden


@pytest.fixture
def text(tmp_path):
    """A file of two domains, 1,900 and 600 words: 9 and 3 windows."""
    file = tmp_path / "text.jsonl"
    texts = {"a": range(1000), "b": range(3000, 3600), "a ": range(1000, 1900)}
    lines = [
        json.dumps({"domain": domain.strip(), "text": " ".join(f"w{i}" for i in words)})
        for domain, words in texts.items()
    ]
    file.write_text("\n".join(lines))
    return file


def test_windows_do_not_overlap_and_domains_take_turns(text):
    backend = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({f"w{i}": i for i in range(4000)}, unk_token="w0")
    )
    backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    windows = compare_policies.windows_of(text, Tokenizer(backend, {}), 8)
    assert len(np.unique(windows)) == windows.size
    assert (np.diff(windows, axis=1) == 1).all()
    assert sum(window[0] >= 3000 for window in windows) == 3
    with pytest.raises(InputError, match="13 windows of text, got 12"):
        compare_policies.windows_of(text, Tokenizer(backend, {}), 13)


def test_the_error_over_batches_sees_what_rows_of_a_batch_share():
    values = np.repeat([1.0, 3.0], 4)
    got = compare_policies.paired(values, 4)
    assert got["mean"] == 2
    np.testing.assert_allclose(got["batches"], 1.0)
    np.testing.assert_allclose(got["windows"], np.sqrt(8 / 7 / 8))


def test_costs_are_nothing_for_plain_top_k_and_more_for_a_budget_of_k(monkeypatch):
    monkeypatch.setattr(compare_policies, "PROMPT", 3)
    loaded = golden.load("qwen3_moe", "reference")
    model = nnx.clone(loaded.model)
    model.layers = nnx.List(model.layers[:1])
    windows = np.random.default_rng(0).integers(0, loaded.config.vocab_size, (4, 6), np.int32)
    bench = compare_policies.Bench(model, windows, 2)
    k = loaded.config.num_experts_per_tok
    same, harsh = (bench.measure(policy) for policy in (TopK(), XShare(k)))
    np.testing.assert_array_equal(same.cross_entropy, bench.plain.cross_entropy)
    np.testing.assert_array_equal(same.divergence, np.zeros(4))
    assert same.experts == bench.plain.experts > harsh.experts == k
    assert (harsh.divergence > 0).all()


def test_a_cheaper_demand_is_below_its_rivals():
    class Bench:
        """Demand costs 1 more than plain top-k, OEA 2."""

        plain = compare_policies.Cost(np.full(4, 5.0), np.zeros(4), 9.0)

        def measure(self, policy):
            cost = 1 if isinstance(policy, Demand) else 2
            return compare_policies.Cost(np.full(4, 5.0 + cost), np.full(4, 0.1 * cost), 6.0)

    ours, rival = compare_policies.compare(Bench(), 2, [(Demand(0.1), OEA(1))])["policies"]
    assert [ours["rise"]["mean"], rival["rise"]["mean"]] == [1, 2]
    assert "demand_over_it" not in ours
    assert rival["demand_over_it"]["mean"] == -1
    assert np.isclose(rival["demand_over_it_kl"]["mean"], -0.1)


@pytest.mark.parametrize(("damped", "damping"), [(False, 0), (True, 0.5)])
@pytest.mark.parametrize("batch", [8, 16, 32])
def test_policies_that_are_compared_are_damped_alike(batch, damped, damping):
    groups = list(compare_policies.chosen(batch, damped=damped))
    assert [group[1].k0 for group in groups] == [3, 4]
    assert {policy.damping for group in groups for policy in group} == {damping}
    assert {group[0].row_power for group in groups} == {damping}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--batch", "7"], "invalid choice"),
        (["--batch", "x"], "invalid int"),
        (["--batch", "8", "--windows", "12"], "2 or more times 8, got 12"),
        (["--batch", "8", "--windows", "8"], "2 or more times 8, got 8"),
        (
            ["--out", "nowhere/results.json"],
            "argument --out: expected a file in a folder that exists, got nowhere/results",
        ),
        (["--model", str(golden.GOLDEN / "qwen3_moe")], "router of 8 of 64 experts"),
        ([], "nowhere.jsonl"),
    ],
)
def test_nonsense_ends_in_one_line(options, says, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["compare_policies.py", "--text", "nowhere.jsonl", *options])
    monkeypatch.setattr(compare_policies, "load_model", None)  # it is seen before
    with pytest.raises(SystemExit) as ended:
        compare_policies.main()
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert says in line
