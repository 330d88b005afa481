"""Dequantised rows against the meaning of every single number, on random packings."""

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from lynx_jax.convert import sources
from lynx_jax.convert.fp8 import BlockFp8
from lynx_jax.convert.int4 import Awq, Gptq
from lynx_jax.convert.mxfp4 import Mxfp4
from lynx_jax.convert.packing import Packing
from lynx_jax.convert.safetensors_file import read_header
from lynx_jax.convert.sources import Source
from lynx_jax.errors import InputError
from tests.convert import packed as packs
from tests.convert.packed import BFLOAT16, Packed

SEEDS = st.integers(0, 2**32 - 1)
FEW = settings(max_examples=15, deadline=None)


@pytest.fixture(params=[64, 8 * 2**20], autouse=True, scope="module")
def scratch(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "SCRATCH_BYTES", request.param)
        yield


def source_of(
    folder: str | Path, packing: Packing, name: str, shape: tuple[int, ...], stored: Packed
) -> Source:
    """The source of a matrix, after its parts were found to be what the packing expects."""
    path = Path(folder) / "x.safetensors"
    base = name if name + next(iter(stored)) in names(packing, name, shape) else name[:-7]
    save_file({base + suffix: x for suffix, x in stored.items()}, path)
    tensors = {tensor.name: tensor for tensor in read_header(path)}
    parts = packing.parts(name, shape)
    assert [part.name for part in parts] == [base + suffix for suffix in stored]
    for part in parts:
        assert tensors[part.name].shape == part.shape
        assert tensors[part.name].code in part.codes
    return packing.source([tensors[part.name] for part in parts], shape)


def names(packing: Packing, name: str, shape: tuple[int, ...]) -> list[str]:
    return [part.name for part in packing.parts(name, shape)]


def check(packing: Packing, name: str, stored: Packed, values: np.ndarray, cuts: list[int]) -> None:
    """All rows, and ranges of rows between cuts, are the values rounded to bfloat16."""
    rows = values.astype(np.float32).astype(BFLOAT16).reshape(-1, values.shape[-1])
    with tempfile.TemporaryDirectory() as folder:
        source = source_of(folder, packing, name, values.shape, stored)
        assert (source.num_rows, source.width, source.dtype) == (*rows.shape, BFLOAT16)
        assert source.stored_bytes == sum(x.nbytes for x in stored.values())
        ends = sorted({0, len(rows), *(cut % (len(rows) + 1) for cut in cuts)})
        for start, stop in [(0, len(rows)), *itertools.pairwise(ends)]:
            out = np.empty((stop - start, source.width), BFLOAT16)
            source.read(start, stop, out)
            assert np.array_equal(out, rows[start:stop]), (start, stop)


CUTS = st.lists(st.integers(0, 1000), max_size=3)


@FEW
@given(
    SEEDS,
    st.sampled_from([(), (1,), (3,)]),
    st.integers(1, 19),
    st.integers(1, 19),
    st.integers(1, 8),
    st.sampled_from([np.float32, BFLOAT16]),
    CUTS,
)
def test_fp8(seed, experts, outputs, inputs, block, scale_dtype, cuts) -> None:
    stored = packs.fp8(np.random.default_rng(seed), (*experts, outputs, inputs), block, scale_dtype)
    values = packs.fp8_values(stored, block)
    check(BlockFp8((block, block)), "x.weight", stored, values, cuts)


def test_fp8_of_576_rows_in_five_blocks_of_128(tmp_path: Path) -> None:
    """As in DeepSeek-V3's kv_a_proj_with_mqa: the last block of rows is half full."""
    stored = packs.fp8(np.random.default_rng(0), (576, 2), 128, np.float32)
    assert stored["_scale_inv"].shape == (5, 1)
    values = packs.fp8_values(stored, 128)
    check(BlockFp8((128, 128)), "x.weight", stored, values, [127, 129, 500])


