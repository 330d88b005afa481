"""How the experts of a layer are computed; chosen once, when a model is loaded."""

from dataclasses import dataclass
from typing import Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array

from lynx_jax.routing import Phase, Routing


class ExpertBackend(Protocol):
    """Computes the weighted sum of each row's experts."""

    @property
    def name(self) -> str: ...

    @property
    def split(self) -> bool: ...

    def __call__(
        self, x: Array, routing: Routing, gate_up: Array, down: Array, *, phase: Phase
    ) -> Array: ...


@dataclass(frozen=True)
class ReferenceBackend:
    """All experts for all rows."""

    name: str = "reference"
    split: bool = False

    def __call__(
        self, x: Array, routing: Routing, gate_up: Array, down: Array, *, phase: Phase
    ) -> Array:
        n = gate_up.shape[0]
        w = jnp.where(routing.live[:, None], routing.weights, 0.0)
        combine = jnp.sum(jax.nn.one_hot(routing.ids, n) * w[..., None], axis=1)
        h = jnp.einsum("td,nfd->ntf", x, gate_up, preferred_element_type=jnp.float32)
        g, u = jnp.split(h, 2, axis=-1)
        a = (jax.nn.silu(g) * u).astype(x.dtype)
        y = jnp.einsum("ntf,ndf->ntd", a, down, preferred_element_type=jnp.float32)
        return jnp.einsum("ntd,tn->td", y, combine).astype(x.dtype)


def get_backend(name: str) -> ExpertBackend:
    return ReferenceBackend()
