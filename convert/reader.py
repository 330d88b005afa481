"""What reading a checkpoint means, whichever form it is stored in."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from lynx_jax.backends import ExpertBackend, ReferenceBackend
from lynx_jax.models import Family
from lynx_jax.models.config import DecoderConfig
from lynx_jax.models.decoder import DecoderForCausalLM


@dataclass(frozen=True)
class TensorInfo:
    """One parameter of a model as a checkpoint holds it.

    Attributes:
      path: the parameter's path in the model, such as ``"layers.0.mlp.gate.weight"``.
      shape: its shape; experts are stacked, [N, outputs, inputs], whatever the backend.
      dtype: the dtype it is stored in; bfloat16 where it is quantised.
    """

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def num_rows(self) -> int:
        """How many rows it has; a row runs along the last axis."""
        return math.prod(self.shape[:-1])

    @property
    def nbytes(self) -> int:
        """Size of its data in this dtype."""
        return math.prod(self.shape) * self.dtype.itemsize


class CheckpointReader(Protocol):
    """Gives each parameter of a model exactly once; construction has checked that all are there."""

    @property
    def tensors(self) -> tuple[TensorInfo, ...]:
        """Every parameter of the model, in the model's order."""

    @property
    def stored_bytes(self) -> int:
        """Size of the stored tensors that make up the parameters."""

    @property
    def packing(self) -> str | None:
        """The method by which weights are quantised, such as ``"fp8"``; None if none is."""

    def read(self, info: TensorInfo, start: int, stop: int) -> np.ndarray:
        """Rows ``start`` to ``stop`` of a parameter, [stop - start, width], in ``info``'s dtype.

        Raises:
          InputError: it cannot be read, or holds NaN or infinity; the tensor is named.
        """


def dotted(path: Iterable[object]) -> str:
    """A parameter's path in NNX as this package writes it."""
    return ".".join(map(str, path))


class Parameter(NamedTuple):
    """A parameter of a model without its data."""

    shape: tuple[int, ...]
    dtype: np.dtype


class _OneKey(nnx.Rngs):
    """One key for all parameters: models without arrays are built a third faster so."""

    def __init__(self) -> None:
        super().__init__(0)
        self._key = jax.random.key(0)

    def params(self) -> jax.Array:
        return self._key


def abstract_model(
    family: Family,
    config: DecoderConfig,
    *,
    backend: ExpertBackend | None = None,
    dtype: DTypeLike = jnp.bfloat16,
) -> DecoderForCausalLM:
    """A model with shapes instead of arrays; computes nothing.

    Args:
      family: the architecture.
      config: its config.
      backend: decides whether experts are stacked; by default they are.
      dtype: of the parameters, but for those that the family keeps in float32.
    """
    chosen = ReferenceBackend() if backend is None else backend
    return nnx.eval_shape(
        lambda: family.model_class(config, backend=chosen, dtype=dtype, rngs=_OneKey())
    )


def parameters_of(model: DecoderForCausalLM) -> dict[str, Parameter]:
    """Path, shape and dtype of every parameter."""
    flat = nnx.to_flat_state(nnx.state(model))
    return {dotted(path): Parameter(tuple(p.shape), p.dtype) for path, p in flat}


def parts(info: TensorInfo, row_bytes: int, limit: int) -> Iterator[tuple[int, int]]:
    """Ranges of rows that cover a tensor, each of at most ``limit`` bytes (but at least a row)."""
    step = max(1, limit // max(1, row_bytes))
    for start in range(0, info.num_rows, step):
        yield start, min(start + step, info.num_rows)
