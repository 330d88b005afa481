"""Parts of stored parameters, and models that are loaded onto several devices."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lynx_jax import placing
from lynx_jax.convert.reader import TensorInfo
from lynx_jax.placing import Stored
from tests.convert.checkpoints import BFLOAT16, fused_tensors, mixtral_config, write_checkpoint


class FakeReader:
    """Holds one parameter; notes which rows were read."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values
        self.info = TensorInfo("x", values.shape, values.dtype)
        self.rows: list[int] = []

    def read(self, info: TensorInfo, start: int, stop: int) -> np.ndarray:
        self.rows.extend(range(start, stop))
        return self.values.reshape(-1, self.values.shape[-1])[start:stop]


@st.composite
def parts(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[slice, ...]]:
    """A shape and a part of it that is not empty."""
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    index = []
    for n in shape:
        start = draw(st.integers(0, n - 1))
        stop = draw(st.integers(start + 1, n))
        index.append(draw(st.sampled_from([slice(start, stop), slice(None)])))
    return shape, tuple(index)


@given(parts(), st.sampled_from([1, 10, 2**20]))
def test_parts_of_a_parameter(part: tuple[tuple[int, ...], tuple[slice, ...]], chunk: int) -> None:
    shape, index = part
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape).astype(BFLOAT16)
    reader = FakeReader(values)
    stored = Stored(reader, reader.info, np.dtype(np.float32))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placing, "_CHUNK_BYTES", chunk)
        found = stored.part(index)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, values[index])
    rows = np.arange(np.prod(shape[:-1], dtype=int)).reshape(shape[:-1])[index[:-1]]
    assert reader.rows == rows.reshape(-1).tolist()


@pytest.mark.parametrize("shape", [(3, 4, 5), (3, 4)])
def test_experts_apart(shape: tuple[int, ...]) -> None:
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    reader = FakeReader(values)
    experts = Stored(reader, reader.info, values.dtype).experts()
    assert [expert.path for expert in experts] == ["x.0", "x.1", "x.2"]
    for expert, wanted in zip(experts, values, strict=True):
        assert expert.shape == wanted.shape
        np.testing.assert_array_equal(expert.place(None), wanted)
    one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    np.testing.assert_array_equal(experts[2].place(lambda path, shape: one), values[2])


_TWO_DEVICES = """
import sys
import jax, numpy as np
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec as P
from lynx_jax.backends import get_backend
from lynx_jax.loading import load_model

mesh = jax.sharding.Mesh(jax.devices(), ("x",))
seen = {}

def sharding(path, shape):
    seen[path] = shape
    axis = next((i for i, n in enumerate(shape) if n % 2 == 0), None)
    spec = P() if axis is None else P(*[None] * axis, "x")
    return NamedSharding(mesh, spec)

backend = get_backend(sys.argv[2])
for dtype in (None, "float32"):
    sharded = load_model(sys.argv[1], backend=backend, dtype=dtype, sharding=sharding)
    whole = load_model(sys.argv[1], backend=backend, dtype=dtype)
    flat = nnx.to_flat_state(nnx.state(sharded))
    assert len(flat) == len(seen)
    for (path, a), (_, b) in zip(flat, nnx.to_flat_state(nnx.state(whole)), strict=True):
        a, b = a[...], b[...]
        assert a.sharding == sharding(".".join(map(str, path)), a.shape), path
        assert a.dtype == b.dtype, path
        assert len(a.devices()) == 2, path
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
print(len(flat), "parameters on", len(jax.devices()), "devices")
"""


@pytest.mark.parametrize("backend", ["reference", "loop"])
def test_a_model_on_two_devices(tmp_path: Path, backend: str) -> None:
    config = mixtral_config()
    folder = write_checkpoint(tmp_path / "src", config, fused_tensors(config, BFLOAT16))
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
    }
    ran = subprocess.run(
        [sys.executable, "-c", _TWO_DEVICES, str(folder), backend],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert "parameters on 2 devices" in ran.stdout
