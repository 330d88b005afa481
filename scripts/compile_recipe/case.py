"""A function to be compiled for an H200, and what is wrong with the machine code it becomes."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from compile_recipe.h200 import Compiled
from compile_recipe.weight_copies import weight_copies


class Case(NamedTuple):
    """What is compiled.

    Attributes:
      name: says it in a line of the report.
      function: with ``arguments`` as its shapes.
      arguments: pytrees of ShapeDtypeStructs.
      activation_bytes: what it has to keep beside arguments and results; temporaries may be as
        large.
      experts: N, D and F, where it is given stacks of experts.
      donate: arguments whose memory becomes results.
    """

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    activation_bytes: int
    experts: tuple[int, int, int] | None = None
    donate: tuple[int, ...] = ()


def report(case: Case, compiled: Compiled) -> Iterator[str]:
    """A line for each kernel, and one for the program."""
    for kernel in compiled.kernels:
        yield (
            f"{case.name}, {kernel.name}: {kernel.registers} registers, {kernel.spill_bytes} bytes "
            f"spilled, {kernel.shared_bytes} bytes of shared memory"
        )
    yield (
        f"{case.name}: temporaries {compiled.temporary_bytes / 1e6:.2f} MB, "
        f"activations {case.activation_bytes / 1e6:.2f} MB"
    )


def problems(case: Case, compiled: Compiled) -> Iterator[str]:
    """What is wrong, a line each."""
    for kernel in compiled.kernels:
        if kernel.spill_bytes:
            yield f"{case.name}, {kernel.name}: {kernel.spill_bytes} bytes of registers are spilled"
        if kernel.unsigned_maxima:
            yield f"{case.name}, {kernel.name}: takes maxima of unsigned integers"
    if compiled.temporary_bytes > case.activation_bytes:
        yield (
            f"{case.name}: temporaries of {compiled.temporary_bytes} bytes are larger than the "
            f"activations, {case.activation_bytes} bytes"
        )
    if case.experts is not None:
        for copy in weight_copies(compiled.hlo, case.experts):
            yield f"{case.name}: copies expert weights: {copy}"
