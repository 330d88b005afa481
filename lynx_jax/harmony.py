"""The answer inside a Harmony conversation, the chat format of gpt-oss.

There a model's turn consists of messages, each in a channel: ``<|channel|>analysis<|message|>...``,
at last ``<|channel|>final<|message|>...``. Only the final channel is meant for the user's eyes.
"""

from typing import Self

from lynx_jax.tokenizer import Tokenizer

_CHANNEL, _MESSAGE = "<|channel|>", "<|message|>"
_ENDS = ("<|start|>", "<|end|>", "<|call|>", "<|return|>")
_ANSWER = "final"


class FinalChannel:
    """Tells which tokens of one generated turn are text of the final channel.

    Args:
      tokenizer: has Harmony's special tokens.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._header: list[int] | None = None  # ids of a channel's name that is being written
        self._channel = ""
        self._inside = False  # between a message's opening and its end

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Self | None:
        """The filter for a turn, or None where the tokenizer does not know Harmony."""
        known = set(tokenizer.special_tokens.values())
        return cls(tokenizer) if known >= {_CHANNEL, _MESSAGE, *_ENDS[:2]} else None

    def shows(self, token_id: int) -> bool:
        """Whether this token, the turn's next one, is part of the answer."""
        special = self._tokenizer.special_tokens.get(token_id)
        if special is None:
            if self._header is not None:
                self._header.append(token_id)
            return self._inside and self._channel == _ANSWER
        if special == _CHANNEL:
            self._header, self._inside = [], False
        elif special == _MESSAGE:
            name = self._tokenizer.decode(self._header or []).split()
            self._channel = name[0] if name else ""
            self._header, self._inside = None, True
        elif special in _ENDS:
            self._header, self._inside = None, False
        return True  # special tokens have no text of their own, but may be stop strings
