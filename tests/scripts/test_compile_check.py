"""Compiling for an H200; needs the ``compile`` extra, without which those tests are skipped."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from compile_recipe.weight_copies import weight_copies

needs_compiler = pytest.mark.skipif(
    importlib.util.find_spec("jax_cuda13_plugin") is None, reason="the extra 'compile' is missing"
)
SCRIPTS = Path(__file__).parents[2] / "scripts"
# The compiler's set-up must come before jax is imported, so it gets a process of its own.
BROKEN = """
from compile_recipe import h200
h200.prepare()
import functools
import jax, jax.numpy as jnp
from jax.experimental.pallas import mosaic_gpu as plgpu
from compile_recipe.case import Case, problems

def shape(*sizes, dtype=jnp.bfloat16):
    return jax.ShapeDtypeStruct(sizes, dtype)

def greedy(x_ref, out_ref):
    # 256 numbers a thread, all of them needed until the end.
    x = plgpu.load(x_ref, layout=plgpu.Layout.WG_STRIDED((256 * 128,), vec_size=1), optimized=False)
    y = x
    for _ in range(3):
        y = y * jnp.sum(y) + x
    out_ref[...] = y

def spills(x):
    return plgpu.kernel(greedy, out_type=x, kernel_name="greedy")(x)

def product(weights, x):
    return jnp.einsum("bd,nfd->nbf", x, weights)

def cut(weights, x, i):
    return x @ jax.lax.optimization_barrier(weights[i])

def cast(weights, x):
    return product(jax.lax.optimization_barrier(weights.astype(jnp.float32)), x)

def squares(x):
    return jnp.sum(jax.lax.optimization_barrier(x[:, None] * x[None, :]), axis=1)

stack, experts = (shape(64, 256, 256), shape(16, 256)), (64, 256, 256)
for case in (
    Case("spills", spills, (shape(256 * 128, dtype=jnp.float32),), 1 << 30),
    Case("product", product, stack, 1 << 20, experts),
    Case("cut", cut, (*stack, shape(dtype=jnp.int32)), 1 << 30, experts),
    Case("cast", cast, stack, 1 << 30, experts),
    Case("large", squares, (shape(4096),), 4 * 4096),
):
    found = list(problems(case, h200.compile_for_h200(case.function, *case.arguments)))
    print(case.name, len(found), *found)
"""

# Runs the command once for each list of options, without the compiler: prints what it would compile
# or its error, and how it ended.
OPTIONS = """
import contextlib, json, sys
import compile_check

def listed(cases):
    print(*(case.name for case in cases), sep="; ")
    return ()

compile_check.check = listed
for sys.argv[1:] in json.loads(sys.argv[1]):
    with contextlib.redirect_stderr(sys.stdout):
        try:
            print(compile_check.main())
        except SystemExit as e:
            print(e.code)
"""
STEPS = ["steps", "--rows", "1", "--policies", "off"]
NONSENSE = [
    (["--modes", "foo"], "invalid choice: 'foo' (choose from 'off', 'lynx'"),
    ([*STEPS, "foo"], "policy 'foo' is not known; expected one of: off, demand"),
    ([*STEPS, "oea:k0=9"], "expected k0 of at most k=8, the experts a token uses, got 9"),
    (["steps", "--rows", "16", "0"], "expected --rows from 1 to 32767, got 0"),
    (["routing", "--rows", "32768"], "expected --rows from 1 to 32767, got 32768"),
    (["experts", "--rows", "65"], "expected --rows from 1 to 64 for expert kernels, got 65; give"),
]


def run(*command: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, *command], cwd=SCRIPTS, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


HLO = """
%cut_out (p: bf16[4,16,8], i: s32[]) -> bf16[1,16,8] {
  %p = bf16[4,16,8]{2,1,0} parameter(0)
  ROOT %cut.1 = bf16[1,16,8]{2,1,0} dynamic-slice(%p, %i, %i, %i), dynamic_slice_sizes={1,16,8}
}

%multiplied (p: bf16[4,8,8], x: bf16[8,8]) -> f32[4,8,8] {
  %p = bf16[4,8,8]{2,1,0} parameter(0)
  ROOT %dot.1 = f32[4,8,8]{2,1,0} dot(%p, %x), lhs_contracting_dims={2}
}

