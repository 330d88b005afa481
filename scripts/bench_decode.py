"""Time decode steps with the policy off and on, against the distinct experts that they read.

    python scripts/make_bench_checkpoint.py bench-checkpoint
    python scripts/bench_decode.py bench-checkpoint --out bench.json

Runs the engine's decode step after a context of random keys and values, and feeds it random ids, so
that rows do not fall into the same loop and share experts. Policies take turns step by step in one
process, which spreads whatever else the machine does over all of them; numbers are medians.
``cost`` is what a policy adds to a step by itself: the step with everything the policy computes,
and experts as plain top-k chooses them, against the step with the policy off. It does not depend on
the policy's numbers and is measured once for each kind.
"""

import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool

from lynx_jax.arguments import Parser, new_file
from lynx_jax.backends import get_backend
from lynx_jax.loading import load_model
from lynx_jax.models.decoder import DecoderForCausalLM
from lynx_jax.pallas_kernels.dense import linear
from lynx_jax.policies import Policy
from lynx_jax.policy_spec import parse_policy
from lynx_jax.routers import RouterScores
from lynx_jax.sampling import SamplingFlags
from lynx_jax.steps import EngineState, Settings, StepOutputs, decode_step, init_state

SWEEP = (
    "off",
    "lynx:alpha=1,beta=1,floor=0",
    "lynx:alpha=2,beta=2,floor=0",
    "lynx:alpha=2,beta=3",
    "lynx:alpha=3,beta=4",
    "demand",
    "oea:k0=2",
    "oea:k0=4",
    "xshare:budget=8",
    "xshare:budget=16",
    "xshare:budget=28",
    "xshare:budget=40",
)


@dataclass(frozen=True)
class CostOnly:
    """Computes all that a policy does and keeps plain top-k's experts."""

    policy: Policy

    @property
    def min_rows(self) -> int:
        return self.policy.min_rows

    @property
    def damping(self) -> float:
        return self.policy.damping

    def survivors(
        self,
        scores: RouterScores,
        live: Bool[Array, " rows"],
        k: int,
    ) -> Bool[Array, " experts"]:
        survivors = self.policy.survivors(scores, live, k)
        # The compiler must not see that every expert survives.
        return survivors | jax.lax.optimization_barrier(jnp.ones_like(survivors))

    def validate(self, k: int, num_experts: int) -> None:
        self.policy.validate(k, num_experts)


@dataclass
class Contender:
    """One compiled decode program with its state, and what was measured of it."""

    name: str
    step: Callable[[EngineState], tuple[EngineState, StepOutputs]]
    state: EngineState
    ms: list[float] = field(default_factory=list)
    experts: list[float] = field(default_factory=list)
    topk_experts: list[float] = field(default_factory=list)

    def run(self, tokens: np.ndarray, *, measured: bool) -> None:
        """One step on given tokens."""
        state = replace(self.state, tokens=jnp.array(tokens))
        start = time.perf_counter()
        self.state, outputs = self.step(state)
        jax.block_until_ready(outputs)
        if measured:
            self.ms.append((time.perf_counter() - start) * 1e3)
            self.experts.append(float(np.mean(outputs.experts)))
            self.topk_experts.append(float(np.mean(outputs.topk_experts)))


class Bench:
    """A model and how its steps are to be measured."""

    def __init__(self, model: DecoderForCausalLM, *, context: int, steps: int, seed: int) -> None:
        self.config = model.config
        self.context, self.steps, self.seed = context, steps, seed
        # XLA on CPU prepares an expert's products when they first run: meet every expert before.
        self.warm_up = 5 * self.config.num_experts // self.config.num_experts_per_tok
        self.graphdef, variables = nnx.split(model)
        self.variables = variables
        self.weights, self.treedef = jax.tree.flatten(variables)

    def measure(self, batch: int, policies: list[tuple[str, Policy]]) -> list[Contender]:
        """Time every policy on the same tokens, by turns."""
        contenders = [self._compile(name, batch, policy) for name, policy in policies]
        random = np.random.default_rng(self.seed)
        for step in range(self.warm_up + self.steps):
            tokens = random.integers(0, self.config.vocab_size, batch, np.int32)
            for contender in contenders:
                contender.run(tokens, measured=step >= self.warm_up)
        return contenders

    def _compile(self, name: str, batch: int, policy: Policy) -> Contender:
        settings = Settings(policy, (), SamplingFlags())

        def decode(weights: list[Array], state: EngineState) -> tuple[EngineState, StepOutputs]:
            model = nnx.merge(self.graphdef, jax.tree.unflatten(self.treedef, weights))
            return decode_step(model, state, settings)

        state = self._state(batch)
        program = jax.jit(decode, donate_argnums=1).lower(self.weights, state).compile()
        return Contender(name, partial(program, self.weights), state)

    def _state(self, batch: int) -> EngineState:
        """All rows live, with a context of random keys and values."""
        model = nnx.merge(self.graphdef, self.variables)
        state = init_state(model, batch, self.context + self.warm_up + self.steps, None)
        keys = iter(jax.random.split(jax.random.key(self.seed), len(jax.tree.leaves(state.cache))))
        return replace(
            state,
            cache=jax.tree.map(
                lambda rows: jax.random.normal(next(keys), rows.shape, rows.dtype), state.cache
            ),
            positions=jnp.full(batch, self.context, jnp.int32),
            live=jnp.ones(batch, bool),
            remaining=jnp.full(batch, 2**30, jnp.int32),
        )


