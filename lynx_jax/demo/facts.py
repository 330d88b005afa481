"""The sums that the demo model was trained on, and those of them that are kept for scoring.

Operands go up to `LARGEST`. A fact with an operand of two digits may be *held out*: a fixed tenth
of them, chosen by a hash, never occurs in training in any wording. Facts of one digit are all
trained: a multiplication table cannot be inferred, only learnt.
"""

import hashlib
from typing import Literal

type Operation = Literal["add", "sub", "mul"]

HELD_OUT_ONE_IN = 10
LARGEST = 20

_WORDS = {"add": "plus", "sub": "minus", "mul": "times"}
_SIGNS = {"add": "+", "sub": "-", "mul": "*"}


def hashed_out(key: str) -> bool:
    """Whether the text is one of the tenth that is held out."""
    digest = hashlib.sha256(key.encode()).digest()
    return int.from_bytes(digest[:4], "big") % HELD_OUT_ONE_IN == 0


def is_held_out(kind: Operation | Literal["compare"], a: int, b: int) -> bool:
    """Whether the fact ``a kind b`` is reserved for scoring; ``a + b`` and ``b + a`` are one."""
    if max(a, b) < 10:
        return False
    if kind != "sub":
        a, b = min(a, b), max(a, b)
    return hashed_out(f"{kind} {a} {b}")


def operands(kind: Operation) -> list[tuple[int, int]]:
    """Every pair that is in range; differences are not negative."""
    numbers = range(10 if kind == "mul" else LARGEST + 1)
    return [(a, b) for a in numbers for b in numbers if kind != "sub" or a >= b]


def value(kind: Operation, a: int, b: int) -> int:
    """The result."""
    return {"add": a + b, "sub": a - b, "mul": a * b}[kind]


def written(kind: Operation, a: int | str, b: int | str) -> str:
    """``12 + 7``: the operation in signs."""
    return f"{a} {_SIGNS[kind]} {b}"


def wordings(kind: Operation, a: int, b: int) -> tuple[str, ...]:
    """The ways in which a user asks for the result."""
    signs = written(kind, a, b)
    spoken = f"{a} {_WORDS[kind]} {b}"
    return f"What is {signs}?", f"What is {spoken}?", f"Compute {signs}.", f"{signs} = ?"
