import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lynx_jax.detokenize import TextStream
from lynx_jax.errors import InputError
from lynx_jax.tokenizer import Tokenizer

_TEXTS = st.text(alphabet="the quickfoxstopé日😀👩‍🚀\n.", max_size=40)
_STOPS = st.lists(st.text(alphabet="stop \n.é😀", min_size=1, max_size=4), max_size=3)


def _stream(
    tokenizer: Tokenizer, ids: list[int], stops: list[str] | tuple[str, ...] = ()
) -> tuple[str, bool]:
    stream = TextStream(tokenizer, stops=stops)
    text = "".join(stream.push(id_) for id_ in ids) + stream.finish()
    return text, stream.stopped


def _cut(text: str, stops: list[str]) -> tuple[str, bool]:
    """The text before the stop string whose last character comes first."""
    for end in range(1, len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            return text[: min(starts)], True
    return text, False


@given(_TEXTS, _STOPS)
def test_byte_level_stream_is_the_full_decode_cut_at_the_stop(
    byte_level: Tokenizer, text: str, stops: list[str]
) -> None:
    ids = byte_level.encode(text, add_special_tokens=False)
    assert _stream(byte_level, ids, stops) == _cut(byte_level.decode(ids), stops)


@given(_TEXTS, _STOPS)
def test_byte_fallback_stream_is_the_full_decode_cut_at_the_stop(
    byte_fallback: Tokenizer, text: str, stops: list[str]
) -> None:
    ids = byte_fallback.encode(text)
    assert _stream(byte_fallback, ids, stops) == _cut(byte_fallback.decode(ids), stops)


def test_of_two_stops_in_one_token_the_first_completed_counts(byte_level: Tokenizer) -> None:
    texts = (byte_level.decode([id_]) for id_ in range(300))
    text = next(t for t in texts if t.isalpha() and len(t) > 1 and len(set(t)) == len(t))
    (id_,) = byte_level.encode(text, add_special_tokens=False)
    assert _stream(byte_level, [id_], [text[1:], text[0]]) == ("", True)


@given(st.lists(st.integers(0, 299), max_size=31))
def test_byte_level_stream_of_any_ids_is_the_full_decode(
    byte_level: Tokenizer, ids: list[int]
) -> None:
    assert _stream(byte_level, ids)[0] == byte_level.decode(ids)


@given(st.lists(st.integers(0, 272), max_size=60), st.integers(0, 60))
def test_returned_text_is_never_taken_back(
    byte_fallback: Tokenizer, ids: list[int], at: int
) -> None:
    stream = TextStream(byte_fallback)
    early = "".join(stream.push(id_) for id_ in ids[:at])
    assert _stream(byte_fallback, ids)[0].startswith(early)


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
def test_streams_equal_what_transformers_decodes(kind: str) -> None:
    golden = Path(__file__).parent.parent / "golden"
    wanted = json.loads((golden / "expected" / f"{kind}.json").read_text())
    tokenizer = Tokenizer.from_folder(golden / wanted["folder"])
    for text in wanted["texts"]:
        assert _stream(tokenizer, text["ids"])[0] == text["decoded"]


def test_pieces_hold_whole_characters_only(byte_fallback: Tokenizer) -> None:
    stream = TextStream(byte_fallback)
    ids = byte_fallback.encode("日😀", add_special_tokens=False)
    pieces = [stream.push(id_) for id_ in ids]
    assert [piece for piece in pieces if piece] == ["日", "😀"]


def test_invalid_bytes_become_replacement_characters(byte_fallback: Tokenizer) -> None:
    ids = [3 + byte for byte in "日".encode()] + [3 + 0x80]
    fox = byte_fallback.encode("fox", add_special_tokens=False)
    assert _stream(byte_fallback, ids + fox)[0] == "日\ufffd fox"


def test_unfinished_character_is_shown_at_the_end(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("a日", add_special_tokens=False)[:-1]
    assert _stream(byte_level, ids)[0] == "a\ufffd"


def test_endless_invalid_bytes_cost_linear_time(
    byte_level: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = byte_level.encode("日", add_special_tokens=False)[:1] * 500
    decoded = []
    decode = Tokenizer.decode

    def counting(self: Tokenizer, ids: list[int]) -> str:
        decoded.append(len(ids))
        return decode(self, ids)

    monkeypatch.setattr(Tokenizer, "decode", counting)
    assert _stream(byte_level, ids)[0] == "\ufffd" * 500
    assert sum(decoded) < 100 * len(ids)


def test_ids_without_text_are_dropped(byte_level: Tokenizer) -> None:
    beyond = [9999] * 100
    ids = byte_level.encode("fox", add_special_tokens=False)
    assert _stream(byte_level, [*beyond, *ids, *beyond])[0] == "fox"


def test_leading_space_is_kept_after_a_prompt(byte_fallback: Tokenizer) -> None:
    prompt = byte_fallback.encode("the quick")
    ids = byte_fallback.encode("fox", add_special_tokens=False)
    assert _stream(byte_fallback, ids)[0] == "fox"
    stream = TextStream(byte_fallback, context=prompt)
    assert "".join(stream.push(id_) for id_ in ids) == " fox"


def test_context_that_is_cut_inside_a_character(byte_fallback: Tokenizer) -> None:
    prompt = byte_fallback.encode("日" * 20)
    ids = byte_fallback.encode("日", add_special_tokens=False)
    stream = TextStream(byte_fallback, context=prompt)
    assert "".join(stream.push(id_) for id_ in ids) == " 日"


def test_special_tokens_show_nothing_and_leave_spaces_alone(byte_fallback: Tokenizer) -> None:
    ids = byte_fallback.encode("the fox", add_special_tokens=False)
    quick = byte_fallback.encode("quick", add_special_tokens=False)
    assert _stream(byte_fallback, [*ids, 2, *quick])[0] == "the fox quick"


def test_stop_string_across_tokens_is_held_back(byte_fallback: Tokenizer) -> None:
    stream = TextStream(byte_fallback, stops=["top"])
    ids = byte_fallback.encode("foxstop.", add_special_tokens=False)
    pieces = [stream.push(id_) for id_ in ids]
    assert "".join(pieces) == "foxs"
    assert stream.stopped
    assert stream.finish() == ""


def test_held_text_comes_out_when_no_stop_follows(byte_fallback: Tokenizer) -> None:
    ids = byte_fallback.encode("foxsto", add_special_tokens=False)
    assert _stream(byte_fallback, ids, ["stop"]) == ("foxsto", False)


def test_special_token_can_be_a_stop_string(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("fox<|im_end|>dog", add_special_tokens=False)
    assert _stream(byte_level, ids, ["<|im_end|>", "xy"]) == ("fox", True)


def test_empty_stop_string_is_refused(byte_level: Tokenizer) -> None:
    with pytest.raises(InputError, match="empty"):
        TextStream(byte_level, stops=["a", ""])
