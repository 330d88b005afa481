"""More text that the demo model was not trained on."""

import itertools
import json
import sysconfig

import numpy as np
import pytest
from demo_recipe import dataset, fresh, synthetic
from demo_recipe.corpus import Document

_NUMBERS = itertools.count()


def _lines(count: int) -> str:
    """Prose of which no line stands anywhere else."""
    return "".join(
        f"Line {next(_NUMBERS)} tells a reader of the test what {next(_NUMBERS)} means.\n"
        for _ in range(count)
    )


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A tiny standard library, and what ``data`` and ``fetch`` would have prepared."""
    stdlib, packages, data = (tmp_path / name for name in ("stdlib", "packages", "data"))
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(stdlib)})
    monkeypatch.setattr(fresh, "GENERATED_CHARS", 500)
    trained = _lines(30)
    borrowed = _lines(30) + trained[:200] + "\n" + _lines(30)
    once = _lines(30)
    texts = {
        stdlib / "trained.py": trained,
        stdlib / "idlelib" / "new.py": _lines(30),
        packages / "libraries" / "a" / "trained.py": _lines(30),
        packages / "libraries" / "a" / "tests" / "copy.py": trained,
        packages / "libraries" / "a" / "tests" / "borrows.py": borrowed,
        packages / "libraries" / "a" / "tests" / "new.py": once,
        packages / "libraries" / "a" / "tests" / "newer.py": once + _lines(20),
        packages / "fresh_docs" / "new.rst.txt": _lines(200),
        packages / "fresh_docs" / "short.rst.txt": "short\n",
    }
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    data.mkdir()
    tokenizer = dataset.train_tokenizer(texts.values(), 300)
    tokenizer.save(str(data / "tokenizer.json"))
    np.save(data / "held_out_plays_tokens.npy", tokenizer.encode("1" * 50 + "2" * 50).ids)
    return packages, data


def test_text_is_of_files_that_training_leaves_out_and_borrows_nothing(work):
    packages, data = work
    counts = fresh.prepare(packages, data)
    lines = [json.loads(line) for line in (data / "fresh.jsonl").read_text().splitlines()]
    texts = {domain: [x["text"] for x in lines if x["domain"] == domain] for domain in counts}
    assert {domain: len(found) for domain, found in texts.items()} == counts
    assert [counts[domain] for domain in ("docs", "stdlib", "libraries", "plays")] == [1, 1, 1, 1]
    assert texts["libraries"] == [(packages / "libraries/a/tests/new.py").read_text()]
    (docs,) = texts["docs"]
    assert (packages / "fresh_docs/new.rst.txt").read_text().startswith(docs)
    assert 0.9 * fresh.DOCUMENT_CHARS < len(docs) <= fresh.DOCUMENT_CHARS
    assert texts["plays"] == ["2" * 50]
    fresh.prepare(packages, data)
    assert lines == [json.loads(x) for x in (data / "fresh.jsonl").read_text().splitlines()]


def test_generated_text_asks_held_out_problems_only(work):
    lines = [
        line.split()
        for document in fresh.generated([])
        if document.domain == "sums"
        for line in document.text.splitlines()
    ]
    sums = [words for words in lines if len(words) == 5 and words[3] == "=" and words[1] in "+-"]
    assert sums
    assert all(
        synthetic.is_held_out("add" if sign == "+" else "sub", int(a), int(b))
        for a, sign, b, *_ in sums
    )


@pytest.mark.parametrize(("words", "shared"), [(13, True), (12, False)])
def test_a_document_with_thirteen_words_in_a_row_of_a_known_one_is_left_out(words, shared):
    known = Document("docs", "known", " ".join(f"k{i}" for i in range(40)))
    run = " ".join(known.text.split()[5 : 5 + words])
    candidate = Document("docs", "new", f"some words {run} and more")
    assert fresh.unseen([candidate], [known]) == ([] if shared else [candidate])
