"""Conversations to train on: sums as questions, and definitions from the documentation."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator

from demo_recipe import synthetic
from demo_recipe.corpus import Document

START, END = "<|im_start|>", "<|im_end|>"

_GREETINGS = ("Hello", "Hi", "Hello!", "Hi there!", "Good morning", "Hey")
_WELCOME = "Hello! I am a small demo model. Ask me a small sum, or what a Python function does."
_IDENTITY = ("Who are you?", "What are you?", "What can you do?", "What is your name?")
_SELF = (
    "I am a small demo model: a mixture of experts trained on Python code, its documentation, "
    "Shakespeare and sums."
)

_DEFINITION = re.compile(
    r"^\.\. (function|method|class|exception|data|attribute|module):: (.+)\n((?:[ \t]+.*\n|\n)+)",
    re.MULTILINE,
)
_ROLE = re.compile(r":[a-z:]+:`[!~]?([^`<]+?)(?: <[^>]*>)?`")


def as_text(turns: Iterable[tuple[str, str]]) -> str:
    """Turns of (user, assistant) in the chat template's form."""
    return "".join(
        f"{START}user\n{asked}{END}\n{START}assistant\n{answer}{END}\n" for asked, answer in turns
    )


def definitions(documents: Iterable[Document]) -> Iterator[tuple[str, str]]:
    """(name, first paragraph of its description) for what the documentation defines."""
    for document in documents:
        for kind, signature, body in _DEFINITION.findall(document.text):
            paragraph: list[str] = []
            for line in body.splitlines():
                if line.strip().startswith((":", "..")) or (paragraph and not line.strip()):
                    break
                if "(" in line and not paragraph and kind in line:
                    continue
                if line.strip():
                    paragraph.append(line.strip())
            text = _ROLE.sub(r"`\1`", " ".join(paragraph)).replace("``", "`")
            if 30 <= len(text) <= 400 and text[-1] in ".:" and text[0].isupper():
                yield signature.strip().split("(")[0], text.rstrip(":")


def document(rng: random.Random, defined: list[tuple[str, str]]) -> str:
    """One conversation of one to three turns."""
    turns: list[tuple[str, str]] = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        drawn = rng.random()
        if drawn < 0.06:
            turns.append((rng.choice(_GREETINGS), _WELCOME))
        elif drawn < 0.12:
            turns.append((rng.choice(_IDENTITY), _SELF))
        elif drawn < 0.5 and defined:
            name, text = rng.choice(defined)
            turns.append(
                (
                    rng.choice((f"What does {name} do?", f"What is {name}?", f"Explain {name}.")),
                    text,
                )
            )
        else:
            turns.append(synthetic.as_question(synthetic.sample(rng, held_out=False), rng))
    return as_text(turns)
