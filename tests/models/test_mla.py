"""Latent attention: what decode keeps and never makes, and its two forms against NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from lynx_jax.backends import ReferenceBackend
from lynx_jax.models import DeepseekV2ForCausalLM, DeepseekV3ForCausalLM
from lynx_jax.models.mla import LatentAttention, _dot
from lynx_jax.policies import TopK
from lynx_jax.routing import Phase
from tests.models.test_deepseek_config import read

ENTRIES = 37  # no other dimension has this size


def attention(model_type="deepseek_v2", dtype=jnp.float32, **changes):
    return LatentAttention(read(model_type, **changes), dtype=dtype, rngs=nnx.Rngs(0))


def normal(*shape, seed=0, dtype=jnp.float32):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


@nnx.jit
def one_pass(layer, x):
    positions = jnp.broadcast_to(jnp.arange(x.shape[1]), x.shape[:2])
    return layer(x, positions, jnp.ones(x.shape[:2], bool), None, phase=Phase.PREFILL)


@nnx.jit
def step(layer, x, positions, cache):
    live = jnp.ones(x.shape[:2], bool)
    return layer(x, positions, live, cache, phase=Phase.DECODE)


def plain_attention(layer, x):
    """The definition in NumPy, one row: keys and values of every head, rotation in the plane."""
    config, w = layer.config, lambda p: np.asarray(p.weight[...], np.float64)
    norm = lambda v, p: v / np.sqrt((v**2).mean(-1, keepdims=True) + 1e-6) * p.scale[...]  # noqa: E731
    heads, C = config.num_attention_heads, config.kv_lora_rank
    P, R, T = config.qk_nope_head_dim, config.qk_rope_head_dim, len(x)
    if config.q_lora_rank is None:
        q = x @ w(layer.q_proj).T
    else:
        q = norm(x @ w(layer.q_a_proj).T, layer.q_a_layernorm) @ w(layer.q_b_proj).T
    q = q.reshape(T, heads, P + R)
    down = x @ w(layer.kv_a_proj_with_mqa).T
    up = norm(down[:, :C], layer.kv_a_layernorm) @ w(layer.kv_b_proj).T
    up = up.reshape(T, heads, -1)
    angles = np.arange(T)[:, None] * config.rope.theta ** (-np.arange(0, R, 2) / R)
    turn = lambda v: (v[..., 0::2] + 1j * v[..., 1::2]) * np.exp(1j * angles)  # noqa: E731
    out = []
    for h in range(heads):
        scores = q[:, h, :P] @ up[:, h, :P].T
        scores = scores + (turn(q[:, h, P:]) @ np.conj(turn(down[:, C:])).T).real
        scores = np.where(np.tri(T), scores / np.sqrt(P + R), -np.inf)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        out.append(p / p.sum(-1, keepdims=True) @ up[:, h, P:])
    return np.concatenate(out, axis=-1) @ w(layer.o_proj).T


@pytest.mark.parametrize("q_lora_rank", [None, 9])
def test_one_pass_equals_the_definition(q_lora_rank):
    layer = attention(q_lora_rank=q_lora_rank, rope_scaling=None)
    x = normal(1, 7, layer.config.hidden_size)
    wanted = plain_attention(layer, np.asarray(x[0], np.float64))
    np.testing.assert_allclose(one_pass(layer, x)[0][0], wanted, atol=2e-6)


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**16), rows=st.sampled_from([1, 3]))
def test_decode_over_the_compressed_cache_equals_one_pass(seed, rows):
    layer, length = attention(q_lora_rank=9), 5
    x = normal(rows, length, layer.config.hidden_size, seed=seed)
    wanted, kept = one_pass(layer, x)
    cache, outputs = layer.init_cache(rows, length + 2, jnp.float32), []
    for t in range(length):
        y, cache = step(layer, x[:, t : t + 1], jnp.full((rows, 1), t), cache)
        outputs.append(y)
    np.testing.assert_allclose(jnp.concatenate(outputs, axis=1), wanted, atol=3e-6)
    np.testing.assert_allclose(cache.tokens[:, :length], kept.tokens, atol=1e-6)


def arrays_of(jaxpr):
    """Shapes of all arrays that a program makes, in its loops and calls too."""
    for equation in jaxpr.eqns:
        yield from (variable.aval.shape for variable in equation.outvars)
        for parameter in jax.tree.leaves(list(equation.params.values()), is_leaf=_is_jaxpr):
            if _is_jaxpr(parameter):
                yield from arrays_of(getattr(parameter, "jaxpr", parameter))


def _is_jaxpr(x):
    return hasattr(x, "eqns") or hasattr(x, "jaxpr")


def largest_over_the_context(program, *args):
    """Size of the largest array with an axis of all cache entries."""
    shapes = [shape for shape in arrays_of(jax.make_jaxpr(program)(*args)) if ENTRIES in shape]
    return max(np.prod(shape) for shape in shapes)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_decode_never_makes_keys_of_every_head(dtype):
    layer, rows = attention("deepseek_v3", dtype), 2
    config = layer.config
    latent = rows * ENTRIES * (config.kv_lora_rank + config.qk_rope_head_dim)
    keys = rows * ENTRIES * config.num_attention_heads * config.qk_nope_head_dim
    assert keys > latent
    x = normal(rows, 1, config.hidden_size, dtype=dtype)
    cache = layer.init_cache(rows, ENTRIES, dtype)
    assert largest_over_the_context(step, layer, x, jnp.ones((rows, 1), jnp.int32), cache) == latent
    whole = normal(rows, ENTRIES, config.hidden_size, dtype=dtype)
    assert largest_over_the_context(one_pass, layer, whole) >= keys


def prefilled(model, ids):
    """The cache that a prefill of these ids leaves."""
    positions = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
    live = jnp.ones(ids.shape, bool)
    _, cache, _ = model.forward(ids, positions, live, None, phase=Phase.PREFILL, policy=TopK())
    return cache


@pytest.mark.parametrize(
    ("model_type", "model_class"),
    [("deepseek_v2", DeepseekV2ForCausalLM), ("deepseek_v3", DeepseekV3ForCausalLM)],
)
def test_the_cache_holds_a_latent_vector_and_one_rotary_key_a_token(model_type, model_class):
    config, backend = read(model_type), ReferenceBackend()
    model = nnx.eval_shape(
        lambda: model_class(config, backend=backend, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    )
    width = config.kv_lora_rank + config.qk_rope_head_dim
    cache = jax.eval_shape(lambda: model.init_cache(4, ENTRIES))
    assert [leaf.shape for leaf in jax.tree.leaves(cache)] == [(4, ENTRIES, width)] * 3
    assert model.cache_bytes_per_token() == 2 * width * 3
    kept = nnx.eval_shape(prefilled, model, jnp.zeros((1, 6), jnp.int32))
    assert [leaf.shape for leaf in jax.tree.leaves(kept)] == [(1, 6, width)] * 3


def test_products_of_bfloat16_numbers_end_in_float32():
    a, b = (normal(2, 3, 4, 5, seed=seed, dtype=jnp.bfloat16) for seed in (1, 2))
    for subscripts, y in {"bthc,bshc->bhts": b, "bthc,bsc->bhts": b[:, :, 0]}.items():
        found = jax.jit(functools.partial(_dot, subscripts))(a, y)
        assert found.dtype == jnp.float32
        wanted = np.einsum(subscripts, np.asarray(a, np.float64), np.asarray(y, np.float64))
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
