"""Reads what Mosaic GPU and ptxas print about kernels."""

import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Kernel:
    """What ptxas made of one Mosaic GPU kernel.

    Attributes:
      name: of the kernel function.
      registers: a thread.
      spill_bytes: stores and loads of spilled registers, and the stack frame; a thread.
      shared_bytes: dynamic shared memory of a block; where kernels of one name differ in it, the
        most that one of the program asks for.
      unsigned_maxima: instructions that take the larger of unsigned integers. Mosaic GPU takes
        some signed arrays for unsigned ones, which interpretation does not show.
    """

    name: str
    registers: int
    spill_bytes: int
    shared_bytes: int
    unsigned_maxima: int


# By hash, since Mosaic GPU compiles a kernel once in a process: those printed with it.
_compiled: dict[str, frozenset[Kernel]] = {}


def kernels(printed: str, shared: dict[str, int], hlo: str) -> tuple[Kernel, ...]:
    """The Mosaic GPU kernels of a program, by name.

    Args:
      printed: while it was compiled.
      shared: bytes of shared memory of the kernels of each name.
      hlo: the program's text.

    Raises:
      RuntimeError: nothing is known about one of its kernels.
    """
    new = defaultdict(set)
    for ptx, name, stack, stores, loads, registers in _PRINTED.findall(printed):
        spilled = int(stack) + int(stores) + int(loads)
        maxima = len(re.findall(r"\bmax\.u32\b", ptx))
        new[name].add(Kernel(name, int(registers), spilled, shared[name], maxima))
    found: set[Kernel] = set()
    for name, key in set(_CALLED.findall(hlo)):
        if key not in _compiled:
            if name not in new:
                raise RuntimeError(f"nothing was printed about the kernel {name!r}")
            _compiled[key] = frozenset(new[name])
        found |= _compiled[key]
    return tuple(sorted(found, key=lambda kernel: (kernel.name, kernel.registers)))


def shared_memory(folder: Path) -> dict[str, int]:
    """The most bytes of shared memory that a kernel of each name asks for.

    Args:
      folder: with ``NAME_NUMBER.resources.txt`` of every kernel.
    """
    most: dict[str, int] = defaultdict(int)
    for path in folder.glob("*.resources.txt"):
        (needed,) = re.findall(r"smem_scratch_bytes=(\d+)", path.read_text())
        name = path.name.rpartition("_")[0]
        most[name] = max(most[name], int(needed))
    return most


_PRINTED = re.compile(
    r"(.*?)Compiling entry function '(\w+?)_mosaic_gpu_kernel'.*?"
    r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads.*?"
    r"Used (\d+) registers",
    re.DOTALL,
)
_CALLED = re.compile(
    r'custom_call_target="mosaic_gpu[^\n]*?op_name="[^"]*?(\w+)/\w+"[^\n]*?'
    r'kernel_hash = "((?:[^"\\]|\\.)*)"'
)
