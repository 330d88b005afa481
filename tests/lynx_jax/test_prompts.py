import io
from pathlib import Path

import pytest

from lynx_jax.errors import InputError
from lynx_jax.prompts import as_messages, read_prompts, read_stdin

_HI = [{"role": "user", "content": "Hi"}]


def test_every_form_of_line(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(
        '\ufeff"one"\n\n{"prompt": "two", "id": 7}\r\n'
        '{"messages": [{"role": "user", "content": "Hi"}]}\n',
        encoding="utf-8",
    )
    assert read_prompts(path) == ["one", "two", _HI]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "got an empty file"),
        ("\n  \n", "got an empty file"),
        ('"a"\nplain text\n', "line 2: expected JSON, but column 1"),
        ("\n\n5", "line 3: expected text or an object"),
        ("{}", "line 1: expected text or an object with either"),
        ("[" * 100_000, "line 1: expected JSON, got too deep nesting"),
        ('{"prompt": ' + "9" * 5000 + "}", "too long a number"),
        ('{"prompt": "a", "messages": []}', "either 'prompt' or 'messages'"),
        ('{"prompt": ""}', "at least one character"),
        ('""', "at least one character"),
        ('{"prompt": 5}', "expected 'prompt' as text"),
        ('{"messages": []}', "line 1: expected messages as a non-empty list"),
        ('{"messages": [{"content": "x"}]}', "line 1: message 1: expected an object with"),
    ],
)
def test_malformed_files_name_the_line(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(content)
    with pytest.raises(InputError, match=message) as caught:
        read_prompts(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_line_separators_inside_strings_do_not_split_lines(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('"a\u2028b\x85c"\n', encoding="utf-8")
    assert read_prompts(path) == ["a\u2028b\x85c"]


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_prompts(tmp_path / "none.jsonl")


@pytest.mark.parametrize(
    ("raw", "expected"),
    [(b"a\nb\n", "a\nb"), (b"a\r\n", "a"), (b"a\n\n", "a\n"), ("日".encode(), "日")],
)
def test_stdin_is_one_prompt(raw: bytes, expected: str) -> None:
    assert read_stdin(io.BytesIO(raw), is_terminal=False) == expected


@pytest.mark.parametrize(
    ("raw", "is_terminal", "message"),
    [(b"a", True, "give --prompt"), (b" \n", False, "empty"), (b"\xff", False, "UTF-8")],
)
def test_unusable_stdin(raw: bytes, is_terminal: bool, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_stdin(io.BytesIO(raw), is_terminal=is_terminal)


def test_chat_makes_messages_of_texts_only() -> None:
    assert as_messages(["Hi", _HI]) == [_HI, _HI]
