"""Command lines whose errors are one line, and numbers given as text."""

import argparse
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
