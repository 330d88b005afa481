"""Texts, ids and chats equal those of the transformers library; see tests/golden."""

import json
from pathlib import Path

import pytest

from lynx_jax.tokenizer import Tokenizer

GOLDEN = Path(__file__).parent.parent / "golden"
KINDS = ["byte_fallback", "byte_level"]
CHATS = sorted((GOLDEN / "chat").iterdir())


def read(kind):
    wanted = json.loads((GOLDEN / "expected" / f"{kind}.json").read_text())
    return Tokenizer.from_folder(GOLDEN / wanted["folder"]), wanted


@pytest.mark.parametrize("kind", KINDS)
def test_texts(kind):
    tokenizer, wanted = read(kind)
    for text in wanted["texts"]:
        assert tokenizer.encode(text["text"]) == text["ids"]
        plain = tokenizer.encode(text["text"], add_special_tokens=False)
        assert plain == text["ids_without_special_tokens"]
        assert tokenizer.decode(text["ids"]) == text["decoded"]


def assert_chats(tokenizer, chats):
    assert len(chats) >= 3
    for chat in chats:
        prompt = tokenizer.apply_chat_template(chat["messages"], **chat["options"])
        assert prompt == chat["text"]
        assert tokenizer.encode(prompt, add_special_tokens=False) == chat["ids"]


@pytest.mark.parametrize("kind", KINDS)
def test_chats(kind):
    tokenizer, wanted = read(kind)
    assert_chats(tokenizer, wanted["chats"])


@pytest.mark.parametrize("folder", CHATS, ids=lambda folder: folder.name)
def test_chats_of_each_family(folder):
    """Text and ids of conversations; special tokens do not show; all stop tokens are known."""
    tokenizer = Tokenizer.from_folder(folder)
    wanted = json.loads((folder / "expected.json").read_text())
    assert_chats(tokenizer, wanted["chats"])
    special = tokenizer.special_tokens
    assert set(wanted["stops"]) <= special.keys()
    text = "Hello, fox"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode([*special, *ids, *wanted["stops"]]) == text
