"""Tokenizers with the special tokens and the chat format of each family, without models.

Every byte is a token and nothing is merged, so the files stay small. The templates are written for
these tests; they give the turn markers, opening tokens and treatment of system messages that the
published checkpoints of the family have, in short.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import tokenizers
import transformers

from golden_recipe.texts import chat_of


@dataclass(frozen=True)
class ChatFormat:
    """How conversations of a family are written.

    Attributes:
      name: the family.
      template: Jinja text.
      eos: the tokenizer's own end-of-text token.
      stops: tokens that end a text by generation_config.json.
      special: other special tokens.
      bos: the token that opens a text, where there is one.
    """

    name: str
    template: str
    eos: str
    stops: tuple[str, ...]
    special: tuple[str, ...] = ()
    bos: str | None = None


_CHATML_WITH_SYSTEM = """\
{%- if messages[0].role != 'system' %}
    {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

_OLMOE = """\
{{- eos_token }}
{%- for message in messages %}
    {{- '<|' + message.role + '|>\\n' + message.content }}
    {{- eos_token + '\\n' if message.role == 'assistant' else '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>\\n' }}
{%- endif %}
"""

_DEEPSEEK_V2 = """\
{{- bos_token }}
{%- for message in messages %}
    {%- if message['role'] == 'user' %}
        {{- 'User: ' + message['content'] + '\\n\\n' }}
    {%- elif message['role'] == 'assistant' %}
        {{- 'Assistant: ' + message['content'] + eos_token }}
    {%- else %}
        {{- message['content'] + '\\n\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- 'Assistant:' }}
{%- endif %}
"""

# All system messages come first, and of an answer only what follows its reasoning.
_DEEPSEEK_V3 = """\
{%- set ns = namespace(system='') %}
{%- for message in messages if message.role == 'system' %}
    {%- set ns.system = ns.system + ('\\n\\n' if ns.system else '') + message.content %}
{%- endfor %}
{{- bos_token + ns.system }}
{%- for message in messages if message.role != 'system' %}
    {%- if message.role == 'user' %}
        {{- '<｜User｜>' + message.content }}
    {%- else %}
        {{- '<｜Assistant｜>' + message.content.split('</think>')[-1] + eos_token }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<｜Assistant｜>' }}
{%- endif %}
"""

# Content may be text or a list of parts.
_LLAMA4 = """\
{{- bos_token }}
{%- macro body(content) %}
    {%- if content is string %}
        {{- content | trim }}
    {%- else %}
        {%- for part in content if part.type == 'text' %}{{- part.text | trim }}{%- endfor %}
    {%- endif %}
{%- endmacro %}
{%- for message in messages %}
    {{- '<|header_start|>' + message.role + '<|header_end|>\\n\\n' + body(message.content) }}
    {{- '<|eot|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|header_start|>assistant<|header_end|>\\n\\n' }}
{%- endif %}
"""

# A system message of its own, the caller's in a developer message, answers in the final channel.
_GPT_OSS = """\
{{- '<|start|>system<|message|>Reasoning: ' + (reasoning_effort | default('medium')) }}
{{- '\\n\\n# Valid channels: analysis, commentary, final.<|end|>' }}
{%- for message in messages %}
    {%- if message.role in ('system', 'developer') %}
        {{- '<|start|>developer<|message|># Instructions\\n\\n' + message.content + '<|end|>' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|start|>assistant<|channel|>final<|message|>' + message.content + '<|end|>' }}
    {%- else %}
        {{- '<|start|>user<|message|>' + message.content + '<|end|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start|>assistant' }}
{%- endif %}
"""

_PHIMOE = """\
{%- for message in messages %}
    {{- '<|' + message['role'] + '|>\\n' + message['content'] + '<|end|>\\n' }}
{%- endfor %}
{{- '<|assistant|>\\n' if add_generation_prompt else eos_token }}
"""

CHAT_FORMATS = (
    ChatFormat(
        "qwen2_moe",
        _CHATML_WITH_SYSTEM,
        eos="<|im_end|>",
        stops=("<|im_end|>", "<|endoftext|>"),
        special=("<|im_start|>",),
    ),
    ChatFormat("olmoe", _OLMOE, eos="<|endoftext|>", stops=("<|endoftext|>",)),
    ChatFormat(
        "deepseek_v2",
        _DEEPSEEK_V2,
        bos="<｜begin▁of▁sentence｜>",
        eos="<｜end▁of▁sentence｜>",
        stops=("<｜end▁of▁sentence｜>",),
    ),
    ChatFormat(
        "deepseek_v3",
        _DEEPSEEK_V3,
        bos="<｜begin▁of▁sentence｜>",
        eos="<｜end▁of▁sentence｜>",
        stops=("<｜end▁of▁sentence｜>",),
        special=("<｜User｜>", "<｜Assistant｜>"),
    ),
    ChatFormat(
        "llama4",
        _LLAMA4,
        bos="<|begin_of_text|>",
        eos="<|eot|>",
        stops=("<|end_of_text|>", "<|eom|>", "<|eot|>"),
        special=("<|header_start|>", "<|header_end|>", "<|image|>"),
    ),
    ChatFormat(
        "gpt_oss",
        _GPT_OSS,
        bos="<|startoftext|>",
        eos="<|return|>",
        stops=("<|return|>", "<|endoftext|>", "<|call|>"),
        special=("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>"),
    ),
    ChatFormat(
        "phimoe",
        _PHIMOE,
        bos="<s>",
        eos="<|endoftext|>",
        stops=("<|endoftext|>", "<|assistant|>", "<|end|>"),
        special=("<|system|>", "<|user|>"),
    ),
)

_CHATS = [
    ([("user", "Hello, fox")], True),
    ([("user", "Hi"), ("assistant", "Hello.\n"), ("user", "日本語?")], False),
    (
        [
            ("system", "Answer in one word."),
            ("user", 'Say "yes" & <no>'),
            ("assistant", "yes"),
            ("user", "Again"),
        ],
        True,
    ),
]


def write_chat(chat: ChatFormat, folder: Path) -> None:
    """Write the files of a checkpoint that ``--chat`` reads, without weights."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocab={byte: i for i, byte in enumerate(alphabet)}, merges=[])
    )
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    texts = [*([chat.bos] if chat.bos else []), chat.eos, *chat.stops, *chat.special]
    backend.add_special_tokens(
        [tokenizers.AddedToken(text, special=True, normalized=False) for text in texts]
    )
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=chat.bos, eos_token=chat.eos
    )
    tokenizer.chat_template = chat.template
    tokenizer.save_pretrained(folder)
    ids = [backend.token_to_id(text) for text in chat.stops]
    generation = {"eos_token_id": ids if len(ids) > 1 else ids[0]}
    (folder / "generation_config.json").write_text(json.dumps(generation) + "\n")


def expected_chats(chat: ChatFormat, folder: Path) -> dict[str, object]:
    """What ``AutoTokenizer`` makes of conversations, and the tokens that end a text, as JSON."""
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    conversations = [
        {
            "messages": [{"role": role, "content": content} for role, content in turns],
            "add_generation_prompt": prompt,
        }
        for turns, prompt in _CHATS
    ]
    if chat.name == "gpt_oss":
        conversations.append({**conversations[0], "reasoning_effort": "high"})
    return {
        "stops": sorted(tokenizer.convert_tokens_to_ids(list(chat.stops))),
        "chats": [chat_of(tokenizer, conversation) for conversation in conversations],
    }
