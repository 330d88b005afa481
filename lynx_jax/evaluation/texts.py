"""Held-out text as windows of tokens, and windows as decode batches."""

import importlib.resources
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Int

from lynx_jax.errors import InputError
from lynx_jax.files import read_text

type Composition = Literal["mixed", "domain"]


@dataclass(frozen=True)
class Document:
    """One text and the kind of text it is."""

    domain: str
    text: str


@dataclass(frozen=True)
class Windows:
    """Stretches of text of one length.

    Attributes:
      tokens: int32 ids; the last one of each row is only a target.
      documents: which document each row was cut from; rows of one document are not independent.
      domains: each row's kind of text.
    """

    tokens: Int[np.ndarray, "windows tokens"]
    documents: Int[np.ndarray, " windows"]
    domains: tuple[str, ...]

    def take(self, rows: Sequence[int]) -> "Windows":
        """Some of the rows, in the order given."""
        index = np.asarray(rows, int)
        return Windows(
            self.tokens[index], self.documents[index], tuple(self.domains[i] for i in rows)
        )


def demo_documents() -> list[Document]:
    """Text that comes with the package and that the demo model was not trained on."""
    file = importlib.resources.files("lynx_jax.demo") / "held_out.jsonl"
    return _json_lines(Path(str(file)))


def read_documents(paths: Sequence[Path]) -> list[Document]:
    """Documents of files: JSON lines of ``{"text": ..., "domain": ...}``, or a text a file.

    A text file's domain is its name without the ending.

    Raises:
      InputError: a file cannot be read, or a line holds something else.
    """
    found: list[Document] = []
    for path in paths:
        if path.suffix == ".jsonl":
            found.extend(_json_lines(path))
        else:
            found.append(Document(path.stem, read_text(path)))
    return found


def _json_lines(path: Path) -> list[Document]:
    documents = []
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
            domain = value.get("domain", path.stem)
            text = value["text"]
        except (ValueError, KeyError, AttributeError, RecursionError):
            domain = text = None
        if not (isinstance(domain, str) and isinstance(text, str)):
            raise InputError(
                f'{path}: line {number}: expected {{"text": "...", "domain": "..."}}, '
                f"got {line[:40]!r}"
            )
        documents.append(Document(domain, text))
    return documents


def cut(
    documents: Sequence[Document],
    encode: Callable[[str], list[int]],
    separator: int | None,
    length: int,
) -> Windows:
    """Windows of ``length`` tokens and one target, side by side; what is left over is dropped.

    Documents shorter than that are joined with the next short ones of their domain.

    Args:
      documents: the texts.
      encode: text to ids.
      separator: id between joined documents, if any.
      length: tokens that are fed.
    """
    tokens: list[list[int]] = []
    origins: list[int] = []
    domains: list[str] = []
    joined: dict[str, list[int]] = {}
    for number, document in enumerate(documents):
        ids = encode(document.text)
        if len(ids) <= length:
            ids = joined.pop(document.domain, []) + ids
            if len(ids) <= length:
                joined[document.domain] = ids if separator is None else [*ids, separator]
                continue
        for start in range(0, len(ids) - length, length + 1):
            tokens.append(ids[start : start + length + 1])
            origins.append(number)
            domains.append(document.domain)
    return Windows(
        np.array(tokens, np.int32).reshape(-1, length + 1), np.array(origins, int), tuple(domains)
    )


def batches(
    windows: Windows, rows: int, composition: Composition, *, seed: int, most: int | None
) -> list[Windows]:
    """Full batches of ``rows`` windows, in an order that depends on the seed alone.

    Args:
      windows: all there are.
      rows: windows a batch; the last ones that do not fill one are left out.
      composition: "mixed", where the domains take turns, or "domain", where each batch is of one.
      seed: of the order within each domain.
      most: batches wanted; None for all.

    Raises:
      InputError: there are too few windows for one batch.
    """
    rng = np.random.default_rng(seed)
    by_domain: dict[str, list[int]] = {}
    for row in rng.permutation(len(windows.domains)).tolist():
        by_domain.setdefault(windows.domains[row], []).append(row)
    ordered = [by_domain[domain] for domain in sorted(by_domain)]
    if composition == "mixed":
        found = list(_full(_in_turns(ordered), rows))
    else:
        found = [
            batch
            for turn in itertools.zip_longest(*(list(_full(d, rows)) for d in ordered))
            for batch in turn
            if batch is not None
        ]
    if not found:
        raise InputError(
            f"expected text for a batch of {rows}, got {len(windows.domains)} windows of "
            f"{windows.tokens.shape[1] - 1} tokens; give more --text, or a smaller --batch or "
            "--length"
        )
    return [windows.take(batch) for batch in found[:most]]


def _in_turns(lists: Sequence[Sequence[int]]) -> list[int]:
    turns = itertools.zip_longest(*lists)
    return [row for turn in turns for row in turn if row is not None]


def _full(rows: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    return (rows[i : i + size] for i in range(0, len(rows) - size + 1, size))
