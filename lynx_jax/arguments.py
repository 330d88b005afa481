"""Command lines whose errors are one line."""

import argparse
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors read as those of the rest of the program do."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}; see --help\n")
