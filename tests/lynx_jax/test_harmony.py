"""The final channel of gpt-oss's answers."""

from pathlib import Path

import pytest

from lynx_jax.harmony import FinalChannel
from lynx_jax.tokenizer import Tokenizer

CHAT = Path(__file__).parent.parent / "golden" / "chat"


def answer(text):
    """What is shown of a turn that the model writes behind ``<|start|>assistant``."""
    tokenizer = Tokenizer.from_folder(CHAT / "gpt_oss")
    channel = FinalChannel.of(tokenizer)
    ids = tokenizer.encode(text, add_special_tokens=False)
    return tokenizer.decode([token for token in ids if channel.shows(token)])


@pytest.mark.parametrize(
    ("turn", "shown"),
    [
        ("<|channel|>final<|message|>Hello, fox", "Hello, fox"),
        (
            "<|channel|>analysis<|message|>A fox.<|end|><|start|>assistant"
            "<|channel|>final<|message|>Hello.<|return|>",
            "Hello.",
        ),
        ("<|channel|>analysis<|message|>final words", ""),
        ("<|channel|>final <|constrain|>json<|message|>{}<|return|>", "{}"),
        ("<|channel|>final<|message|>One.<|end|><|start|>assistant", "One."),
        ("<|channel|>commentary to=functions.f<|message|>{}<|call|>", ""),
        (" to=functions.f<|channel|>commentary<|message|>{}<|call|>", ""),
        ("<|message|>no channel", ""),
        ("<|channel|><|message|>no name", ""),
        ("nothing of the format", ""),
    ],
)
def test_only_the_final_channel_is_shown(turn, shown):
    assert answer(turn) == shown


def test_special_tokens_pass_so_that_they_can_stop_a_text():
    tokenizer = Tokenizer.from_folder(CHAT / "gpt_oss")
    channel = FinalChannel.of(tokenizer)
    assert all(channel.shows(token) for token in tokenizer.special_tokens)


@pytest.mark.parametrize("family", ["llama4", "qwen2_moe", "deepseek_v3"])
def test_other_formats_are_left_alone(family):
    assert FinalChannel.of(Tokenizer.from_folder(CHAT / family)) is None