def test_fp8_of_blocks_that_are_not_square(tmp_path: Path) -> None:
    weight = np.full((3, 4), 2, np.float32).astype("float8_e4m3fn")
    stored = {"": weight, "_scale_inv": np.array([[1, 2], [3, 4], [5, 6]], np.float32)}
    values = 2 * np.array([[1, 1, 2, 2], [3, 3, 4, 4], [5, 5, 6, 6]], np.float64)
    check(BlockFp8((1, 2)), "x.weight", stored, values, [1, 2])


def test_all_values_of_e4m3() -> None:
    finite = np.array([byte for byte in range(256) if byte & 127 != 127], np.uint8)
    stored = {"": finite[None].view("float8_e4m3fn"), "_scale_inv": np.ones((1, 2), np.float32)}
    check(BlockFp8((128, 128)), "x.weight", stored, packs.fp8_values(stored, 128), [])
    assert packs.e4m3(0x7E) == 448


@FEW
@given(SEEDS, st.integers(1, 3), st.integers(1, 5), st.integers(1, 3), CUTS)
def test_mxfp4(seed, experts, outputs, blocks, cuts) -> None:
    stored = packs.mxfp4(np.random.default_rng(seed), (experts, outputs, 32 * blocks))
    check(Mxfp4(), "mlp.experts.down_proj", stored, packs.mxfp4_values(stored), cuts)


def test_mxfp4_by_hand() -> None:
    """Low half of a byte first; 0x7 is 6, 0x8 is -0, 0xF is -6; exponent 128 means 2."""
    blocks = np.zeros((1, 1, 1, 16), np.uint8)
    blocks[0, 0, 0, :3] = [0x17, 0x8F, 0x42]
    values = np.zeros((1, 1, 32))
    values[0, 0, :6] = [12, 1, -12, 0, 2, 4]
    stored = {"_blocks": blocks, "_scales": np.full((1, 1, 1), 128, np.uint8)}
    check(Mxfp4(), "x", stored, values, [])
    assert np.array_equal(packs.mxfp4_values(stored), values)


@pytest.mark.parametrize("exponent", [0, 1, 253])
def test_mxfp4_at_the_ends_of_exponents(exponent: int) -> None:
    stored = {
        "_blocks": np.full((1, 1, 1, 16), 0x12, np.uint8),
        "_scales": np.full((1, 1, 1), exponent, np.uint8),
    }
    check(Mxfp4(), "x", stored, packs.mxfp4_values(stored), [])


SIZES = (SEEDS, st.integers(1, 3), st.integers(1, 4), st.sampled_from([8, 12, 16, -1]), CUTS)


@FEW
@given(*SIZES, st.sampled_from([1, 2]), st.booleans())
def test_gptq(seed, outputs, inputs, group_size, cuts, version, act_order) -> None:
    rng, outputs, inputs = np.random.default_rng(seed), 8 * outputs, 8 * inputs
    group = inputs if group_size == -1 else group_size
    q, zeros, scales = packs.int4_parts(rng, outputs, inputs, group)
    group_of_input = np.arange(inputs) // group
    if act_order:
        group_of_input = rng.permutation(group_of_input)
    stored = packs.gptq(q, zeros, scales, group_of_input, version=version)
    values = packs.int4_values(q, zeros, scales, group_of_input)
    check(Gptq(group_size, stored_zero=2 - version), "x.weight", stored, values, cuts)