def main() -> None:
    """Command line."""
    parser = Parser(description=__doc__.split("\n")[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 4], help="policy off only")
    parser.add_argument("--batch", type=int, default=16, help="for the sweep of policies")
    parser.add_argument("--policies", nargs="+", default=SWEEP)
    parser.add_argument("--steps", type=int, default=20, help="timed steps of each policy")
    parser.add_argument("--context", type=int, default=32, help="tokens before the first step")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--read-gigabytes", type=float, default=1.0, help="for the bandwidth")
    parser.add_argument("--out", type=new_file, help="also write the numbers as JSON")
    options = parser.parse_args()
    if "off" not in options.policies:
        parser.error("--policies needs off, which the others are compared with")
    model = load_model(options.checkpoint, backend=get_backend(options.backend))
    bench = Bench(model, context=options.context, steps=options.steps, seed=options.seed)
    result = {
        "jax": jax.__version__,
        "device": jax.devices()[0].device_kind,
        "machine": platform.processor() or platform.machine(),
        "read_gb_s": read_bandwidth(options.read_gigabytes),
        "off": [_off_row(bench, batch) for batch in options.batches],
        "batch": options.batch,
        **_sweep(bench, options.batch, options.policies),
    }
    _print(result)
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def read_bandwidth(gigabytes: float) -> float:
    """GB/s of the fastest that we have to read a large array once: products of a few rows."""
    best = 0.0
    for dtype, rows in ((jnp.float32, 1), (jnp.bfloat16, 2)):
        width = 1024
        weight = jnp.ones(
            (int(gigabytes * 1e9) // (width * jnp.dtype(dtype).itemsize), width), dtype
        )
        product = jax.jit(linear)
        x = jnp.ones((rows, width), dtype)
        for _ in range(6):
            start = time.perf_counter()
            product(x, weight).block_until_ready()
            best = max(best, weight.nbytes / (time.perf_counter() - start) / 1e9)
    return best


def _off_row(bench: Bench, batch: int) -> dict[str, object]:
    off = parse_policy("off", bench.config.num_experts_per_tok, bench.config.num_experts)
    (contender,) = bench.measure(batch, [("off", off)])
    return {"batch": batch, **_row(bench, contender)}


def _sweep(bench: Bench, batch: int, names: list[str]) -> dict[str, object]:
    """Rows of all policies, each one's own cost, and the line through (experts, ms)."""
    k, num_experts = bench.config.num_experts_per_tok, bench.config.num_experts
    policies = [(name, parse_policy(name, k, num_experts)) for name in names]
    kinds = {name.partition(":")[0]: policy for name, policy in reversed(policies)}
    costs = [(f"cost {kind}", CostOnly(policy)) for kind, policy in kinds.items() if kind != "off"]
    contenders = {c.name: c for c in bench.measure(batch, [*policies, *costs])}
    off = contenders["off"]
    rows = []
    for name in names:
        row = _row(bench, contenders[name])
        row["speedup"] = statistics.median(off.ms) / statistics.median(contenders[name].ms)
        cost = contenders.get(f"cost {name.partition(':')[0]}")
        row["cost_percent"] = 0.0 if cost is None else 100 * _relative_excess(cost.ms, off.ms)
        rows.append(row)
    slope, base, r2 = _line([row["experts"] for row in rows], [row["ms"] for row in rows])
    return {"rows": rows, "ms_per_expert": slope, "ms_without_experts": base, "r2": r2}


def _row(bench: Bench, contender: Contender) -> dict[str, object]:
    ms, experts = statistics.median(contender.ms), statistics.mean(contender.experts)
    return {
        "policy": contender.name,
        "experts": experts,
        "of_topk": experts / statistics.mean(contender.topk_experts),
        "ms": ms,
        "ms_p90": float(np.percentile(contender.ms, 90)),
        "gb_s": _bytes_read(bench, experts) / ms / 1e6,
    }


def _bytes_read(bench: Bench, experts: float) -> float:
    """Weight bytes of one step: all that is not in experts and not the embedding, and experts."""
    inside = outside = 0
    for path, variable in nnx.to_flat_state(bench.variables):
        if "experts" in path:
            inside += variable[...].nbytes
        elif "embed_tokens" not in path or bench.config.tie_word_embeddings:
            outside += variable[...].nbytes
    return outside + inside * experts / bench.config.num_experts


def _relative_excess(ms: list[float], base: list[float]) -> float:
    """Median over steps of how much longer than ``base`` they took, both on the same tokens."""
    return statistics.median(a / b - 1 for a, b in zip(ms, base, strict=True))


def _line(x: list[float], y: list[float]) -> tuple[float, float, float]:
    """Slope, intercept and R squared of the least-squares line."""
    slope, base = np.polyfit(x, y, 1)
    residual = np.asarray(y) - (slope * np.asarray(x) + base)
    return float(slope), float(base), float(1 - np.var(residual) / np.var(y))


def _print(result: dict) -> None:
    print(f"jax {result['jax']}, {result['device']}, reads {result['read_gb_s']:.1f} GB/s")
    head = f"{'B':>3} {'policy':<30}{'experts':>8}{'of top-k':>9}{'ms':>8}{'p90':>8}{'GB/s':>6}"
    print(f"{head}{'cost':>7}{'TPOT':>7}")
    for row in [*result["off"], *({"batch": result["batch"], **row} for row in result["rows"])]:
        line = f"{row['batch']:>3} {row['policy']:<30}{row['experts']:8.1f}{row['of_topk']:9.2f}"
        line += f"{row['ms']:8.1f}{row['ms_p90']:8.1f}{row['gb_s']:6.1f}"
        if "speedup" in row:
            line += f"{row['cost_percent']:6.1f}%{row['speedup']:6.2f}x"
        print(line)
    print(
        f"ms = {result['ms_without_experts']:.1f} + {result['ms_per_expert']:.2f} * experts, "
        f"R2 = {result['r2']:.4f}"
    )


if __name__ == "__main__":
    main()
