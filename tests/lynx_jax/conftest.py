"""Small tokenizers of the two kinds that the model families use."""

import json
import string
from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from lynx_jax.tokenizer import Tokenizer

_CORPUS = [
    "The quick brown fox jumps over the lazy dog. Stop here, or there?",
    "naïve café — 日本語 text, 😀 and 👩‍🚀; größer, weiß.",
    "def f(x):\n    return x + 1\n\nprint(f(2))\n",
] * 4


def byte_level_backend() -> tokenizers.Tokenizer:
    """Byte-level BPE as Qwen's: tokens may hold parts of characters."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        show_progress=False,
    )
    backend.train_from_iterator(_CORPUS, trainer)
    return backend


def byte_fallback_backend(*, with_bytes: bool = True) -> tokenizers.Tokenizer:
    """SentencePiece-like BPE as Mixtral's: word starts marked, rare characters as byte tokens.

    Without byte tokens every sequence of ids is valid text.
    """
    letters = [*"stopané.\n"] if with_bytes else [*string.ascii_letters, *string.punctuation]
    words = ["▁", "▁the", "▁quick", "▁fox", "▁stop", *letters]
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)] if with_bytes else []
    tokens = ["<unk>", "<s>", "</s>", *byte_tokens, *words]
    vocab = {token: index for index, token in enumerate(tokens)}
    backend = tokenizers.Tokenizer(
        models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1, right=0),
        ]
    )
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    return backend


@pytest.fixture(scope="session")
def byte_level() -> Tokenizer:
    return Tokenizer(byte_level_backend(), {"eos_token": "<|im_end|>"})


@pytest.fixture(scope="session")
def byte_fallback() -> Tokenizer:
    return Tokenizer(byte_fallback_backend(), {"bos_token": "<s>", "eos_token": "</s>"})


@pytest.fixture(scope="session")
def letters() -> Tokenizer:
    backend = byte_fallback_backend(with_bytes=False)
    return Tokenizer(backend, {"bos_token": "<s>", "eos_token": "</s>"})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint folder's tokenizer files, without a chat template."""
    byte_fallback_backend().save(str(tmp_path / "tokenizer.json"))
    config = {"bos_token": {"content": "<s>", "lstrip": False}, "eos_token": "</s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path
