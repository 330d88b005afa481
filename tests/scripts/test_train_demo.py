"""The demo model's recipe, on a tiny model and text."""

import json
import random
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from demo_recipe import (
    card,
    chat,
    corpus,
    dataset,
    dispatch,
    evaluate,
    export,
    fast_ops,
    study,
    synthetic,
    trainer,
    training_model,
)
from flax import nnx
from safetensors import safe_open

from lynx_jax.backends import ReferenceBackend
from lynx_jax.demo import facts
from lynx_jax.loading import load
from lynx_jax.pallas_kernels.expert_form import ExpertForm, ExpertWeights
from lynx_jax.routing import Phase, Routing

SHAPE = training_model.Shape(
    vocab_size=320,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    num_experts=8,
    num_experts_per_tok=2,
    moe_intermediate_size=12,
    max_position_embeddings=64,
)
SETTINGS = trainer.Settings(
    shape=SHAPE, steps=6, tokens_per_step=128, length=16, long_length=32, long_share=0.0, warmup=2
)
PROSE = "The quick brown fox jumps over the lazy dog, and runs on to the river.\n"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Token arrays of a small text in three domains, as ``dataset.prepare`` writes them."""
    folder = tmp_path_factory.mktemp("work") / "data"
    folder.mkdir()
    rng = random.Random(0)
    documents = [corpus.Document("docs", f"{n}", PROSE * n) for n in range(1, 12)]
    documents += [corpus.Document("sums", f"{n}", synthetic.document(rng)) for n in range(60)]
    documents += [corpus.Document("chat", f"{n}", chat.document(rng, [])) for n in range(40)]
    tokenizer = dataset.train_tokenizer((d.text for d in documents), SHAPE.vocab_size)
    tokenizer.save(str(folder / "tokenizer.json"))
    for side in ("train", "held_out"):
        for domain, (tokens, starts) in dataset.encode(tokenizer, documents, seed=0).items():
            np.save(folder / f"{side}_{domain}_tokens.npy", tokens)
            np.save(folder / f"{side}_{domain}_starts.npy", starts)
    return folder


@pytest.fixture(scope="module")
def run(data: Path) -> trainer.TrainState:
    """A whole run in the folder above ``data``."""
    training = trainer.Trainer(data, data.parent, SETTINGS, checkpoint_seconds=1e9)
    return training.run(log_every=2, evaluate_every=3)


def test_run_learns_and_logs(data: Path, run: trainer.TrainState) -> None:
    entries = [json.loads(line) for line in (data.parent / trainer.LOG).read_text().splitlines()]
    events = [entry["event"] for entry in entries]
    assert events[0] == "start"
    assert events[-1] == "finish"
    assert "held_out" in events
    steps = [entry for entry in entries if entry["event"] == "train"]
    assert [entry["step"] for entry in steps] == [1, 2, 4, 6]
    assert sum(entry["steps_timed"] for entry in steps) == SETTINGS.steps
    assert steps[-1]["loss"] < steps[0]["loss"] - 0.05
    assert int(run.step) == SETTINGS.steps


def test_last_steps_are_long() -> None:
    settings = trainer.Settings(steps=100, long_share=0.25)
    assert settings.length_at(74) == settings.length
    assert settings.length_at(75) == settings.long_length


def test_stopped_and_resumed_run_equals_one_in_one_go(
    data: Path, run: trainer.TrainState, tmp_path: Path
) -> None:
    first = trainer.Trainer(data, tmp_path, SETTINGS, checkpoint_seconds=-1.0)
    first._evaluate = lambda state, step: first._stop()  # type: ignore[method-assign]
    assert int(first.run(evaluate_every=3).step) == 3
    second = trainer.Trainer(data, tmp_path, SETTINGS, checkpoint_seconds=1e9)
    resumed = second.run(evaluate_every=100)
    assert '"resume"' in (tmp_path / trainer.LOG).read_text()
    jax.tree.map(np.testing.assert_array_equal, resumed, run)


def test_export_loads_in_the_library_with_the_same_logits(
    data: Path, run: trainer.TrainState, tmp_path: Path
) -> None:
    assert export.export(data.parent, tmp_path, SETTINGS) == SETTINGS.steps
    assert evaluate.trained(tmp_path) == (SETTINGS.steps, SETTINGS.steps * 128)
    model = load(tmp_path, backend="reference", dtype="float32").model
    rounded = jax.tree.map(lambda a: a.astype(jnp.bfloat16).astype(jnp.float32), run.params)
    tokens = jnp.arange(64).reshape(4, 16) * 5 % SHAPE.vocab_size
    forward = jax.jit(partial(training_model.hidden_states, shape=SHAPE, factor=8.0))
    hidden, _ = forward(rounded, tokens)
    expected = (hidden @ rounded["embed"].T).reshape(4, 16, -1)
    got = nnx.jit(lambda model, tokens: model(tokens))(model, tokens)
    np.testing.assert_allclose(got, expected, atol=1e-4)


def test_study_models_differ_only_in_how_the_experts_are_cut() -> None:
    runs = [study.settings_for(k, num_experts) for k, num_experts in study.ROUTERS]
    shapes = [settings.shape for settings in runs]
    assert [(s.num_experts_per_tok, s.num_experts) for s in shapes] == list(study.ROUTERS)
    assert {s.moe_intermediate_size * s.num_experts_per_tok for s in shapes} == {study.ACTIVE_WIDTH}
    cut = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 12}
    alike = {replace(settings, shape=replace(settings.shape, **cut)) for settings in runs}
    assert len(alike) == 1


def test_study_model_is_trained_once_and_exported(
    data: Path, run: trainer.TrainState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del run  # its programs are compiled
    monkeypatch.setattr(study, "settings_for", lambda k, num_experts: SETTINGS)
    (tmp_path / "data").symlink_to(data)
    for events in (["start", "finish"], ["start", "finish", "resume", "finish"]):
        folder = study.train(tmp_path, tmp_path / "logs", 2, 8, checkpoint_seconds=1e9)
        lines = (tmp_path / "logs" / "2of8.jsonl").read_text().splitlines()
        entries = [json.loads(line)["event"] for line in lines]
        assert [e for e in entries if e not in ("train", "held_out")] == events
    assert evaluate.trained(folder) == (SETTINGS.steps, SETTINGS.steps * 128)


def test_export_has_exactly_the_tensors_of_the_form(
    data: Path, run: trainer.TrainState, tmp_path: Path
) -> None:
    export.export(data.parent, tmp_path, SETTINGS)
    width, inner, key = SHAPE.hidden_size, SHAPE.moe_intermediate_size, 2 * SHAPE.head_dim
    expected = {
        "model.embed_tokens.weight": [SHAPE.vocab_size, width],
        "model.norm.weight": [width],
    }
    for i in range(SHAPE.num_hidden_layers):
        layer = f"model.layers.{i}"
        expected |= {
            f"{layer}.input_layernorm.weight": [width],
            f"{layer}.post_attention_layernorm.weight": [width],
            f"{layer}.self_attn.q_proj.weight": [4 * SHAPE.head_dim, width],
            f"{layer}.self_attn.k_proj.weight": [key, width],
            f"{layer}.self_attn.v_proj.weight": [key, width],
            f"{layer}.self_attn.o_proj.weight": [width, 4 * SHAPE.head_dim],
            f"{layer}.self_attn.q_norm.weight": [SHAPE.head_dim],
            f"{layer}.self_attn.k_norm.weight": [SHAPE.head_dim],
            f"{layer}.mlp.gate.weight": [SHAPE.num_experts, width],
        }
        for e in range(SHAPE.num_experts):
            for part in ("gate", "up"):
                expected[f"{layer}.mlp.experts.{e}.{part}_proj.weight"] = [inner, width]
            expected[f"{layer}.mlp.experts.{e}.down_proj.weight"] = [width, inner]
    with safe_open(tmp_path / "model.safetensors", "numpy") as opened:
        slices = {name: opened.get_slice(name) for name in opened.offset_keys()}
    found = {name: part.get_shape() for name, part in slices.items()}
    dtypes = {part.get_dtype() for part in slices.values()}
    assert found == expected
    assert dtypes == {"BF16"}


def test_exported_chat_template_is_the_form_that_was_trained(
    data: Path, run: trainer.TrainState, tmp_path: Path
) -> None:
    export.export(data.parent, tmp_path, SETTINGS)
    loaded = load(tmp_path, backend="reference")
    prompt = loaded.tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}])
    whole = chat.as_text([("Hi", "Hello!")])
    assert whole == f"{prompt}Hello!{chat.END}\n"
    ends = {loaded.tokenizer.encode(t, add_special_tokens=False)[0] for t in dataset.SPECIALS[::2]}
    assert loaded.eos_token_ids == ends


def test_card_reports_the_measured_numbers(
    data: Path, run: trainer.TrainState, tmp_path: Path
) -> None:
    export.export(data.parent, tmp_path, SETTINGS)
    losses, loads = evaluate.held_out(load(tmp_path, backend="reference"), data)
    assert set(losses) == {"docs", "sums", "chat"}
    assert len(loads) == SHAPE.num_hidden_layers
    uniform = float(np.log(SHAPE.vocab_size))
    assert all(0 < value < uniform + 1 for value in losses.values())
    counts = {name: {"tokens": 1000} for name in dataset.MIXTURE}
    (data / "data.json").write_text(json.dumps({"train": counts, "held_out": counts}))
    scores = [evaluate.Score("add", held_out=True, count=40, plain=0.25, chat=0.5)]
    results = evaluate.Results(losses, loads, scores)
    text = card.model_card(data.parent, 6, 768, results)
    assert f"| docs | {losses['docs']:.3f} |" in text
    assert "| `a + b =` | held out | 40 | 25% | 50% |" in text
    assert "from step 0 towards 6 with 128 tokens a step, 24% sums, peak 0.0025" in " ".join(
        text.split()
    )


def _choices(rows: int, k: int, experts: int) -> tuple[jax.Array, jax.Array]:
    logits = jax.random.normal(jax.random.key(3), (rows, experts))
    weights, ids = jax.lax.top_k(jax.nn.softmax(logits), k)
    return weights / weights.sum(-1, keepdims=True), ids


def _experts(experts: int = 8, inner: int = 12, width: int = 16) -> tuple[jax.Array, jax.Array]:
    a, b = jax.random.split(jax.random.key(1))
    gate_up = jax.random.normal(a, (experts, 2 * inner, width)) * 0.3
    return gate_up, jax.random.normal(b, (experts, inner, width)) * 0.3


def _reference(x: jax.Array, weights: jax.Array, ids: jax.Array, gate_up: jax.Array,
               down: jax.Array) -> jax.Array:  # fmt: skip
    rows, zero = x.shape[0], jnp.zeros((), jnp.int32)
    live = jnp.ones(rows, bool)
    routing = Routing(ids, weights, live, jnp.arange(gate_up.shape[0]), zero, zero)
    experts = ExpertWeights(gate_up, down.swapaxes(1, 2))
    return ReferenceBackend()(x, routing, experts, form=ExpertForm(), phase=Phase.PREFILL)


def test_dispatch_equals_the_reference_backend_where_capacity_suffices() -> None:
    x = jax.random.normal(jax.random.key(0), (40, 16))
    weights, ids = _choices(40, 3, 8)
    gate_up, down = _experts()
    where = dispatch.plan(ids, 8, capacity=40)
    assert bool(where.kept.all())

    def ours(*args: jax.Array) -> jax.Array:
        return jnp.sum(jnp.sin(dispatch.expert_ffn(*args, where)))

    def plain(x: jax.Array, weights: jax.Array, gate_up: jax.Array, down: jax.Array) -> jax.Array:
        return jnp.sum(jnp.sin(_reference(x, weights, ids, gate_up, down)))

    args = (x, weights, gate_up, down)
    for got, want in zip(
        jax.jit(jax.grad(ours, (0, 1, 2, 3)))(*args),
        jax.jit(jax.grad(plain, (0, 1, 2, 3)))(*args),
        strict=True,
    ):
        np.testing.assert_allclose(got, want, atol=2e-5)


def test_dispatch_drops_the_rows_beyond_capacity_and_only_them() -> None:
    x = jax.random.normal(jax.random.key(0), (40, 16))
    weights, ids = _choices(40, 3, 8)
    gate_up, down = _experts()
    where = dispatch.plan(ids, 8, capacity=10)
    seen = np.zeros(8, int)
    kept = np.zeros((40, 3), bool)
    for row in range(40):
        for column in range(3):
            kept[row, column] = seen[ids[row, column]] < 10
            seen[ids[row, column]] += 1
    assert 0 < kept.mean() < 1
    np.testing.assert_array_equal(where.kept, kept)
    want = _reference(x, jnp.where(kept, weights, 0.0), ids, gate_up, down)
    np.testing.assert_allclose(
        dispatch.expert_ffn(x, weights, gate_up, down, where), want, atol=1e-5
    )


def test_balance_loss_is_the_family_formula() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(50, 8))
    probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    chosen = np.argsort(-probabilities, axis=-1)[:, :2]
    one_hot = np.eye(8)[chosen]  # [tokens, k, experts]
    tokens_per_expert = one_hot.mean(axis=0)
    want = 8 * np.sum(tokens_per_expert * probabilities.mean(axis=0))
    load = np.bincount(chosen.ravel(), minlength=8)
    got = training_model.balance_loss(jnp.asarray(probabilities), jnp.asarray(load, jnp.float32))
    np.testing.assert_allclose(got, want, rtol=1e-5)
    even = training_model.balance_loss(jnp.full((50, 8), 1 / 8), jnp.full(8, 50 * 2 / 8))
    np.testing.assert_allclose(even, 2.0, rtol=1e-6)


def _plain_loss(params: training_model.Params, batch: jax.Array) -> jax.Array:
    """The training loss written with plain operations and autodiff."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fast_ops, "project", lambda x, kernel: x @ kernel)
        patch.setattr(fast_ops, "causal_attention", _plain_attention)
        patch.setattr(fast_ops, "rms_norm", _plain_norm)
        patch.setattr(fast_ops, "tied_cross_entropy", _plain_entropy)
        return trainer.losses(params, batch, SETTINGS, jnp.float32)[0]


