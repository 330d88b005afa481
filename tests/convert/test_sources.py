"""Rows of every stored form, in any range of rows and with any size of scratch memory."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from lynx_jax.convert import sources
from lynx_jax.convert.safetensors_file import StoredTensor, read_header
from lynx_jax.errors import InputError
from tests.convert.checkpoints import BFLOAT16

N, F, D = 3, 4, 5
RNG = np.random.default_rng(0)
GATE, UP = RNG.standard_normal((2, N, F, D), np.float32).astype(BFLOAT16)
MODEL = np.concatenate([GATE, UP], axis=1)  # [N, 2F, D]
TURNS = np.stack([GATE, UP], axis=2).reshape(N, 2 * F, D)  # gate and up in turn


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> dict[str, StoredTensor]:
    path = tmp_path_factory.mktemp("sources") / "x.safetensors"
    tensors = {
        "model": MODEL,
        "in_out": MODEL.swapaxes(1, 2).copy(),
        "turns": TURNS,
        "turns_in_out": TURNS.swapaxes(1, 2).copy(),
        "bias_turns": TURNS[..., 0].copy(),
        "nan": np.full((2, 3, 4), np.nan, np.float32),
    }
    save_file(tensors, path)
    return {tensor.name: tensor for tensor in read_header(path)}


@pytest.fixture(params=[1, 40, 8 * 2**20])
def scratch(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "SCRATCH_BYTES", request.param)
        yield


def source_of(stored: dict[str, StoredTensor], form: str) -> sources.Source:
    match form:
        case "model":
            return sources.plain(stored["model"], BFLOAT16)
        case "in_out":
            return sources.transposed(stored["in_out"], BFLOAT16)
        case "turns":
            return sources.gates_first(sources.plain(stored["turns"], BFLOAT16), 2 * F)
        case _:
            turned = sources.transposed(stored["turns_in_out"], BFLOAT16)
            return sources.gates_first(turned, 2 * F)


FORMS = ["model", "in_out", "turns", "turns_in_out"]


def read(source: sources.Source, start: int, stop: int) -> np.ndarray:
    out = np.empty((stop - start, source.width), source.dtype)
    source.read(start, stop, out)
    return out


@pytest.mark.usefixtures("scratch")
@pytest.mark.parametrize("form", FORMS)
def test_every_range_of_rows(stored: dict[str, StoredTensor], form: str) -> None:
    source, rows = source_of(stored, form), MODEL.reshape(-1, D)
    assert (source.num_rows, source.width, source.stored_bytes) == (*rows.shape, MODEL.nbytes)
    for start in range(len(rows)):
        for stop in range(start + 1, len(rows) + 1):
            assert np.array_equal(read(source, start, stop), rows[start:stop]), (start, stop)


def test_stack_of_different_forms(stored: dict[str, StoredTensor]) -> None:
    stack = sources.stacked([source_of(stored, form) for form in FORMS])
    rows = np.concatenate([MODEL.reshape(-1, D)] * len(FORMS))
    assert (stack.num_rows, stack.stored_bytes) == (len(rows), 4 * MODEL.nbytes)
    for start, stop in ((0, len(rows)), (20, 30), (23, 49), (47, 73)):
        assert np.array_equal(read(stack, start, stop), rows[start:stop])


def test_biases_of_gate_and_up_in_turn(stored: dict[str, StoredTensor]) -> None:
    source = sources.gates_first_in_rows(sources.plain(stored["bias_turns"], BFLOAT16))
    assert np.array_equal(read(source, 0, N), MODEL[..., 0])
    assert np.array_equal(read(source, 1, 2), MODEL[1:2, :, 0])


def test_transposed_weights_that_are_not_finite(stored: dict[str, StoredTensor]) -> None:
    source = sources.transposed(stored["nan"], np.dtype(np.float32))
    with pytest.raises(InputError, match="tensor nan holds nan"):
        read(source, 2, 3)


@given(st.integers(0, 40), st.integers(1, 40), st.integers(1, 9), st.integers(1, 9))
def test_pieces_cover_the_range_within_blocks(start: int, rows: int, block: int, step: int) -> None:
    pieces = list(sources.within_blocks(start, start + rows, block, step))
    covered = [b * block + i for b, low, high in pieces for i in range(low, high)]
    assert covered == list(range(start, start + rows))
    assert all(0 <= low < high <= min(block, low + step) for _, low, high in pieces)