@FEW
@given(*SIZES)
def test_awq(seed, outputs, inputs, group_size, cuts) -> None:
    rng, outputs, inputs = np.random.default_rng(seed), 8 * outputs, 3 * inputs
    group = inputs if group_size == -1 else group_size
    q, zeros, scales = packs.int4_parts(rng, outputs, inputs, group)
    values = packs.int4_values(q, zeros, scales, np.arange(inputs) // group)
    check(Awq(group_size), "x.weight", packs.awq(q, zeros, scales), values, cuts)


def test_int4_by_hand() -> None:
    """The words that GPTQ and AWQ store for outputs 0 to 7 with q = their number."""
    q = np.arange(8)[None].repeat(8, axis=0)  # [inputs, outputs]
    zeros, scales = np.full((1, 8), 3), np.full((1, 8), 0.5, np.float16)
    gptq = packs.gptq(q, zeros, scales, np.zeros(8), version=1)
    assert gptq[".qweight"].tolist()[0] == [0x11111111 * i for i in range(8)]
    assert gptq[".qzeros"].tolist() == [[0x22222222]]
    awq = packs.awq(q, zeros, scales)
    assert awq[".qweight"][0, 0] == 0x75316420
    values = (np.arange(8)[:, None].repeat(8, axis=1) - 3) / 2  # [outputs, inputs]
    check(Gptq(-1, stored_zero=1), "x.weight", gptq, values, [])
    check(Awq(-1), "x.weight", awq, values, [])


def spoiled(**changes: np.ndarray) -> tuple[Gptq, Packed]:
    q, zeros, scales = packs.int4_parts(np.random.default_rng(0), 8, 16, 8)
    stored = packs.gptq(q, zeros, scales, np.arange(16) // 8, version=2)
    return Gptq(8, stored_zero=0), stored | {f".{name}": x for name, x in changes.items()}


@pytest.mark.parametrize(
    ("packing", "stored", "message"),
    [
        (
            BlockFp8((8, 8)),
            {"": np.array([[127]], np.uint8).view("float8_e4m3fn"), "_scale_inv": np.ones((1, 1))},
            r"tensor x\.weight holds nan",
        ),
        (
            BlockFp8((8, 8)),
            {"": np.ones((1, 1), "float8_e4m3fn"), "_scale_inv": np.full((1, 1), np.inf)},
            r"tensor x\.weight_scale_inv holds inf",
        ),
        (
            BlockFp8((8, 8)),
            {"": np.full((1, 1), 448, "float8_e4m3fn"), "_scale_inv": np.full((1, 1), 3e38)},
            r"tensor x\.weight holds inf",
        ),
        (
            Mxfp4(),
            {
                "_blocks": np.full((1, 1, 1, 16), 0x11, np.uint8),
                "_scales": np.full((1, 1, 1), 255, np.uint8),
            },
            r"tensor x\.weight_blocks holds nan",
        ),
        (*spoiled(g_idx=np.full(16, 2, np.int32)), r"tensor x\.g_idx holds group 2, expected 0 to"),
        (*spoiled(g_idx=np.full(16, -1, np.int32)), r"tensor x\.g_idx holds group -1"),
        (*spoiled(scales=np.full((2, 8), np.nan, np.float16)), r"tensor x\.scales holds nan"),
    ],
)
def test_what_is_no_number(tmp_path: Path, packing, stored: Packed, message: str) -> None:
    stored = {k: x.astype(np.float32) if x.dtype == np.float64 else x for k, x in stored.items()}
    first = next(iter(stored.values()))
    shape = {"fp8": first.shape, "mxfp4": (1, 1, 32), "gptq": (8, 16)}[packing.method]
    source = source_of(tmp_path, packing, "x.weight", shape, stored)
    with pytest.raises(InputError, match=message):
        source.read(0, 1, np.empty((1, source.width), BFLOAT16))


@pytest.mark.parametrize(
    ("packing", "name", "shape"),
    [
        (BlockFp8((8, 8)), "norm.weight", (8,)),
        (Mxfp4(), "x.experts.down_proj", (3, 5, 33)),
        (Mxfp4(), "q_proj.weight", (5, 32)),
        (Gptq(8, 1), "gate.weight", (60, 16)),
        (Gptq(8, 1), "x.weight", (16, 12)),
        (Gptq(8, 1), "x.experts.down_proj", (2, 8, 8)),
        (Awq(8), "gate.weight", (60, 16)),
        (Awq(8), "norm.weight", (8,)),
    ],
)
def test_what_cannot_be_packed(packing: Packing, name: str, shape: tuple[int, ...]) -> None:
    assert packing.parts(name, shape) == ()
