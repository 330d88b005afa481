"""The training form of the Qwen3-MoE decoder: the library's mathematics over `fast_ops`.

Parameters are float32 masters in the layouts that the fast products want; `export` names them as a
checkpoint does, and a test holds this form's logits to those of the library's own model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from demo_recipe import dispatch, fast_ops

type Params = dict[str, Any]


@dataclass(frozen=True)
class Shape:
    """Sizes of the model, under their names in config.json where they have one."""

    vocab_size: int = 4096
    hidden_size: int = 256
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    num_experts: int = 64
    num_experts_per_tok: int = 8
    moe_intermediate_size: int = 64
    max_position_embeddings: int = 1024
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6


class LayerReport(NamedTuple):
    """Of one layer: auxiliary losses, share of choices dropped, tokens an expert."""

    balance: Array
    z: Array
    dropped: Array
    load: Array


def init_params(shape: Shape, seed: int) -> Params:
    """Random float32 masters."""
    keys = iter(jax.random.split(jax.random.key(seed), 6 * shape.num_hidden_layers + 1))
    width, head = shape.hidden_size, shape.head_dim
    query = shape.num_attention_heads * head
    mixed = query + 2 * shape.num_key_value_heads * head
    experts, inner = shape.num_experts, shape.moe_intermediate_size
    depth_scale = (2 * shape.num_hidden_layers) ** -0.5

    def normal(dims: tuple[int, ...], inputs: int, factor: float = 1.0) -> Array:
        return jax.random.normal(next(keys), dims, jnp.float32) * (factor * inputs**-0.5)

    layers = [
        {
            "input_norm": jnp.ones(width),
            "qkv": normal((width, mixed), width),
            "q_norm": jnp.ones(head),
            "k_norm": jnp.ones(head),
            "o": normal((query, width), query, depth_scale),
            "post_norm": jnp.ones(width),
            "gate": normal((width, experts), width, 0.2),
            "gate_up": normal((experts, 2 * inner, width), width),
            "down": normal((experts, inner, width), inner, depth_scale),
        }
        for _ in range(shape.num_hidden_layers)
    ]
    # Tied with the output head: rows of norm one make first logits of size one.
    return {
        "embed": normal((shape.vocab_size, width), width),
        "layers": layers,
        "norm": jnp.ones(width),
    }


def _rotary(x: Array, theta: float) -> Array:
    """Rotary embedding of [B, S, heads, h], half-split, positions from 0."""
    half = x.shape[-1] // 2
    frequencies = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = jnp.arange(x.shape[1], dtype=jnp.float32)[:, None, None] * frequencies
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1).astype(
        x.dtype
    )


def _attend(x: Array, layer: Params, shape: Shape, rows: int) -> Array:
    heads, kv, head = shape.num_attention_heads, shape.num_key_value_heads, shape.head_dim
    length = x.shape[0] // rows
    mixed = fast_ops.project(x, layer["qkv"]).reshape(rows, length, heads + 2 * kv, head)
    q, k, v = jnp.split(mixed, (heads, heads + kv), axis=2)
    q = _rotary(fast_ops.rms_norm(q, layer["q_norm"], shape.rms_norm_eps), shape.rope_theta)
    k = _rotary(fast_ops.rms_norm(k, layer["k_norm"], shape.rms_norm_eps), shape.rope_theta)
    q = q.reshape(rows, length, kv, heads // kv, head).transpose(0, 2, 3, 1, 4)
    k, v = k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3)
    out = fast_ops.causal_attention(
        q.reshape(rows * kv, -1, head),
        k.reshape(rows * kv, length, head),
        v.reshape(rows * kv, length, head),
        head**-0.5,
    )
    out = out.reshape(rows, kv, heads // kv, length, head).transpose(0, 3, 1, 2, 4)
    return fast_ops.project(out.reshape(rows * length, heads * head), layer["o"])


def balance_loss(probabilities: Array, load: Array) -> Array:
    """Load-balancing loss of Qwen3-MoE for one layer: k where the load is even.

    Args:
      probabilities: float32 [T, N], the router's softmax.
      load: [N], how many of the T * k choices fell on each expert.
    """
    rows, experts = probabilities.shape
    return experts * jnp.sum(load / rows * jnp.mean(probabilities, axis=0))


def _mixture(x: Array, layer: Params, shape: Shape, factor: float) -> tuple[Array, LayerReport]:
    k, experts = shape.num_experts_per_tok, shape.num_experts
    logits = jnp.dot(x, layer["gate"], preferred_element_type=jnp.float32)
    probabilities = jax.nn.softmax(logits, axis=-1)
    chosen, ids = jax.lax.top_k(probabilities, k)
    weights = chosen / jnp.sum(chosen, axis=-1, keepdims=True)
    capacity = dispatch.capacity_of(x.shape[0], k, experts, factor)
    where = dispatch.plan(ids, experts, capacity)
    y = dispatch.expert_ffn(x, weights, layer["gate_up"], layer["down"], where)
    load = jnp.zeros(experts, jnp.float32).at[ids.reshape(-1)].add(1.0)
    z = jnp.mean(jnp.square(jax.nn.logsumexp(logits, axis=-1)))
    dropped = 1.0 - jnp.mean(where.kept.astype(jnp.float32))
    return y, LayerReport(balance_loss(probabilities, load), z, dropped, load)


def hidden_states(
    params: Params, tokens: Array, shape: Shape, factor: float
) -> tuple[Array, list[LayerReport]]:
    """[B * S, D] after the last norm, in the dtype of ``params``, and a report a layer."""
    rows = tokens.shape[0]
    eps = shape.rms_norm_eps
    x = params["embed"][tokens.reshape(-1)]
    reports = []
    for layer in params["layers"]:
        x = x + _attend(fast_ops.rms_norm(x, layer["input_norm"], eps), layer, shape, rows)
        y, report = _mixture(fast_ops.rms_norm(x, layer["post_norm"], eps), layer, shape, factor)
        x = x + y
        reports.append(report)
    return fast_ops.rms_norm(x, params["norm"], eps), reports
