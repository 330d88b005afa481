"""Texts, ids and chats equal those of the transformers library; see tests/golden."""

import json
from pathlib import Path

import pytest

from lynx_jax.tokenizer import Tokenizer

GOLDEN = Path(__file__).parent.parent / "golden"
KINDS = ["byte_fallback", "byte_level"]


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


@pytest.mark.parametrize("kind", KINDS)
def test_chats(kind):
    tokenizer, wanted = read(kind)
    for chat in wanted["chats"]:
        prompt = tokenizer.apply_chat_template(chat["messages"], **chat["options"])
        assert prompt == chat["text"]
        assert tokenizer.encode(prompt, add_special_tokens=False) == chat["ids"]
