"""Chat templates: the Jinja program of a checkpoint that turns messages into one prompt string."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from lynx_jax.errors import InputError
from lynx_jax.files import read_json, read_text

type Message = Mapping[str, Any]

# What the expressions of a template may raise.
_TEMPLATE_ERRORS = (ArithmeticError, AttributeError, LookupError, RecursionError)


class ChatTemplate:
    """A compiled chat template, run in a sandbox that cannot reach or change Python objects.

    Templates see what the transformers library gives them: ``messages``, ``add_generation_prompt``,
    ``tools`` and ``documents``, the special tokens by name (``bos_token``, ...), the functions
    ``raise_exception`` and ``strftime_now``, the filter ``tojson`` and the ``generation`` block.

    Args:
      source: the Jinja text.
      special_tokens: text of ``bos_token``, ``eos_token`` and so on, where the tokenizer has them.

    Raises:
      InputError: the text is not a Jinja template.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self._special_tokens = dict(special_tokens)
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _GenerationBlock],
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as e:
            raise InputError(
                f"the chat template is not valid Jinja (line {e.lineno}: {e.message}); "
                "take the one that was published with the checkpoint"
            ) from e

    def render(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        """The prompt text of a conversation, special tokens written out.

        Args:
          messages: mappings with ``role`` and ``content``, oldest first.
          add_generation_prompt: end with the opening of the assistant's answer.
          variables: further names that the template reads, such as ``enable_thinking``.

        Raises:
          InputError: the messages are malformed, or the template refuses them.
        """
        check_messages(messages)
        context = {
            "tools": None,
            "documents": None,
            **self._special_tokens,
            **variables,
            "messages": [dict(message) for message in messages],
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._template.render(context)
        except (jinja2.TemplateError, TypeError, ValueError, *_TEMPLATE_ERRORS) as e:
            reason = " ".join(str(e).split())
            raise InputError(f"the chat template refuses these messages: {reason}") from e


def check_messages(messages: object) -> None:
    """Raise ``InputError`` unless ``messages`` is a conversation that templates understand."""
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise InputError("expected messages as a non-empty list of {role, content} objects")
    for number, message in enumerate(messages, start=1):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise InputError(f"message {number}: expected an object with a string 'role'")
        if "content" not in message and "tool_calls" not in message:
            raise InputError(f"message {number}: expected 'content' beside 'role'")


def read_template(folder: Path, tokenizer_config: Mapping[str, Any]) -> str | None:
    """The chat template text of a checkpoint folder, or None where it has none.

    Looked for in ``chat_template.jinja``, then under ``chat_template`` in tokenizer_config.json
    (text, or a list of named templates of which ``default`` is taken), then in
    ``chat_template.json``.

    Raises:
      InputError: a template is there, but in no known form.
    """
    if (path := folder / "chat_template.jinja").is_file():
        return read_text(path)
    if (inline := tokenizer_config.get("chat_template")) is not None:
        return _pick(inline, folder / "tokenizer_config.json")
    if (path := folder / "chat_template.json").is_file():
        return _pick(read_json(path).get("chat_template"), path)
    return None


def _pick(value: object, path: Path) -> str:
    """The text of a ``chat_template`` entry: itself, or the default of several named ones."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(entry, dict) for entry in value):
        named = {str(entry.get("name")): entry.get("template") for entry in value}
        if isinstance(text := named.get("default"), str):
            return text
        raise InputError(
            f"{path}: expected a chat template named 'default', got {', '.join(named) or 'none'}"
        )
    raise InputError(f"{path}: expected 'chat_template' as text or a list of named templates")


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without the HTML escapes of Jinja's own filter: prompts are plain text."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


class _GenerationBlock(Extension):
    """``{% generation %}``: marks the assistant's tokens for training; here just its content."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it as an instance variable

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
