"""Measuring expert layers on a device: random weights, work that caches cannot hold, time, error.

Weights are made on the device. The experts in use move on from step to step through the whole
layer, so that a step finds none of its weights in a cache (50 MB on an H200): an expert comes up
again only after the others.
"""

import functools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, Float, Int

from lynx_jax.pallas_kernels.expert_form import ExpertWeights
from lynx_jax.pallas_kernels.expert_shapes import ExpertShape

# Largest difference, relative to the value and to the largest value: a rounding on either side.
ROUNDINGS = 2.0**-7


@functools.partial(jax.jit, static_argnames=("shape", "dtype"))
def noise(seed: ArrayLike, shape: tuple[int, ...], dtype: DTypeLike, deviation: ArrayLike) -> Array:
    """Evenly distributed numbers of mean 0, made one by one: large arrays need no more memory.

    Args:
      seed: another one gives other numbers.
      shape: of the array.
      dtype: of the array.
      deviation: their standard deviation.
    """
    bits = jnp.full(shape, jnp.asarray(seed, jnp.uint32) * jnp.uint32(0x9E3779B9), jnp.uint32)
    for axis in range(len(shape)):
        bits = (bits ^ jax.lax.broadcasted_iota(jnp.uint32, shape, axis)) * jnp.uint32(0x85EBCA6B)
        bits = (bits ^ (bits >> 13)) * jnp.uint32(0xC2B2AE35)
        bits = bits ^ (bits >> 16)
    unit = (bits >> 8).astype(jnp.float32) * 2.0**-23 - 1.0
    return (unit * (deviation * math.sqrt(3.0))).astype(dtype)


def random_experts(shape: ExpertShape, seed: int) -> ExpertWeights:
    """bfloat16 weights under which activations keep their size."""
    n, _, d, f, _ = shape

    def weight(offset: int, *sizes: int) -> Array:
        made: Array = noise(seed + offset, sizes, jnp.bfloat16, sizes[-1] ** -0.5)
        return made

    return ExpertWeights(
        weight(1, n, 2 * f, d),
        weight(2, n, d, f),
        weight(3, n, 2 * f) if shape.biased else None,
        weight(4, n, d) if shape.biased else None,
    )


class Work(NamedTuple):
    """What a step asks of a layer's experts.

    Attributes:
      combine: float32 weights of the experts in the rows.
      active: int32; the experts in use come first, ascending.
      num_active: int32, how many they are.
    """

    combine: Float[Array, "rows experts"]
    active: Int[Array, " experts"]
    num_active: Int[Array, ""]


def rotating_work(shape: ExpertShape, rows: int, num_active: int, steps: int) -> list[Work]:
    """Steps that use ``num_active`` experts each, none of them twice before all others had a turn.

    Each row uses k of them, or all where they are fewer; every one is used if the rows suffice.
    """
    n, k = shape.experts, min(shape.k, num_active)
    work = []
    for step in range(steps):
        combine, active = np.zeros((rows, n), np.float32), np.zeros(n, np.int32)
        active[:num_active] = np.sort((step * num_active + np.arange(num_active)) % n)
        chosen = active[(np.arange(rows)[:, None] * k + np.arange(k)) % num_active]
        np.put_along_axis(combine, chosen, 1 / k, axis=1)
        count = jnp.asarray(num_active, jnp.int32)
        work.append(Work(jnp.asarray(combine), jnp.asarray(active), count))
    return work


def chain(step: Callable[[Array, Any, Any], Array]) -> Callable[[Array, Sequence[Any], Any], Array]:
    """Steps in one program, each on what the last one gave.

    Args:
      step: of an array, what this step alone is given, and what all steps share.

    Returns:
      A function of the first array, of a sequence with what each step is given, and of the rest.
    """
    once = jax.jit(step)  # lowered once

    def steps(x: Array, own: Sequence[Any], shared: Any) -> Array:
        for item in own:
            x = once(x, item, shared)
        return x

    return steps


def residual(x: Array, y: Array) -> Array:
    """What a layer makes of its input in a chain: it stays of its size, however many follow.

    The sum is one with the conversion that ends a layer anyway.
    """
    return x + y * 2.0**-10


def microseconds_a_step(
    program: Callable[..., Array],
    x: Array,
    *arguments: object,
    steps: int,
    repeats: int = 7,
    seconds: float = 0.02,
) -> float:
    """Time of one of the steps that a program is made of.

    Programs are enqueued one upon another, each on the last one's result, and only the last is
    waited for: after the first the host is ahead of the device, and its own time does not count.

    Args:
      program: compiled; gives what it takes as its first argument, which may be donated to it.
        Then all stays at one address, and launches that were captured once can be repeated.
      x: where it starts.
      arguments: the others.
      steps: how many steps the program has.
      repeats: the result is the median of so many samples.
      seconds: a sample is to take about this long.
    """
    x = program(jnp.copy(x), *arguments).block_until_ready()  # warm
    start = time.perf_counter()
    x = program(x, *arguments).block_until_ready()
    calls = max(1, math.ceil(seconds / (time.perf_counter() - start)))
    samples = []
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(calls):
            x = program(x, *arguments)
        x.block_until_ready()
        samples.append(time.perf_counter() - start)
    return statistics.median(samples) / (calls * steps) * 1e6


def error(got: Float[Array, "*shape"], want: Float[Array, "*shape"]) -> float:
    """Largest difference relative to the value and the largest value; NaN where either has one.

    ``ROUNDINGS`` is what two roundings to bfloat16 may make of it.
    """
    wanted = jnp.asarray(want, jnp.float32)
    size = jnp.abs(wanted) + jnp.maximum(jnp.max(jnp.abs(wanted), initial=0), 1e-30)
    return float(jnp.max(jnp.abs(jnp.asarray(got, jnp.float32) - wanted) / size, initial=0))
