"""Questions with one right answer: generated ones for the demo model, and those of a file."""

import itertools
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lynx_jax.demo import facts
from lynx_jax.demo.facts import Operation
from lynx_jax.errors import InputError
from lynx_jax.files import read_text
from lynx_jax.prompts import Prompt, parse_line

_KINDS: dict[Operation, str] = {"add": "sums", "sub": "differences", "mul": "products"}
_EXAMPLES = 2


@dataclass(frozen=True)
class Question:
    """A prompt and the one right answer, a line of text.

    Attributes:
      kind: of question; accuracies are given for each too.
      fact: what is asked; questions for the same fact are not independent.
    """

    prompt: Prompt
    answer: str
    kind: str
    fact: str


@dataclass(frozen=True)
class _Fact:
    operation: Operation
    a: int
    b: int

    @property
    def name(self) -> str:
        """The same for ``a + b`` and ``b + a``."""
        a, b = self.a, self.b
        if self.operation != "sub":
            a, b = min(a, b), max(a, b)
        return facts.written(self.operation, a, b)

    @property
    def line(self) -> str:
        return f"{self.prompt} {facts.value(self.operation, self.a, self.b)}"

    @property
    def prompt(self) -> str:
        return f"{facts.written(self.operation, self.a, self.b)} ="


def arithmetic(count: int, seed: int) -> list[Question]:
    """Lines like ``12 + 7 =`` below two lines that are right.

    A third are sums and a third differences that the demo model was never trained on in any
    wording; the others are products of one digit, all of which it was trained on. The lines above
    are of facts that it was trained on, and of others than the one that is asked.
    """

    def question(asked: _Fact, shown: Sequence[_Fact], rng: random.Random) -> tuple[Prompt, str]:
        above = "".join(f"{fact.line}\n" for fact in shown)
        return above + asked.prompt, str(facts.value(asked.operation, asked.a, asked.b))

    return list(itertools.islice(_distinct(question, _EXAMPLES, seed), count))


def chat(count: int, seed: int) -> list[Question]:
    """The same facts asked in words, after one other question and its answer.

    The answer repeats the problem, ``12 + 7 = 19``.
    """

    def question(asked: _Fact, shown: Sequence[_Fact], rng: random.Random) -> tuple[Prompt, str]:
        turns = [_asked(fact, rng) for fact in (*shown, asked)]
        answers = [{"role": "assistant", "content": fact.line} for fact in shown]
        messages = [turn for pair in zip(turns, answers, strict=False) for turn in pair]
        return [*messages, turns[-1]], asked.line

    return list(itertools.islice(_distinct(question, 1, seed), count))


TASKS: dict[str, Callable[[int, int], list[Question]]] = {"arithmetic": arithmetic, "chat": chat}


def read_questions(path: Path) -> list[Question]:
    """The questions of a JSON lines file; each is a fact of its own.

    A line has ``"prompt"`` or ``"messages"`` as ``lynx_jax.prompts.read_prompts`` takes them, the
    ``"answer"``, and may have a ``"kind"``.

    Raises:
      InputError: the file cannot be read, holds no question, or a line has another form.
    """
    found: list[Question] = []
    for number, line in enumerate(read_text(path).removeprefix("\ufeff").split("\n"), start=1):
        if not line.strip():
            continue
        try:
            found.append(_question(line, f"{path}:{number}"))
        except InputError as e:
            raise InputError(f"{path}, line {number}: {e}") from e
    if not found:
        raise InputError(f"{path}: expected questions as JSON lines, got an empty file")
    return found


def _question(line: str, fact: str) -> Question:
    prompt, value = parse_line(line), json.loads(line)
    if isinstance(value, str):
        raise InputError("expected an object with 'prompt' and 'answer', got text alone")
    answer, kind = value.get("answer"), value.get("kind", "all")
    if not isinstance(answer, str) or len(answer.strip().splitlines()) != 1:
        raise InputError(f"expected 'answer' as one line of text, got {answer!r:.60}")
    if not isinstance(kind, str):
        raise InputError(f"expected 'kind' as text, got {kind!r:.60}")
    return Question(prompt, answer, kind, fact)


def _distinct(
    question: Callable[[_Fact, Sequence[_Fact], random.Random], tuple[Prompt, str]],
    examples: int,
    seed: int,
) -> Iterator[Question]:
    """Different questions without end, the operations and their facts in turn."""
    rng = random.Random(seed)
    trained = [fact for kind in _KINDS for fact in _facts(kind, held_out=False)]
    turns = [_shuffled(_facts(kind, held_out=kind != "mul"), rng) for kind in _KINDS]
    seen: set[str] = set()
    for asked in itertools.chain.from_iterable(zip(*turns, strict=True)):
        while True:
            shown = rng.sample(trained, examples)
            prompt, answer = question(asked, shown, rng)
            if repr(prompt) not in seen and asked.name not in (fact.name for fact in shown):
                break
        seen.add(repr(prompt))
        yield Question(prompt, answer, _KINDS[asked.operation], asked.name)


def _facts(kind: Operation, *, held_out: bool) -> list[_Fact]:
    pairs = facts.operands(kind)
    return [_Fact(kind, a, b) for a, b in pairs if facts.is_held_out(kind, a, b) == held_out]


def _shuffled(found: list[_Fact], rng: random.Random) -> Iterator[_Fact]:
    """All of them in a random order, again and again."""
    while True:
        yield from rng.sample(found, len(found))


def _asked(fact: _Fact, rng: random.Random) -> dict[str, str]:
    return {
        "role": "user",
        "content": rng.choice(facts.wordings(fact.operation, fact.a, fact.b)),
    }
