"""The expert kernels, interpreted on CPU, against float32 references."""

import re
from dataclasses import dataclass, replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.experimental.pallas import mosaic_gpu as plgpu

from lynx_jax.errors import InputError
from lynx_jax.pallas_kernels.down import down, down_reference
from lynx_jax.pallas_kernels.expert_ffn import expert_ffn_reference
from lynx_jax.pallas_kernels.expert_form import SWIGLU, ExpertForm, ExpertWeights
from lynx_jax.pallas_kernels.expert_kernels import expert_ffn
from lynx_jax.pallas_kernels.expert_tiles import ExpertTiles
from lynx_jax.pallas_kernels.gate_up import gate_up, gate_up_reference
from tests.pallas_kernels.pipelines import keeps_operands

ONE_ROUNDING = 2.0**-8  # to bfloat16, relative
SUMS = 1e-5  # of the largest value: float32 sums in another order

SPLIT = ExpertTiles(
    gate_up_block=64,
    gate_up_stages=2,
    gate_up_blocks=99,
    down_rows=64,
    down_block=64,
    down_stages=2,
    down_blocks=5,
)
WHOLE = replace(SPLIT, gate_up_stages=3, gate_up_blocks=1, down_blocks=1)
WIDE = replace(WHOLE, gate_up_block=128, down_rows=128, down_block=128, down_blocks=3)


@dataclass(frozen=True)
class Case:
    """A static shape; B is what ``expert_ffn`` gets, the kernels get it rounded up to 8."""

    rows: int
    experts: int
    width: int
    hidden: int
    slots: int
    tiles: ExpertTiles
    form: ExpertForm = SWIGLU
    bias: bool = False

    def __str__(self):
        return f"B{self.rows}N{self.experts}D{self.width}F{self.hidden}{self.form.activation}"


CASES = [
    Case(1, 5, 320, 128, 2, replace(SPLIT, gate_up_blocks=12, down_blocks=15)),
    Case(7, 3, 64, 192, 3, replace(WHOLE, down_blocks=4)),
    Case(20, 4, 256, 128, 4, WIDE),
    Case(9, 4, 64, 128, 3, WHOLE, ExpertForm("clamped_swiglu"), bias=True),
    Case(6, 4, 128, 64, 3, SPLIT, ExpertForm("clamped_swiglu"), bias=True),
    Case(64, 2, 64, 64, 2, WHOLE, ExpertForm(scale_input=True)),
]
cases = pytest.mark.parametrize("case", CASES, ids=str)

# Compiled: run operation by operation they take longer than the kernels.
gate_up_in_float32 = jax.jit(gate_up_reference, static_argnames="form")
down_in_float32 = jax.jit(down_reference)
expert_ffn_in_float32 = jax.jit(expert_ffn_reference, static_argnames="form")


@cache
def kernels(case, races=False):
    interpret = plgpu.InterpretGPUParams(detect_races=races)
    return (
        jax.jit(partial(gate_up, form=case.form, tiles=case.tiles, interpret=interpret)),
        jax.jit(partial(down, tiles=case.tiles, interpret=interpret)),
        jax.jit(
            partial(
                expert_ffn,
                form=case.form,
                slots=case.slots,
                tiles=case.tiles,
                interpret=interpret,
            )
        ),
    )


def draw(case, seed, num_active, dead_share=0.3):
    """x, combine, active, num_active, weights; rows without a weight hold NaN."""
    rng = np.random.default_rng(seed)
    used = np.sort(rng.permutation(case.experts)[:num_active])
    combine = np.zeros((case.rows, case.experts), np.float32)
    combine[:, used] = rng.random((case.rows, num_active)) * (
        rng.random((case.rows, num_active)) < 0.6
    )
    if num_active:
        combine[0, used] = 0.5  # each of them is in use
        combine[1:][rng.random(case.rows - 1) < dead_share] = 0
    x = 3 * rng.normal(size=(case.rows, case.width))
    x[~combine.any(1)] = np.nan
    active = np.full(case.experts, 1000, np.int32)  # nothing may follow these
    active[:num_active] = used

    def weight(*shape):
        return np.asarray(rng.normal(size=shape) / np.sqrt(shape[-1]), jnp.bfloat16)

    n, d, f = case.experts, case.width, case.hidden
    return (
        np.asarray(x, jnp.bfloat16),
        combine,
        active,
        np.asarray(num_active, np.int32),
        ExpertWeights(
            weight(n, 2 * f, d),
            weight(n, d, f),
            64 * weight(n, 2 * f) if case.bias else None,  # far enough out for the clamps
            weight(n, d) if case.bias else None,
        ),
    )


def parts(case, seed, num_active):
    """Arguments of ``gate_up`` and of ``down``; hidden activations past the last are NaN."""
    x, combine, active, count, weights = draw(case, seed, num_active)
    padding = ((0, -case.rows % 8), (0, 0))
    slots = active[: case.slots]
    up = (
        np.pad(x, padding),
        np.pad(combine, padding).T,
        slots,
        count,
        weights.gate_up,
        weights.gate_up_bias,
    )
    hidden = np.random.default_rng(seed).normal(size=(case.slots, len(up[0]), case.hidden))
    hidden[num_active:] = np.nan
    return up, (np.asarray(hidden, jnp.bfloat16), slots, count, weights.down)


def drawn(data, case):
    return data.draw(st.integers(0, 2**32 - 1)), data.draw(st.integers(0, case.slots))


