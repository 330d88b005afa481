"""Finds copies of expert weights in a program that XLA has compiled."""

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

# These name or pass on what is there already. A custom call is a kernel or a library's product.
_WRITES_NO_COPY = frozenset(
    [
        "parameter",
        "get-tuple-element",
        "tuple",
        "bitcast",
        "while",
        "conditional",
        "call",
        "custom-call",
        "dot",
    ]
)
_SUMS = re.compile(r" (?:dot|reduce|custom-call)\(")


class Instruction(NamedTuple):
    """One line of a computation: the arrays of its result as (dtype, sizes), and its operands."""

    name: str
    opcode: str
    results: tuple[tuple[str, tuple[int, ...]], ...]
    operands: tuple[str, ...]
    fused: str | None


def weight_copies(hlo: str, experts: tuple[int, int, int]) -> Iterator[str]:
    """What in an optimised program copies, transposes, converts or cuts out expert weights.

    That is an operation that reads a stack of experts, computes no sum over it, and writes as many
    numbers as one expert's matrix has, or more. What stays inside a fusion is not written.

    Args:
      hlo: the program's text.
      experts: N, D and F of its MoE layers.

    Raises:
      ValueError: the program has no such stack, so nothing could be found.
    """
    num_experts, width, hidden = experts
    stacks = {(num_experts, 2 * hidden, width), (num_experts, width, hidden)}
    hlo = re.sub(r"/\*index=\d+\*/", "", hlo)
    bodies = dict(_computations(hlo))
    if not any(f"[{','.join(map(str, sizes))}]" in hlo for sizes in stacks):
        raise ValueError(f"no stack of experts of the sizes {experts} in the program")
    fused = set(re.findall(r"calls=%?([\w.\-]+)", hlo))
    for body in (text for name, text in bodies.items() if name not in fused):
        instructions = list(_instructions(body))
        read = {i.name for i in instructions if any(sizes in stacks for _, sizes in i.results)}
        for instruction in instructions:
            if instruction.opcode == "bitcast" and read.intersection(instruction.operands):
                read.add(instruction.name)
            elif _copies(instruction, read, bodies, width * hidden):
                yield f"{instruction.opcode} {instruction.name} = {_shown(instruction)}"


def _copies(
    instruction: Instruction, stacks: set[str], bodies: dict[str, str], matrix: int
) -> bool:
    if instruction.opcode in _WRITES_NO_COPY or not stacks.intersection(instruction.operands):
        return False
    if instruction.fused is not None and _SUMS.search(bodies[instruction.fused]):
        return False
    return any(math.prod(sizes) >= matrix for _, sizes in instruction.results)


def _shown(instruction: Instruction) -> str:
    return ", ".join(f"{dtype}[{','.join(map(str, s))}]" for dtype, s in instruction.results)


def _computations(hlo: str) -> Iterator[tuple[str, str]]:
    """Name and lines of every computation."""
    pattern = r"^(?:ENTRY )?%?([\w.\-]+) [^\n]*\{\n(.*?)^\}"
    for match in re.finditer(pattern, hlo, re.MULTILINE | re.DOTALL):
        yield match.group(1), match.group(2)


def _instructions(body: str) -> Iterator[Instruction]:
    pattern = r"^ +(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\(([^)]*)\)([^\n]*)"
    for name, result, opcode, operands, rest in re.findall(pattern, body, re.MULTILINE):
        called = re.search(r"calls=%?([\w.\-]+)", rest)
        yield Instruction(
            name,
            opcode,
            tuple(
                (dtype, tuple(map(int, filter(None, sizes.split(",")))))
                for dtype, sizes in re.findall(r"(\w+)\[([\d,]*)\]", result)
            ),
            tuple(re.findall(r"%([\w.\-]+)", operands)),
            called.group(1) if called else None,
        )
