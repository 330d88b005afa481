"""Generated sums, comparisons and traces of small programs, with answers that can be scored.

Which sums there are and which of them are held out, `lynx_jax.demo.facts` says; comparisons are
held out by the same rule, traces by their whole text.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

from lynx_jax.demo import facts
from lynx_jax.demo.facts import LARGEST, is_held_out

Kind = Literal["add", "sub", "mul", "compare", "trace"]

KINDS: tuple[Kind, ...] = ("add", "sub", "mul", "compare", "trace")


@dataclass(frozen=True)
class Problem:
    """One problem: ``prompt + answer`` is a training text, ``answer`` is what is scored."""

    kind: Kind
    prompt: str
    answer: str
    held_out: bool


def _operands(kind: Kind, rng: random.Random) -> tuple[int, int]:
    if kind == "mul":
        return rng.randrange(10), rng.randrange(10)
    a, b = (rng.randrange(10 if rng.random() < 0.5 else LARGEST + 1) for _ in range(2))
    if kind == "sub" and a < b:
        a, b = b, a
    if kind == "compare" and a == b:
        b = a + 1
    return a, b


def sum_problem(kind: facts.Operation, a: int, b: int) -> Problem:
    """``12 + 7 = 19``: one line with the answer at its end."""
    prompt, answer = f"{facts.written(kind, a, b)} =", f" {facts.value(kind, a, b)}"
    return Problem(kind, prompt, answer, is_held_out(kind, a, b))


def compare_problem(a: int, b: int, sign: str) -> Problem:
    """A comparison at the interpreter's prompt."""
    truth = a < b if sign == "<" else a > b
    return Problem("compare", f">>> {a} {sign} {b}\n", str(truth), is_held_out("compare", a, b))


def all_facts(kind: facts.Operation | Literal["compare"]) -> list[Problem]:
    """Every sum or comparison that is in range."""
    if kind == "compare":
        pairs = facts.operands("add")
        return [compare_problem(a, b, sign) for a, b in pairs if a != b for sign in "<>"]
    return [sum_problem(kind, a, b) for a, b in facts.operands(kind)]


def _assignments(rng: random.Random) -> tuple[str, bool]:
    first, second = rng.sample("abcdmnpqstuvwxyz", 2)
    start, step = rng.randrange(1, 20), rng.randrange(1, 10)
    kind: facts.Operation = rng.choice(("add", "sub", "add"))
    if kind == "sub" and start < step:
        start, step = step, start
    lines = [f"{first} = {start}", f"{second} = {facts.written(kind, first, step)}"]
    leaked = is_held_out(kind, start, step)
    shown = rng.choice((first, second, second))
    if rng.random() < 0.4:
        value, extra = facts.value(kind, start, step), rng.randrange(1, 10)
        lines.append(f"{second} += {extra}")
        leaked |= is_held_out("add", value, extra)
    return "\n".join([*lines, f"print({shown})"]), leaked


def _loop(rng: random.Random) -> tuple[str, bool]:
    name, count, step = (
        rng.choice(("total", "n", "count")),
        rng.randrange(1, 5),
        rng.randrange(1, 6),
    )
    program = f"{name} = 0\nfor i in range({count}):\n    {name} += {step}\nprint({name})"
    return program, False


def _list(rng: random.Random) -> tuple[str, bool]:
    values = [rng.randrange(30) for _ in range(rng.randrange(2, 5))]
    call = rng.choice((f"items[{rng.randrange(len(values))}]", "items[-1]", "len(items)"))
    return f"items = {values}\nprint({call})", False


def _branch(rng: random.Random) -> tuple[str, bool]:
    a, b = _operands("compare", rng)
    yes, no = rng.sample(("high", "low", "yes", "no", "left", "right"), 2)
    program = f"x = {a}\nif x > {b}:\n    print({yes!r})\nelse:\n    print({no!r})"
    return program, is_held_out("compare", a, b)


def run_program(program: str) -> str:
    """What ``program`` prints, each value in one line, without the last newline."""
    printed: list[str] = []
    exec(
        program,
        {"__builtins__": {"range": range, "len": len, "print": lambda v: printed.append(str(v))}},
    )
    return "\n".join(printed)


def trace_problem(rng: random.Random) -> Problem:
    """A small program and, in a comment, what it prints."""
    program, leaked = rng.choice((_assignments, _assignments, _loop, _list, _branch))(rng)
    held_out = facts.hashed_out(program)
    if leaked and not held_out:
        return trace_problem(rng)
    return Problem("trace", f"{program}\n# prints:", f" {run_program(program)}", held_out)


def problem(kind: Kind, rng: random.Random) -> Problem:
    """A random problem of one kind, held out or not."""
    if kind == "trace":
        return trace_problem(rng)
    a, b = _operands(kind, rng)
    if kind == "compare":
        return compare_problem(a, b, rng.choice("<>"))
    return sum_problem(kind, a, b)


def sample(rng: random.Random, *, held_out: bool, kinds: tuple[Kind, ...] = KINDS) -> Problem:
    """A random problem from one side of the split (``mul`` has no held-out side)."""
    kind = rng.choice(kinds)
    while (found := problem(kind, rng)).held_out != held_out:
        pass
    return found


def as_question(item: Problem, rng: random.Random) -> tuple[str, str]:
    """The same problem as a user's question and the answer to it."""
    if item.kind == "trace":
        program = item.prompt.removesuffix("\n# prints:")
        asked = rng.choice(("What does this print?", "What is the output of this code?"))
        return f"{asked}\n\n{program}", item.answer.strip()
    if item.kind == "compare":
        left, sign, right = item.prompt.removeprefix(">>> ").split()
        word = "less" if sign == "<" else "greater"
        return f"Is {left} {word} than {right}?", "Yes" if item.answer == "True" else "No"
    left, _, right = item.prompt.removesuffix(" =").split()
    asked = rng.choice(facts.wordings(item.kind, int(left), int(right)))
    return asked, f"{item.prompt}{item.answer}"


def document(rng: random.Random) -> str:
    """A training text of several plain problems, none of them held out."""
    if rng.random() < 0.2:
        item = sample(rng, held_out=False, kinds=("trace",))
        return f"{item.prompt}{item.answer}\n"
    kinds: tuple[Kind, ...] = ("add", "sub", "add", "sub", "mul", "compare")
    items = [sample(rng, held_out=False, kinds=kinds) for _ in range(rng.randrange(1, 11))]
    return "".join(f"{item.prompt}{item.answer}\n" for item in items)
