"""Backends agree on routed rows, and are chosen by name."""

import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lynx_jax.backends import LoopBackend, ReferenceBackend, get_backend
from lynx_jax.errors import InputError
from lynx_jax.pallas_kernels.expert_form import ExpertForm, ExpertWeights
from lynx_jax.policies import Lynx, TopK
from lynx_jax.routers import Router
from lynx_jax.routing import Phase, route

N, K, D, F = 12, 3, 24, 16
FORM = ExpertForm()


def layer(rows, dtype, policy=None, seed=0):
    """Rows (some not live, holding NaN), their routing, and weights of a layer."""
    rng = np.random.default_rng(seed)
    live = jnp.asarray(rng.random(rows) < 0.8)
    x = jnp.where(live[:, None], jnp.asarray(rng.normal(size=(rows, D)), dtype), jnp.nan)
    routing = route(
        jnp.asarray(rng.normal(size=(rows, N)), jnp.float32),
        live,
        k=K,
        router=Router("softmax", "renormalize"),
        policy=policy or TopK(),
        phase=Phase.DECODE,
    )
    gate_up = jnp.asarray(rng.normal(size=(N, 2 * F, D)) / np.sqrt(D), dtype)
    down = jnp.asarray(rng.normal(size=(N, D, F)) / np.sqrt(F), dtype)
    return x, routing, ExpertWeights(gate_up, down)


@pytest.mark.parametrize("phase", list(Phase))
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("rows", [1, 6, 24, 40])
def test_loop_equals_reference(rows, dtype, split, phase):
    x, routing, weights = layer(rows, dtype, Lynx(alpha=1.0, beta=1))
    expected = ReferenceBackend()(x, routing, weights, form=FORM, phase=phase)
    backend = LoopBackend(split=split)
    if split:
        weights = ExpertWeights(tuple(weights.gate_up), tuple(weights.down))
    jitted = jax.jit(backend, static_argnames=("form", "phase"))
    got = jitted(x, routing, weights, form=FORM, phase=phase)
    assert got.dtype == expected.dtype == dtype
    tolerance = 1e-5 if dtype == jnp.float32 else 2e-2
    np.testing.assert_allclose(
        np.asarray(got, np.float32),
        np.asarray(expected, np.float32),
        rtol=tolerance,
        atol=tolerance,
    )
    np.testing.assert_array_equal(np.asarray(got, np.float32)[~np.asarray(routing.live)], 0)


def test_both_loop_forms_serve_decode():
    x, routing, weights = layer(9, jnp.float32)
    dense = LoopBackend(dense_rows=9)(x, routing, weights, form=FORM, phase=Phase.DECODE)
    grouped = LoopBackend(dense_rows=8)(x, routing, weights, form=FORM, phase=Phase.DECODE)
    np.testing.assert_allclose(dense, grouped, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "expected"), [("auto", "loop"), ("loop", "loop"), ("reference", "reference")]
)
def test_backend_by_name_is_logged_with_the_reason(name, expected, caplog):
    with caplog.at_level(logging.INFO, logger="lynx_jax.backends"):
        backend = get_backend(name)
    assert backend.name == expected
    assert hash(backend) == hash(get_backend(name))
    assert caplog.messages[0].startswith(f"expert backend: {expected} (")


def test_unknown_backend_lists_the_known():
    with pytest.raises(InputError, match=r"'mosiac'.*auto, loop, mosaic, reference"):
        get_backend("mosiac")