def _plain_attention(q: jax.Array, k: jax.Array, v: jax.Array, scale: float) -> jax.Array:
    length = k.shape[1]
    seen = jnp.tile(jnp.tril(jnp.ones((length, length), bool)), (q.shape[1] // length, 1))
    scores = jnp.where(seen, jnp.einsum("zqh,zkh->zqk", q, k) * scale, -jnp.inf)
    return jax.nn.softmax(scores) @ v


def _plain_norm(x: jax.Array, scale: jax.Array, eps: float) -> jax.Array:
    return scale * x / jnp.sqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps)


def _plain_entropy(hidden: jax.Array, embedding: jax.Array, targets: jax.Array) -> jax.Array:
    logs = jax.nn.log_softmax(hidden @ embedding.T)
    return -jnp.mean(jnp.take_along_axis(logs, targets[:, None], axis=1))


def test_fast_operations_have_the_plain_ones_gradients() -> None:
    params = training_model.init_params(SHAPE, seed=0)
    batch = jax.random.randint(jax.random.key(2), (8, 17), 0, SHAPE.vocab_size)
    fast = jax.jit(jax.grad(lambda p: trainer.losses(p, batch, SETTINGS, jnp.float32)[0]))(params)
    plain = jax.jit(jax.grad(lambda p: _plain_loss(p, batch)))(params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=3e-6), fast, plain)


