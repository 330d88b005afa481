"""Tiny tokenizers in the two published forms, and what transformers makes of some texts.

``byte_fallback`` is in the form of Mixtral's files: SentencePiece-like, opens texts with ``<s>``,
chat template in tokenizer_config.json. ``byte_level`` is in that of Qwen3's: byte-level, adds
nothing to texts, chat template in a file of its own.
"""

import json
from pathlib import Path
from typing import Any

import tokenizers
import transformers

_CORPUS = [
    "The quick brown fox jumps over the lazy dog. There, the other one waits for the others.",
    "A model of experts reads the weights of the experts that its tokens chose, and no other.",
    "def area(width, height):\n    return width * height\n\nprint(area(3, 14))\n",
    "größer als die weiße Straße; naïve café, 日本語の文章, Ωμέγα, 👩‍🚀 and 😀.",
]

_TEXTS = [
    "The quick brown fox",
    " leading and trailing spaces  ",
    "two\n\nlines\tand a tab\r\n",
    "naïve café — 日本語 👩‍🚀🇺🇳",
    "cafe\u0301 in two code points",
    "numbers 3.14159 and 1,000,000; it's they'll",
    "rare: ཨོཾ \u200b \x07 end",
    "",
    " ",
    "special <|im_end|> and <s> and </s><|endoftext|> inside",
    "<think>plain added tokens</think>tight",
]

_CHATS: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "Hello, fox"}], "add_generation_prompt": True},
    {
        "messages": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "  Hello.\n"},
            {"role": "user", "content": "日本語?"},
        ],
        "add_generation_prompt": False,
    },
    {
        "messages": [
            {"role": "system", "content": "Answer in one word."},
            {"role": "user", "content": 'Say "yes" & <no>'},
            {"role": "assistant", "content": "yes"},
            {"role": "user", "content": "Again"},
        ],
        "add_generation_prompt": True,
    },
]

# Refuses system messages that are not first, as Mixtral's template does.
_INSTRUCT = (
    "{{ bos_token }}"
    "{%- if messages[0]['role'] == 'system' %}"
    "{%- set system = messages[0]['content'] + '\\n\\n' %}{%- set rest = messages[1:] %}"
    "{%- else %}{%- set system = '' %}{%- set rest = messages %}{%- endif %}"
    "{%- for message in rest %}"
    "{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{- raise_exception('Roles must alternate: user, assistant, user, ...') }}{%- endif %}"
    "{%- if message['role'] == 'user' %}"
    "{{- ' [INST] ' + (system if loop.first else '') + message['content'] + ' [/INST]' }}"
    "{%- else %}{{- ' ' + message['content'] | trim + eos_token }}{%- endif %}"
    "{%- endfor %}"
)

# Whitespace control, namespaces and an optional variable, as in Qwen3's template.
_CHATML = """\
{%- set seen = namespace(turns=0) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- set seen.turns = seen.turns + 1 %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content.strip() + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""


def write_tokenizer(kind: str, folder: Path) -> None:
    """Put the files of one of the two tokenizers into a folder."""
    {"byte_fallback": _write_byte_fallback, "byte_level": _write_byte_level}[kind](folder)


def expected_texts(kind: str, folder: Path) -> dict[str, Any]:
    """What ``AutoTokenizer`` gives for the texts and chats, as JSON."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    chats = list(_CHATS)
    if kind == "byte_level":
        chats.append({**_CHATS[0], "enable_thinking": False})
    return {
        "texts": [_text(tokenizer, text) for text in _TEXTS],
        "chats": [chat_of(tokenizer, chat) for chat in chats],
    }


def _text(tokenizer: Any, text: str) -> dict[str, Any]:
    ids = tokenizer.encode(text)
    return {
        "text": text,
        "ids": ids,
        "ids_without_special_tokens": tokenizer.encode(text, add_special_tokens=False),
        "decoded": tokenizer.decode(ids, skip_special_tokens=True),
    }


def chat_of(tokenizer: Any, chat: dict[str, Any]) -> dict[str, Any]:
    """A conversation and what the tokenizer makes of it."""
    options = {name: value for name, value in chat.items() if name != "messages"}
    text = tokenizer.apply_chat_template(chat["messages"], tokenize=False, **options)
    ids = tokenizer.apply_chat_template(chat["messages"], **options)["input_ids"]
    return {"messages": chat["messages"], "options": options, "text": text, "ids": ids}


def _write_byte_fallback(folder: Path) -> None:
    learned = tokenizers.Tokenizer(tokenizers.models.BPE())
    learned.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(split=True)
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=125, min_frequency=2, show_progress=False)
    learned.train_from_iterator(_CORPUS[:2] * 2, trainer)
    model = json.loads(learned.to_str())["model"]
    base = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces = sorted(model["vocab"], key=model["vocab"].__getitem__)[: 307 - len(base)]
    vocab = {piece: i for i, piece in enumerate([*base, *pieces])}
    merges = [(a, b) for a, b in model["merges"] if {a, b, a + b} <= vocab.keys()]
    tokenizer = transformers.LlamaTokenizer(vocab=vocab, merges=merges, add_bos_token=True)
    tokenizer.save_pretrained(folder)
    special = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    config = {
        "add_bos_token": True,
        "add_eos_token": False,
        "added_tokens_decoder": {
            str(i): {"content": base[i], **special, "special": True} for i in range(3)
        },
        "additional_special_tokens": [],
        "bos_token": "<s>",
        "chat_template": _INSTRUCT,
        "clean_up_tokenization_spaces": False,
        "eos_token": "</s>",
        "legacy": False,
        "model_max_length": 96,
        "pad_token": None,
        "tokenizer_class": "LlamaTokenizer",
        "unk_token": "<unk>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def _write_byte_level(folder: Path) -> None:
    untrained = transformers.Qwen2Tokenizer(pad_token="<|endoftext|>")
    tokenizer = untrained.train_new_from_iterator(
        _CORPUS * 2, 305, new_special_tokens=["<|im_start|>", "<|im_end|>"], show_progress=False
    )
    tokenizer.eos_token = "<|im_end|>"
    tokenizer.add_tokens(
        [tokenizers.AddedToken(text, normalized=False) for text in ("<think>", "</think>")]
    )
    tokenizer.chat_template = _CHATML
    tokenizer.save_pretrained(folder)
