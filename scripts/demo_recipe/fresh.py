"""More text that the demo model has not seen, for tests of settings chosen on the held-out text.

Files of the same kinds as the training text that it leaves out: another package's documentation,
the standard library's editor, converter and demos, the libraries' tests; the second half of the
held-out plays; and generated text by another seed, of held-out problems.
"""

import json
import random
import subprocess
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from demo_recipe import chat, corpus, dataset
from demo_recipe.corpus import Document

DOCS_PACKAGE = "sphinx-doc"
STDLIB_FOLDERS = ("idlelib", "lib2to3", "turtledemo")
DOCUMENT_CHARS = 6_000
DOMAIN_CHARS = 320_000
GENERATED_CHARS = 200_000
RUN_WORDS = 13
SEED = 2


def fetch(packages: Path) -> None:
    """Download and unpack what the training text does not need (what is there stays)."""
    target = packages / "fresh_docs"
    if not target.exists():
        subprocess.run(["apt-get", "download", DOCS_PACKAGE], cwd=packages, check=True)
        archive = next(packages.glob(f"{DOCS_PACKAGE}_*.deb"))
        subprocess.run(["dpkg-deb", "-x", str(archive), str(target)], check=True)


def read_documents(packages: Path) -> Iterator[Document]:
    """The beginnings of the files that the training text leaves out, in a fixed order."""
    stdlib = Path(sysconfig.get_paths()["stdlib"])
    libraries = packages / "libraries"
    found = {
        "docs": (packages, (packages / "fresh_docs").rglob("*.rst.txt")),
        "stdlib": (stdlib, (f for name in STDLIB_FOLDERS for f in (stdlib / name).rglob("*.py"))),
        "libraries": (libraries, (f for f in libraries.rglob("*.py") if "tests" in f.parts)),
    }
    for domain, (root, paths) in found.items():
        for path in sorted(paths):
            text = corpus.clean(path.read_bytes())
            if text is not None:
                name = path.relative_to(root).as_posix()
                yield Document(domain, name, text[:DOCUMENT_CHARS].rpartition("\n")[0] + "\n")


def held_out_plays(data: Path) -> Document:
    """The second half of the held-out plays, as prepared in ``data``."""
    tokens = np.load(data / "held_out_plays_tokens.npy")
    tokenizer = Tokenizer.from_file(str(data / "tokenizer.json"))
    text = tokenizer.decode(tokens[len(tokens) // 2 :].tolist(), skip_special_tokens=False)
    return Document("plays", "plays", text)


def generated(documents: Iterable[Document]) -> Iterator[Document]:
    """Held-out problems and definitions of the documents, by another seed than the held-out text's.

    There are few held-out facts: sums of the two texts differ in their order, not in what they ask.
    """
    rng = random.Random(SEED)
    defined = list(chat.definitions(documents))
    for domain, text_of in (
        ("sums", dataset.held_out_sums),
        ("chat", lambda rng: dataset.held_out_chat(rng, defined)),
    ):
        size = 0
        while size < GENERATED_CHARS:
            text = text_of(rng)
            size += len(text)
            yield Document(domain, f"{domain}/{SEED}", text)


def _runs(text: str) -> list[int]:
    words = text.split()
    return [hash(tuple(words[i : i + RUN_WORDS])) for i in range(len(words) - RUN_WORDS + 1)]


def unseen(documents: Iterable[Document], known: Iterable[Document]) -> list[Document]:
    """Those documents that share no run of 13 words with a known one."""
    runs = [(document, set(_runs(document.text))) for document in documents]
    candidates = set().union(*(found for _, found in runs))
    shared: set[int] = set()
    for document in known:
        shared.update(candidates.intersection(_runs(document.text)))
    return [document for document, found in runs if not found & shared]


def prepare(packages: Path, data: Path) -> dict[str, int]:
    """Write ``fresh.jsonl`` (a domain and a text a line) to ``data``; documents of each domain."""
    known = list(corpus.read_documents(packages))
    new = corpus.deduplicate([*known, *read_documents(packages)])[len(corpus.deduplicate(known)) :]
    random.Random(SEED).shuffle(new)
    size = dict.fromkeys(("docs", "stdlib", "libraries"), 0)
    kept: list[Document] = []
    for document in unseen(new, known):
        if size[document.domain] < DOMAIN_CHARS:
            kept.append(document)
            size[document.domain] += len(document.text)
    kept += [held_out_plays(data), *generated(kept)]
    lines = [json.dumps({"domain": d.domain, "text": d.text}, ensure_ascii=False) for d in kept]
    (data / "fresh.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return {name: sum(d.domain == name for d in kept) for name in dataset.MIXTURE}