def test_batches_depend_on_the_step_alone(data: Path) -> None:
    one, other = dataset.Windows(data, 16, 8), dataset.Windows(data, 16, 8)
    for step in (0, 1):
        one.batch(step)
    np.testing.assert_array_equal(one.batch(5), other.batch(5))
    assert (one.batch(5) != one.batch(6)).any()


def test_training_text_holds_no_held_out_problem() -> None:
    rng = random.Random(5)
    for _ in range(300):
        for line in synthetic.document(rng).splitlines():
            words = line.split()
            if len(words) == 5 and words[3] == "=" and words[1] in "+-":
                kind: facts.Operation = "add" if words[1] == "+" else "sub"
                assert not facts.is_held_out(kind, int(words[0]), int(words[2]))


@pytest.mark.parametrize("kind", synthetic.KINDS)
def test_answers_are_right(kind: synthetic.Kind) -> None:
    rng = random.Random(1)
    for _ in range(50):
        item = synthetic.problem(kind, rng)
        if kind == "trace":
            printed: list[str] = []
            exec(item.prompt, {"print": lambda value, out=printed: out.append(str(value))})
            assert item.answer == " " + printed[0]
        else:
            source = item.prompt.removeprefix(">>> ").removesuffix(" =")
            assert item.answer.strip() == str(eval(source))


