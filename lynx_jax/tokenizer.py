"""Text to token ids and back, from the tokenizer files of a checkpoint."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import tokenizers

from lynx_jax.chat import ChatTemplate, Message, read_template
from lynx_jax.errors import InputError
from lynx_jax.files import read_json

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")


class Tokenizer:
    """A checkpoint's tokenizer and chat template; needs no transformers library.

    Args:
      backend: the pipeline that tokenizer.json describes.
      config: content of tokenizer_config.json; only the special tokens, ``add_bos_token`` and
        ``add_eos_token`` are read.
      chat_template: Jinja text, or None where the checkpoint has none.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        config: Mapping[str, Any] | None = None,
        chat_template: str | None = None,
    ) -> None:
        config = config or {}
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._named = _named_tokens(config)
        _mark_special(backend, self._named, config)
        self._add = {name: config.get(f"add_{name}_token") for name in ("bos", "eos")}
        self._chat = None if chat_template is None else ChatTemplate(chat_template, self._named)
        self.special_tokens: dict[int, str] = {
            id_: token.content
            for id_, token in backend.get_added_tokens_decoder().items()
            if token.special
        }

    @classmethod
    def from_folder(cls, folder: str | Path) -> Self:
        """Read ``tokenizer.json`` and, where they stand beside it, its config and chat template.

        Raises:
          InputError: there is no tokenizer.json, or one of the files is malformed.
        """
        folder = Path(folder)
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise InputError(
                f"{folder}: expected tokenizer.json, found none; copy the tokenizer files that "
                "were published with the checkpoint into this folder"
            )
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as e:  # the library raises bare Exception
            raise InputError(f"{path}: not a tokenizer that can be read ({_one_line(e)})") from e
        config: dict[str, Any] = {}
        for name in ("special_tokens_map.json", "tokenizer_config.json"):
            if (folder / name).is_file():
                config |= read_json(folder / name)
        return cls(backend, config, read_template(folder, config))

    @property
    def has_chat_template(self) -> bool:
        """Whether ``apply_chat_template`` works."""
        return self._chat is not None

    @property
    def bos_token_id(self) -> int | None:
        """Id of the token that opens a text, if there is one."""
        return self._token_id("bos_token")

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Ids that end a text according to the tokenizer's own files."""
        eos = self._token_id("eos_token")
        return frozenset() if eos is None else frozenset({eos})

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of ``text``.

        Args:
          text: any text; special tokens written out in it become their ids.
          add_special_tokens: add what opens or closes a text. False for the output of
            ``apply_chat_template``, which already holds them.

        Raises:
          InputError: the text holds half of a surrogate pair, as invalid UTF-8 on a command line or
            a lone escape in JSON leaves behind.
        """
        if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
            raise InputError("expected text in valid Unicode, got one with a lone surrogate")
        plain: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        if not add_special_tokens:
            return plain
        opening, closing = self._ends(self._backend.encode(text).ids, plain)
        return [*opening, *plain, *closing]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, without special tokens."""
        text: str = self._backend.decode(list(ids), skip_special_tokens=True)
        return text

    def apply_chat_template(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        """The prompt text of a conversation; see ``ChatTemplate.render``.

        Raises:
          InputError: the checkpoint has no chat template, or the template refuses the messages.
        """
        if self._chat is None:
            raise InputError(
                "this checkpoint has no chat template; give a plain prompt, or put the template "
                "into chat_template.jinja in the checkpoint's folder"
            )
        return self._chat.render(messages, add_generation_prompt=add_generation_prompt, **variables)

    def _token_id(self, name: str) -> int | None:
        if name not in self._named:
            return None
        found: int | None = self._backend.token_to_id(self._named[name])
        return found

    def _ends(self, full: list[int], plain: list[int]) -> tuple[list[int], list[int]]:
        """What stands around ``plain``; ``add_bos_token`` and its like outrank ``full``."""
        starts = range(len(full) - len(plain) + 1)
        start = next(i for i in starts if full[i : i + len(plain)] == plain)
        opening, closing = full[:start], full[start + len(plain) :]
        bos, eos = self._token_id("bos_token"), self._token_id("eos_token")
        if bos is not None and self._add["bos"] is not None:
            opening = [bos] if self._add["bos"] else []
        if eos is not None and self._add["eos"] is not None:
            closing = [eos] if self._add["eos"] else []
        return opening, closing


def _named_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Text of the named special tokens; each stands as text or as ``{"content": text, ...}``."""
    found = {}
    for name in _NAMED_TOKENS:
        value = config.get(name)
        if isinstance(value, Mapping):
            value = value.get("content")
        if value is None:
            continue
        if not isinstance(value, str):
            raise InputError(f"tokenizer_config.json: expected {name!r} as text, got {value!r}")
        found[name] = value
    return found


def _mark_special(
    backend: tokenizers.Tokenizer, named: Mapping[str, str], config: Mapping[str, Any]
) -> None:
    """Let decoding skip tokens that only tokenizer_config.json calls special.

    Tokens beyond the vocabulary are left out: they would get ids that the model does not have.
    """
    further = [
        text
        for name in ("additional_special_tokens", "extra_special_tokens")
        for text in _listed(config.get(name))
    ]
    texts = [*named.values(), *(text for text in further if isinstance(text, str))]
    known = {
        token.content for token in backend.get_added_tokens_decoder().values() if token.special
    }
    missing = [
        tokenizers.AddedToken(text, special=True, normalized=False)
        for text in dict.fromkeys(texts)
        if text not in known and backend.token_to_id(text) is not None
    ]
    if missing:
        backend.add_special_tokens(missing)


def _listed(value: object) -> list[object]:
    """Entries of a list, or of an object that names them."""
    if isinstance(value, Mapping):
        return list(value.values())
    return value if isinstance(value, list) else []


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