@cases
@settings(max_examples=3, deadline=None)
@given(data=st.data())
def test_gate_up_is_one_rounding_from_float32(case, data):
    seed, num_active = drawn(data, case)
    arguments, _ = parts(case, seed, num_active)
    got = np.asarray(kernels(case)[0](*arguments), np.float32)
    want = np.asarray(gate_up_in_float32(*arguments, form=case.form))
    scale = np.max(np.abs(want), initial=1.0)
    np.testing.assert_allclose(
        got[:num_active],
        want[:num_active],
        rtol=ONE_ROUNDING,
        atol=SUMS * scale,
    )


@cases
@settings(max_examples=3, deadline=None)
@given(data=st.data())
def test_down_sums_over_active_experts(case, data):
    seed, num_active = drawn(data, case)
    _, arguments = parts(case, seed, num_active)
    got, want = kernels(case)[1](*arguments), down_in_float32(*arguments)
    scale = np.max(np.abs(want), initial=1.0)
    np.testing.assert_allclose(got, want, rtol=0, atol=SUMS * scale)


def assert_expert_ffn_equals_the_reference(case, seed, num_active):
    x, combine, active, count, weights = draw(case, seed, num_active)
    got = np.asarray(kernels(case)[2](x, combine, active, count, weights), np.float32)
    want = expert_ffn_in_float32(x.astype(np.float32), combine, weights, form=case.form)
    scale = np.max(np.abs(want), initial=1e-3)
    np.testing.assert_allclose(got, want, rtol=ONE_ROUNDING, atol=ONE_ROUNDING * scale)
    assert not got[~combine.any(1)].any()


@cases
@settings(max_examples=3, deadline=None)
@given(data=st.data())
def test_expert_ffn_equals_the_reference(case, data):
    assert_expert_ffn_equals_the_reference(case, *drawn(data, case))


@st.composite
def any_case(draw):
    """Any shape of up to 20 rows and 6 experts, with any form and split."""
    experts = draw(st.integers(1, 6))
    width, hidden = (draw(st.sampled_from([64, 128, 192])) for _ in "DF")
    form = draw(st.sampled_from([case.form for case in CASES[2:]]))
    return Case(
        draw(st.integers(1, 20)),
        experts,
        width,
        hidden,
        draw(st.integers(1, experts)),
        draw(st.sampled_from([SPLIT, WHOLE, WIDE])).fitted(width, hidden),
        form,
        bias=form.activation == "clamped_swiglu",
    )


@settings(max_examples=5, deadline=None)
@given(case=any_case(), data=st.data())
def test_expert_ffn_equals_the_reference_at_any_shape(case, data):
    assert_expert_ffn_equals_the_reference(case, *drawn(data, case))


@pytest.mark.parametrize("case", [CASES[1], CASES[4]], ids=str)
def test_nothing_races_and_every_run_gives_the_same(case, capsys):
    x, combine, active, count, weights = draw(case, 7, case.slots)
    run = kernels(case, races=True)[2]
    first = np.asarray(run(x, combine, active, count, weights), np.float32)
    assert "RACE DETECTED" not in capsys.readouterr().out
    plain = kernels(case)[2](x, combine, active, count, weights)
    np.testing.assert_array_equal(np.asarray(plain, np.float32), first)


@cases
def test_no_expert_in_use_gives_zeros(case):
    x, combine, active, count, weights = draw(case, 3, 0)
    assert not np.asarray(kernels(case)[2](x, combine, active, count, weights)).any()


@pytest.mark.parametrize("kernel", [0, 1], ids=["gate_up", "down"])
def test_operands_stay_until_their_products_are_done(kernel):
    arguments = parts(CASES[0], 0, 1)[kernel]
    stages = (SPLIT.gate_up_stages, SPLIT.down_stages)[kernel]
    assert keeps_operands(kernels(CASES[0])[kernel], arguments, stages)


def test_tiles_know_their_shared_memory(tmp_path, monkeypatch):
    """As Mosaic GPU counts it; a block that wants more than there is fails on the device alone."""
    case = CASES[0]
    tiles = replace(case.tiles, gate_up_stages=3)
    monkeypatch.setenv("MOSAIC_GPU_DUMP_RESOURCES", "1")
    monkeypatch.setenv("MOSAIC_GPU_DUMP_TO", str(tmp_path))
    run = partial(expert_ffn, form=case.form, slots=case.slots, tiles=tiles)
    jax.jit(run).trace(*draw(case, 0, 1)).lower(lowering_platforms=("cuda",))
    counted = [
        int(re.search(r"smem_scratch_bytes=(\d+)", path.read_text())[1])
        for kernel in ("gate_up", "down")
        for path in tmp_path.glob(f"{kernel}_*.resources.txt")
    ]
    assert tuple(counted) == tiles.shared_bytes(rows=8)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"rows": 65}, "expected 1 to 64 rows, got 65"),
        ({"slots": 4}, "expected 1 to 3 slots, got 4"),
        ({"width": 96}, "expected experts whose D and F are multiples of 64, got 96, 192"),
        ({"tiles": WIDE}, "expected tiles that divide 64, 192"),
        ({"tiles": replace(SPLIT, down_stages=40)}, "bytes of shared memory, got"),
    ],
)
def test_what_kernels_do_not_take_is_one_line(changed, expected):
    case = replace(CASES[1], **changed)
    with pytest.raises(InputError, match=expected) as raised:
        jax.eval_shape(kernels(case)[2], *draw(case, 0, 1))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("which", ["rows", "experts"])
def test_float32_is_refused(which):
    x, combine, active, count, weights = draw(CASES[0], 0, 1)
    if which == "rows":
        x = x.astype(jnp.float32)
    else:
        weights = weights._replace(down=weights.down.astype(jnp.float32))
    with pytest.raises(InputError, match=f"expected {which} in bfloat16, got float32"):
        jax.eval_shape(kernels(CASES[0])[2], x, combine, active, count, weights)