%body (arg: (s32[], bf16[4,8,8])) -> (s32[], bf16[4,8,8]) {
  %arg = (s32[], bf16[4,8,8]{2,1,0}) parameter(0)
  %down = bf16[4,8,8]{2,1,0} get-tuple-element(%arg), index=1
  %flat = bf16[4,64]{1,0} bitcast(%down)
  BODY
}

ENTRY %main (gate_up: bf16[4,16,8], down: bf16[4,8,8]) -> f32[] {
  %gate_up = bf16[4,16,8]{2,1,0} parameter(0)
  %down = bf16[4,8,8]{2,1,0} parameter(1)
  %other = bf16[1,16,8]{2,1,0} fusion(%activations, %i), kind=kLoop, calls=%cut_out
  MAIN
}
"""


@pytest.mark.parametrize(
    ("where", "line", "found"),
    [
        ("MAIN", "%c = bf16[4,16,8]{1,2,0} copy(%gate_up)", ["copy c = bf16[4,16,8]"]),
        ("MAIN", "%c = f32[4,8,8]{2,1,0} convert(%down)", ["convert c = f32[4,8,8]"]),
        ("BODY", "%c = bf16[64,4]{1,0} transpose(%flat)", ["transpose c = bf16[64,4]"]),
        (
            "MAIN",
            "%c = bf16[1,16,8]{2,1,0} fusion(%gate_up, %i), kind=kLoop, calls=%cut_out",
            ["fusion c = bf16[1,16,8]"],
        ),
        (
            "MAIN",
            "%c = (s32[], s32[], s32[], s32[], s32[], /*index=5*/bf16[4,8,8]{2,1,0}) "
            "fusion(%down), kind=kLoop, calls=%cut_out",
            ["fusion c = s32[], s32[], s32[], s32[], s32[], bf16[4,8,8]"],
        ),
        ("MAIN", "%c = f32[4,8,8]{2,1,0} fusion(%down, %x), calls=%multiplied", []),
        ("MAIN", '%c = bf16[4,8,8]{2,1,0} custom-call(%down), custom_call_target="m"', []),
        ("MAIN", "%c = bf16[4,8]{1,0} slice(%down)", []),
    ],
    ids=["copy", "convert", "in a loop", "cut", "of many", "product", "kernel", "small"],
)
def test_copies_of_weights_are_found_in_a_program(where: str, line: str, found: list[str]) -> None:
    assert list(weight_copies(HLO.replace(where, line), (4, 8, 8))) == found


def test_a_program_without_the_weights_is_no_proof() -> None:
    with pytest.raises(ValueError, match="no stack of experts"):
        list(weight_copies(HLO, (4, 8, 9)))


@needs_compiler
def test_options_are_seen_through_before_anything_is_compiled() -> None:
    """Nonsense ends in one line; what a part does not have at a batch size is left out."""
    nonsense = [
        ["--parts", *options] if options[0][0] != "-" else options for options, _ in NONSENSE
    ]
    good = [["--rows", "128"], ["--parts", "experts", "--rows", "64", "65"]]
    lines = run("-c", OPTIONS, json.dumps([*nonsense, *good]))
    assert lines[1::2] == ["2"] * len(nonsense) + ["0"] * len(good)
    *errors, large, experts = lines[::2]
    for error, (_, says) in zip(errors, NONSENSE, strict=True):
        assert error.startswith("error: ")
        assert says in error
    kinds = {name.split()[0] for name in large.split("; ")}
    assert kinds == {"step", "routing", "grouped"}
    assert "step demo, B=128, demand, mosaic" in large
    assert "routing DeepSeek-V3, B=128, lynx; routing DeepSeek-V3, B=128, demand" in large
    assert {name.rpartition("=")[2] for name in experts.split("; ")} == {"64"}


@needs_compiler
def test_what_is_wrong_is_reported() -> None:
    spills, product, cut, cast, large = run("-c", BROKEN)
    assert "bytes of registers are spilled" in spills
    assert product == "product 0"
    assert cut.startswith("cut 1 ")
    assert "copies expert weights: fusion" in cut
    assert "copies expert weights: " in cast
    assert "f32[64,256,256]" in cast
    assert "temporaries of 33554432 bytes are larger than the activations" in large
