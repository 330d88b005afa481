"""Tokenizer and token arrays: what the training step reads, written once to a folder."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from demo_recipe import chat, corpus, synthetic

VOCAB_SIZE = 4096
END_OF_TEXT = "<|endoftext|>"
SPECIALS = (END_OF_TEXT, chat.START, chat.END)
# Share of the training windows that comes from each domain.
MIXTURE = {
    "docs": 0.17,
    "stdlib": 0.16,
    "libraries": 0.19,
    "plays": 0.12,
    "sums": 0.24,
    "chat": 0.12,
}
SHORT_DOMAINS = ("sums", "chat")
SUM_DOCUMENTS = 120_000
CHAT_DOCUMENTS = 70_000
HELD_OUT_SHORT = 600


def train_tokenizer(texts: Iterable[str], vocab_size: int = VOCAB_SIZE) -> Tokenizer:
    """A byte-level BPE whose digits are single tokens; the special tokens have the first ids."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def generated(held_out: bool, documents: Sequence[corpus.Document]) -> Iterator[corpus.Document]:
    """The generated domains; the held-out side holds only held-out problems and definitions."""
    rng = random.Random(int(held_out))
    defined = list(chat.definitions(item for item in documents if item.domain == "docs"))
    for index in range(HELD_OUT_SHORT if held_out else SUM_DOCUMENTS):
        text = held_out_sums(rng) if held_out else synthetic.document(rng)
        yield corpus.Document("sums", f"sums/{index}", text)
    for index in range(HELD_OUT_SHORT if held_out else CHAT_DOCUMENTS):
        text = held_out_chat(rng, defined) if held_out else chat.document(rng, defined)
        yield corpus.Document("chat", f"chat/{index}", text)


def held_out_sums(rng: random.Random) -> str:
    """A text of held-out problems only."""
    kinds: tuple[synthetic.Kind, ...] = ("add", "sub", "compare", "trace")
    items = [synthetic.sample(rng, held_out=True, kinds=kinds) for _ in range(rng.randrange(1, 4))]
    return "".join(f"{item.prompt}{item.answer}\n" for item in items)


def held_out_chat(rng: random.Random, defined: list[tuple[str, str]]) -> str:
    """One turn: a definition from a held-out file, or a held-out problem as a question."""
    if defined and rng.random() < 0.4:
        name, text = rng.choice(defined)
        return chat.as_text([(f"What does {name} do?", text)])
    kinds: tuple[synthetic.Kind, ...] = ("add", "sub", "compare", "trace")
    item = synthetic.sample(rng, held_out=True, kinds=kinds)
    return chat.as_text([synthetic.as_question(item, rng)])


def encode(
    tokenizer: Tokenizer, documents: Sequence[corpus.Document], seed: int
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Per domain: (uint16 tokens, int32 starts of documents); documents end with end-of-text."""
    end = tokenizer.token_to_id(END_OF_TEXT)
    by_domain: dict[str, list[str]] = {}
    for document in documents:
        by_domain.setdefault(document.domain, []).append(document.text)
    encoded = {}
    for domain, texts in by_domain.items():
        random.Random(seed).shuffle(texts)
        rows = [
            np.asarray([*item.ids, end], np.uint16)
            for item in tokenizer.encode_batch(texts, add_special_tokens=False)
        ]
        starts = np.cumsum([0, *map(len, rows)][:-1]).astype(np.int32)
        encoded[domain] = (np.concatenate(rows), starts)
    return encoded


def prepare(packages: Path, folder: Path) -> None:
    """Write ``tokenizer.json``, both sides' arrays and ``data.json`` (counts) to ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    training, held_out = corpus.split(corpus.deduplicate(corpus.read_documents(packages)))
    rng = random.Random(0)
    sampled = [item.text for item in training] + [synthetic.document(rng) for _ in range(5000)]
    tokenizer = train_tokenizer(sampled)
    tokenizer.save(str(folder / "tokenizer.json"))
    counts: dict[str, dict[str, dict[str, int]]] = {}
    for side, documents in (("train", training), ("held_out", held_out)):
        everything = [*documents, *generated(side == "held_out", documents)]
        counts[side] = {}
        for domain, (tokens, starts) in encode(tokenizer, everything, seed=0).items():
            np.save(folder / f"{side}_{domain}_tokens.npy", tokens)
            np.save(folder / f"{side}_{domain}_starts.npy", starts)
            counts[side][domain] = {
                "documents": len(starts),
                "bytes": sum(len(d.text.encode()) for d in everything if d.domain == domain),
                "tokens": len(tokens),
            }
    (folder / "data.json").write_text(json.dumps(counts, indent=1) + "\n")


class Windows:
    """Training windows as a pure function of (seed, step): a resumed run sees the same batches."""

    def __init__(self, folder: Path, length: int, rows: int, seed: int = 0) -> None:
        self._length, self._rows, self._seed = length, rows, seed
        self._domains = [name for name in MIXTURE if (folder / f"train_{name}_tokens.npy").exists()]
        shares = np.asarray([MIXTURE[name] for name in self._domains])
        self._shares = shares / shares.sum()
        self._tokens = [np.load(folder / f"train_{name}_tokens.npy") for name in self._domains]
        self._starts = [np.load(folder / f"train_{name}_starts.npy") for name in self._domains]

    def batch(self, step: int) -> np.ndarray:
        """Int32 [rows, length + 1]: inputs and, shifted by one, targets.

        Windows of short documents begin at a document, a tenth of the others too; the rest
        begin anywhere.
        """
        rng = np.random.default_rng((self._seed, step))
        rows = []
        for domain in rng.choice(len(self._domains), size=self._rows, p=self._shares):
            tokens, starts = self._tokens[domain], self._starts[domain]
            last = len(tokens) - self._length - 1
            aligned = self._domains[domain] in SHORT_DOMAINS or rng.random() < 0.1
            start = starts[rng.integers(len(starts))] if aligned else rng.integers(last + 1)
            start = min(int(start), last)
            rows.append(tokens[start : start + self._length + 1])
        return np.stack(rows).astype(np.int32)


def held_out_windows(folder: Path, length: int, windows: int) -> dict[str, np.ndarray]:
    """Per domain Int32 [windows, length + 1], evenly spread over its held-out text.

    A domain with too little text repeats windows; short domains' windows begin at a document.
    """
    found = {}
    for domain in MIXTURE:
        path = folder / f"held_out_{domain}_tokens.npy"
        if not path.exists():
            continue
        tokens, starts = np.load(path), np.load(folder / f"held_out_{domain}_starts.npy")
        places = np.linspace(0, len(tokens) - length - 1, windows).astype(int)
        if domain in SHORT_DOMAINS:
            places = starts[np.searchsorted(starts, places, side="right") - 1]
        found[domain] = np.stack([tokens[at : at + length + 1] for at in places]).astype(np.int32)
    return found
