"""Putting stored parameters onto devices, one at a time and each device's part of it only."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import jax
import numpy as np

from lynx_jax.convert.numerics import bits, cast
from lynx_jax.convert.reader import CheckpointReader, TensorInfo

_CHUNK_BYTES = 64 * 2**20

# Sharding of a parameter by its path and shape.
type ShardingOf = Callable[[str, tuple[int, ...]], jax.sharding.Sharding]


@dataclass(frozen=True)
class Stored:
    """A stored parameter, or one expert of it, in a dtype.

    Attributes:
      reader: reads it.
      info: the parameter of all experts.
      dtype: the dtype to give.
      expert: which expert it is, or None for the whole parameter.
    """

    reader: CheckpointReader
    info: TensorInfo
    dtype: np.dtype
    expert: int | None = None

    @property
    def path(self) -> str:
        """Path in the model."""
        return self.info.path if self.expert is None else f"{self.info.path}.{self.expert}"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape in the model."""
        return self.info.shape if self.expert is None else self.info.shape[1:]

    def experts(self) -> list["Stored"]:
        """Each expert of a parameter of all of them."""
        return [dataclasses.replace(self, expert=expert) for expert in range(self.info.shape[0])]

    def place(self, sharding_of: ShardingOf | None) -> jax.Array:
        """The array on its devices; waits for it, so that host copies do not pile up.

        Args:
          sharding_of: where it goes; None for the default device.

        Raises:
          InputError: it cannot be read, or a number does not fit the dtype.
        """
        array: jax.Array
        if sharding_of is None:
            array = jax.device_put(self.part(None))
        else:
            sharding = sharding_of(self.path, self.shape)
            array = jax.make_array_from_callback(self.shape, sharding, self.part)
        return array.block_until_ready()

    def part(self, index: tuple[slice, ...] | None) -> np.ndarray:
        """The part that slices of step 1 cut out; reads the rows in it and no others.

        Args:
          index: a slice for every axis; None for all of the parameter.
        """
        shape = self.info.shape
        if index is None:
            index = (slice(None),) * len(self.shape)
        if self.expert is not None:
            index = (slice(self.expert, self.expert + 1), *index)
        if len(shape) == 1:
            shape, index = (1, *shape), (slice(1), *index)
        bounds = [cut.indices(n)[:2] for cut, n in zip(index, shape, strict=True)]
        out = np.empty([stop - start for start, stop in bounds], self.dtype)
        low, high = bounds[-2]
        for place in np.ndindex(out.shape[:-2]):
            matrix = 0
            for i, n, (start, _) in zip(place, shape[:-2], bounds[:-2], strict=True):
                matrix = matrix * n + start + i
            above = matrix * shape[-2]
            self._read(above + low, above + high, slice(*bounds[-1]), out[place])
        return out.reshape(out.shape[len(out.shape) - len(self.shape) :])

    def _read(self, start: int, stop: int, columns: slice, out: np.ndarray) -> None:
        """Columns of rows of the parameter, in chunks, so that little is held twice."""
        step = max(1, _CHUNK_BYTES // (self.info.shape[-1] * self.info.dtype.itemsize))
        for low in range(start, stop, step):
            high = min(low + step, stop)
            stored = cast(self.reader.read(self.info, low, high), self.dtype, self.info.path)
            bits(out)[low - start : high - start] = bits(stored)[:, columns]
