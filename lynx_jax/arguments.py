"""Command lines whose errors are one line; numbers and files given as text."""

import argparse
from pathlib import Path
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors read as those of the rest of the program do."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}; see --help\n")


def whole_number(text: str) -> int | None:
    """The number that decimal digits write; None for other text, or more than 18 digits.

    ``int`` takes underscores and the digits of other scripts too, and raises beyond 4300 digits.
    """
    digits = text.strip()
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= 18 else None


def new_file(text: str) -> Path:
    """The path of a file to write, as the type of an option: seen to have a folder at once."""
    path = Path(text)
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"expected a file in a folder that exists, got {text}")
    return path
