"""Compiling for an H200; needs the ``compile`` extra, without which the tests are skipped."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("jax_cuda13_plugin") is None, reason="the extra 'compile' is missing"
)
SCRIPTS = Path(__file__).parents[2] / "scripts"
# The compiler's set-up must come before jax is imported, so it gets a process of its own.
TEMPORARIES = """
from compile_recipe import h200
h200.prepare()
import jax, jax.numpy as jnp
weights = jax.ShapeDtypeStruct((64, 256, 256), jnp.bfloat16)
x, index = jax.ShapeDtypeStruct((256, 16), jnp.bfloat16), jax.ShapeDtypeStruct((), jnp.int32)
for copied in (False, True):
    def product(w, x, i):
        w = jax.lax.optimization_barrier(w + 1) if copied else w
        return w[i] @ x
    print(h200.compile_for_h200(product, weights, x, index).temporary_bytes)
"""


ROUTING = """
from compile_recipe import h200
h200.prepare()
from compile_recipe.routing_cases import routing_cases
for name, route, shapes in routing_cases([32], ["lynx"]):
    if any(family in name for family in ("Qwen3", "DeepSeek-V3", "Scout")):
        (kernel,) = h200.compile_for_h200(route, *shapes).kernels
        print(kernel.spill_bytes, kernel.unsigned_maxima)
"""


def run(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command], cwd=SCRIPTS, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_copy_of_weights_shows_in_the_temporaries() -> None:
    in_place, copied = map(int, run("-c", TEMPORARIES).split())
    weights = 2 * 64 * 256 * 256
    assert in_place < weights / 8
    assert copied >= weights


def test_decode_steps_compile_without_copies() -> None:
    lines = run(
        "compile_check.py", "--rows", "4", "--policies", "lynx", "--routing", "--experts"
    ).splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "demo, B=4, lynx",
        "Qwen3-30B-A3B, 2 layers, B=4, lynx",
    ]


def test_the_routing_kernel_spills_nothing() -> None:
    lines = run("-c", ROUTING).splitlines()
    assert lines == ["0 0", "0 0", "0 0"]
