"""Section ``decode``: decode steps of a whole model with random weights, made on the device."""

import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Int

from gpu_recipe.cases import Deadline, Programs, Row, attempt
from gpu_recipe.settings import Settings
from lynx_jax.backends import ExpertBackend
from lynx_jax.models import get_family
from lynx_jax.pallas_kernels.measure import noise
from lynx_jax.policy_spec import parse_policy
from lynx_jax.sampling import SamplingFlags
from lynx_jax.steps import EngineState, StepOutputs, decode_step, init_state
from lynx_jax.steps import Settings as StepSettings


def run(settings: Settings, seed: int, deadline: Deadline) -> Iterator[Row]:
    """Milliseconds a step (TPOT) for every batch and policy, and the experts that a layer read.

    Rows get random tokens at every step: a model without training would fall into one loop in all
    rows, and these would share their experts.
    """
    programs = Programs(settings, deadline)
    model = Model(settings)
    cases = [
        (batch, policy)
        for batch in settings.decode_batches
        for policy in (settings.policies if batch > 1 else settings.policies[:1])
    ]
    for case in cases:
        programs.add(case, *model.program(*case), donate=(1,))
    programs.wait()
    weights: list[Array] = []
    yield attempt({"case": "weights"}, lambda: _make(model, seed, weights))
    for batch, policy in cases:
        work = partial(_time, settings, programs, model, weights, batch, policy, seed)
        yield attempt({"case": f"B={batch}, {policy}", "rows": batch, "policy": policy}, work)


class Model:
    """A model of a config: its shapes, decode programs, and random weights."""

    def __init__(self, settings: Settings, backend: ExpertBackend | None = None) -> None:
        raw = settings.model
        family = get_family(raw["model_type"])
        self.settings = settings
        self.config = family.config_class.from_dict(raw)
        self.abstract = nnx.eval_shape(
            lambda: family.model_class(
                self.config,
                backend=backend or settings.mosaic,
                dtype=jnp.bfloat16,
                rngs=nnx.Rngs(0),
            )
        )
        self.graphdef, self.variables = nnx.split(self.abstract)
        self.shapes, self.treedef = jax.tree.flatten(self.variables)

    def program(self, rows: int, policy: str) -> tuple[Any, ...]:
        """One decode step on given tokens, and the shapes of its arguments."""
        chosen = parse_policy(policy, self.config.num_experts_per_tok, self.config.num_experts)
        step_settings = StepSettings(chosen, (), SamplingFlags())

        def decode(
            weights: list[Array], state: EngineState, tokens: Int[Array, " rows"]
        ) -> tuple[EngineState, StepOutputs]:
            model = nnx.merge(self.graphdef, jax.tree.unflatten(self.treedef, weights))
            return decode_step(model, replace(state, tokens=tokens), step_settings)

        state = jax.eval_shape(partial(self.state, rows, 0))
        return decode, self.shapes, state, jax.ShapeDtypeStruct((rows,), jnp.int32)

    def state(self, rows: int, seed: int) -> EngineState:
        """All rows live, with a context of random keys and values."""
        context, steps = self.settings.context, self.settings.decode_steps
        state = init_state(self.abstract, rows, context + 2 * steps, None)
        leaves, treedef = jax.tree.flatten(state.cache)
        filled = [noise(seed + i, leaf.shape, leaf.dtype, 1.0) for i, leaf in enumerate(leaves)]
        return replace(
            state,
            cache=jax.tree.unflatten(treedef, filled),
            positions=jnp.full(rows, context, jnp.int32),
            live=jnp.ones(rows, bool),
            remaining=jnp.full(rows, 2**30, jnp.int32),
        )

    def random_weights(self, seed: int) -> list[Array]:
        """Norms of 1, and matrices under which activations keep their size."""
        made = []
        for number, (path, leaf) in enumerate(jax.tree.leaves_with_path(self.variables)):
            name = jax.tree_util.keystr(path)
            if len(leaf.shape) == 1:
                made.append(jnp.ones(leaf.shape, leaf.dtype))
                continue
            deviation = 1.0 if "embed" in name else leaf.shape[-1] ** -0.5
            made.append(noise(seed + number, leaf.shape, leaf.dtype, deviation))
        return made


def _make(model: Model, seed: int, weights: list[Array]) -> Row:
    weights += model.random_weights(seed)
    jax.block_until_ready(weights)
    return {"weight_bytes": sum(w.nbytes for w in weights)}


def _time(
    settings: Settings,
    programs: Programs,
    model: Model,
    weights: list[Array],
    rows: int,
    policy: str,
    seed: int,
) -> Row:
    program = programs.get((rows, policy))
    steps = settings.decode_steps
    state = jax.jit(model.state, static_argnums=0)(rows, seed)
    rng = np.random.default_rng(seed)
    tokens = [
        jnp.asarray(rng.integers(0, model.config.vocab_size, rows), jnp.int32)
        for _ in range(2 * steps)
    ]
    outputs: list[StepOutputs] = []
    samples = []
    for start in range(0, 2 * steps, max(1, steps // 3)):  # the first warm up
        begin = time.perf_counter()
        part = tokens[start : start + max(1, steps // 3)]
        for given in part:  # enqueued; the host is ahead of the device
            state, output = program(weights, state, given)
            outputs.append(output)
        jax.block_until_ready(state)
        samples.append((time.perf_counter() - begin) / len(part))
    found = _experts(outputs)
    return {"tpot_ms": statistics.median(samples[1:]) * 1e3, **found}


def _experts(outputs: list[StepOutputs]) -> Mapping[str, float]:
    read = [np.asarray(output.experts) for output in outputs]
    topk = [np.asarray(output.topk_experts) for output in outputs]
    return {"experts": float(np.mean(read)), "topk_experts": float(np.mean(topk))}
