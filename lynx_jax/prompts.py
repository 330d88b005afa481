"""Prompts from the command line, a file of JSON lines, or standard input."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from lynx_jax.chat import Message, check_messages
from lynx_jax.errors import InputError
from lynx_jax.files import read_text

# Text, token ids, or the messages of a conversation for the checkpoint's chat template.
type Prompt = str | Sequence[int] | Sequence[Message]


def read_prompts(path: Path) -> list[Prompt]:
    """The prompts of a JSON lines file, one a line; empty lines are skipped.

    A line is ``"text"``, ``{"prompt": "text"}`` or ``{"messages": [{"role", "content"}, ...]}``;
    other names in an object are ignored.

    Raises:
      InputError: the file cannot be read, holds no prompt, or a line has another form.
    """
    prompts: list[Prompt] = []
    text = read_text(path).removeprefix("\ufeff")
    # Not splitlines, which also splits at separators that may stand inside a JSON string.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            prompts.append(parse_line(line))
        except InputError as e:
            raise InputError(f"{path}, line {number}: {e}") from e
    if not prompts:
        raise InputError(f"{path}: expected prompts as JSON lines, got an empty file")
    return prompts


def parse_line(line: str) -> Prompt:
    """The prompt in one line of such a file.

    Raises:
      InputError: it has another form.
    """
    try:
        value = json.loads(line)
    except json.JSONDecodeError as e:
        raise InputError(f"expected JSON, but column {e.colno} does not parse ({e.msg})") from e
    except (ValueError, RecursionError) as e:
        raise InputError("expected JSON, got too deep nesting or too long a number") from e
    if isinstance(value, str):
        return _checked_text(value)
    if not isinstance(value, dict) or ("prompt" in value) == ("messages" in value):
        raise InputError("expected text or an object with either 'prompt' or 'messages'")
    if "prompt" in value:
        return _checked_text(value["prompt"])
    messages: list[dict[str, object]] = value["messages"]
    check_messages(messages)
    return messages


def read_stdin(stream: BinaryIO, *, is_terminal: bool) -> Prompt:
    """All of standard input as one prompt, without the newline at its end.

    Raises:
      InputError: it is a terminal, empty, or not UTF-8.
    """
    if is_terminal:
        raise InputError("no prompt; give --prompt TEXT, --prompts FILE.jsonl, or pipe text in")
    try:
        text = stream.read().decode("utf-8")
    except UnicodeDecodeError as e:
        raise InputError(f"standard input: expected UTF-8 text, byte {e.start} is not") from e
    if not text.strip():
        raise InputError("standard input is empty; give --prompt TEXT or --prompts FILE.jsonl")
    return text.removesuffix("\n").removesuffix("\r")


def as_messages(prompts: Sequence[Prompt]) -> list[Prompt]:
    """Every text as a conversation in which a user says it; messages stay as they are."""
    return [[{"role": "user", "content": p}] if isinstance(p, str) else p for p in prompts]


def _checked_text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise InputError(f"expected 'prompt' as text of at least one character, got {value!r:.60}")
    return value
