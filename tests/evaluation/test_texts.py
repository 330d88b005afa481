"""Windows lose no order, mix no domains and fill batches; documents are read or refused."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lynx_jax.errors import InputError
from lynx_jax.evaluation.texts import (
    Document,
    Windows,
    batches,
    cut,
    demo_documents,
    read_documents,
)

_SEPARATOR = 0


def _encode(text: str) -> list[int]:
    return [ord(character) for character in text]


@given(
    st.lists(st.tuples(st.sampled_from("xy"), st.text(alphabet="abc", max_size=20)), max_size=12),
    st.integers(1, 6),
)
def test_windows_are_stretches_of_their_domain(documents, length):
    windows = cut([Document(*document) for document in documents], _encode, _SEPARATOR, length)
    assert windows.tokens.shape[1] == length + 1
    for row, origin, domain in zip(windows.tokens, windows.documents, windows.domains, strict=True):
        assert documents[origin][0] == domain
        long = len(documents[origin][1]) > length
        short = [t for name, t in documents if name == domain and len(t) <= length]
        source = documents[origin][1] if long else "\0".join(short) + "\0"
        assert "".join(map(chr, row)) in source
    for origin, (_, text) in enumerate(documents):
        if len(text) > length:  # side by side from the beginning
            rows = windows.tokens[windows.documents == origin]
            joined = "".join(map(chr, rows.reshape(-1)))
            assert joined == text[: len(text) // (length + 1) * (length + 1)]


def _windows(counts: dict[str, int]) -> Windows:
    domains = [domain for domain, count in counts.items() for _ in range(count)]
    rows = np.arange(len(domains))
    return Windows(np.repeat(rows[:, None], 3, axis=1).astype(np.int32), rows, tuple(domains))


@given(st.integers(0, 9), st.integers(0, 9), st.integers(1, 4), st.integers(0, 3))
def test_batches_are_full_and_use_a_window_once(x, y, rows, seed):
    windows = _windows({"x": x, "y": y})
    for composition, expected in (
        ("mixed", (x + y) // rows),
        ("domain", x // rows + y // rows),
    ):
        if not expected:
            with pytest.raises(InputError, match="expected text for a batch"):
                batches(windows, rows, composition, seed=seed, most=None)
            continue
        found = batches(windows, rows, composition, seed=seed, most=None)
        assert [len(batch.domains) for batch in found] == [rows] * expected
        used = np.concatenate([batch.documents for batch in found])
        assert len(set(used.tolist())) == len(used)
        if composition == "domain":
            assert all(len(set(batch.domains)) == 1 for batch in found)


def test_mixed_batches_take_domains_in_turn():
    found = batches(_windows({"x": 4, "y": 4}), 4, "mixed", seed=0, most=1)
    assert [batch.domains for batch in found] == [("x", "y", "x", "y")]


def test_files_are_documents(tmp_path):
    (tmp_path / "plain.txt").write_text("one\n")
    lines = [{"text": "two", "domain": "code"}, {"text": "three"}]
    (tmp_path / "many.jsonl").write_text("\n\n".join(map(json.dumps, lines)))
    found = read_documents([tmp_path / "plain.txt", tmp_path / "many.jsonl"])
    assert found == [Document("plain", "one\n"), Document("code", "two"), Document("many", "three")]


@pytest.mark.parametrize("line", ["{", "[]", '{"domain": "x"}', '{"text": 1}', '"text"'])
def test_other_lines_are_refused(tmp_path, line):
    path = tmp_path / "bad.jsonl"
    path.write_text(f'{{"text": "good"}}\n{line}\n')
    with pytest.raises(InputError, match="line 2: expected"):
        read_documents([path])


def test_the_bundled_text_has_all_domains():
    documents = demo_documents()
    assert {document.domain for document in documents} == {
        "docs", "stdlib", "libraries", "plays", "sums", "chat",
    }  # fmt: skip
    assert 250_000 < sum(len(document.text) for document in documents) < 400_000