def test_held_out_side_is_about_a_tenth_and_commutes() -> None:
    pairs = [(a, b) for a in range(100) for b in range(100)]
    share = np.mean([facts.is_held_out("add", a, b) for a, b in pairs])
    assert 0.07 < share < 0.13
    assert all(
        facts.is_held_out("add", a, b) == synthetic.is_held_out("add", b, a) for a, b in pairs
    )
    assert not any(facts.is_held_out("sub", a, b) for a in range(10) for b in range(10))


def test_near_duplicates_are_dropped_and_files_are_split_once() -> None:
    lines = [f"This is line number {n} of the text.\n" for n in range(20)]
    documents = [
        corpus.Document("plays", "a", "".join(lines)),
        corpus.Document("plays", "b", "".join(lines[:15]) + PROSE),
        *(corpus.Document("docs", f"{n}", f"{n} {PROSE}") for n in range(200)),
    ]
    kept = corpus.deduplicate(documents)
    assert [d.path for d in kept if d.domain == "plays"] == ["a"]
    training, held_out = corpus.split([d for d in documents if d.domain == "docs"])
    assert len(held_out) == round(200 * corpus.HELD_OUT_SHARE)
    assert not {d.path for d in training} & {d.path for d in held_out}


def test_definitions_are_read_from_documentation() -> None:
    text = (
        ".. function:: sorted(iterable, /)\n\n"
        "   Return a new sorted list from the items in *iterable*; see :func:`list.sort`.\n\n"
        "   More.\n"
    )
    found = list(chat.definitions([corpus.Document("docs", "x", text)]))
    expected = "Return a new sorted list from the items in *iterable*; see `list.sort`."
    assert found == [("sorted", expected)]


def test_scored_problems_are_distinct_and_of_their_side() -> None:
    for kind in synthetic.KINDS:
        for held_out in (False, True):
            items = evaluate.problems(kind, held_out=held_out)
            assert len({item.prompt for item in items}) == len(items) <= evaluate.PROBLEMS
            assert all(item.held_out == held_out for item in items)
            assert bool(items) == (not held_out or kind != "mul")
