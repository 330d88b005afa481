"""Compile kernels and whole decode steps for an H200 on a machine without a GPU.

    pip install -e '.[compile]' && python scripts/compile_check.py

What only a GPU's compiler refuses shows here, and so does a copy of a layer's experts: a step's
temporaries must stay below their size. Nothing is run, so nothing is said about speed or results.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from typing import Any

from compile_recipe import h200

h200.prepare()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from compile_recipe.expert_cases import expert_cases  # noqa: E402
from compile_recipe.routing_cases import routing_cases  # noqa: E402
from flax import nnx  # noqa: E402

from lynx_jax.backends import LoopBackend  # noqa: E402
from lynx_jax.convert.folder import read_config  # noqa: E402
from lynx_jax.loading import resolve  # noqa: E402
from lynx_jax.models import get_family  # noqa: E402
from lynx_jax.policy_spec import parse_policy  # noqa: E402
from lynx_jax.sampling import SamplingFlags  # noqa: E402
from lynx_jax.steps import EngineState, Settings, decode_step, init_state  # noqa: E402

ENTRIES = 512
# Qwen3-30B-A3B cut to two layers.
QWEN3_30B = {
    "model_type": "qwen3_moe",
    "vocab_size": 151936,
    "hidden_size": 2048,
    "num_hidden_layers": 2,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
}


def decode_program(raw: dict[str, Any], rows: int, policy: str) -> tuple[Callable[..., Any], Any]:
    """The engine's decode step of a config, and the shapes of its arguments."""
    family = get_family(raw["model_type"])
    config = family.config_class.from_dict(raw)
    backend = LoopBackend(split=False)
    model = nnx.eval_shape(
        lambda: family.model_class(config, backend=backend, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    )
    graphdef, variables = nnx.split(model)
    chosen = parse_policy(policy, config.num_experts_per_tok, config.num_experts)
    settings = Settings(chosen, (), SamplingFlags())
    state = jax.eval_shape(lambda: init_state(model, rows, ENTRIES, None))

    def decode(weights: Any, state: EngineState) -> Any:
        return decode_step(nnx.merge(graphdef, weights), state, settings)

    return decode, (variables, state)


def layer_expert_bytes(raw: dict[str, Any]) -> int:
    """Size of one layer's expert weights in bfloat16."""
    sizes = raw["num_experts"], raw["hidden_size"], raw["moe_intermediate_size"]
    return 2 * 3 * sizes[0] * sizes[1] * sizes[2]


def check(rows: list[int], policies: list[str]) -> Iterator[str]:
    """Compiles every step, prints a line each, and yields what is wrong."""
    demo = read_config(resolve("demo"))
    for name, raw in (("demo", demo), ("Qwen3-30B-A3B, 2 layers", QWEN3_30B)):
        for batch in rows:
            for policy in policies:
                decode, arguments = decode_program(raw, batch, policy)
                compiled = h200.compile_for_h200(decode, *arguments, donate=(1,))
                where = f"{name}, B={batch}, {policy}"
                experts = layer_expert_bytes(raw)
                print(
                    f"{where}: temporaries {compiled.temporary_bytes / 1e6:.2f} MB, "
                    f"experts of a layer {experts / 1e6:.0f} MB",
                    flush=True,
                )
                if compiled.temporary_bytes >= experts:
                    yield f"{where}: temporaries as large as the experts of a layer"


def check_routing(rows: list[int], modes: list[str]) -> Iterator[str]:
    """Compiles the routing kernel, prints a line each case, and yields what is wrong."""
    for name, route, shapes in routing_cases(rows, modes):
        compiled = h200.compile_for_h200(route, *shapes)
        (kernel,) = compiled.kernels
        print(
            f"{name}: {kernel.registers} registers, {kernel.spill_bytes} bytes spilled, "
            f"{kernel.shared_bytes} bytes of shared memory",
            flush=True,
        )
        if kernel.spill_bytes:
            yield f"{name}: registers are spilled"
        if kernel.unsigned_maxima:
            yield f"{name}: takes maxima of unsigned integers"


def check_experts(rows: list[int]) -> Iterator[str]:
    """Compiles the expert kernels, prints a line each case, and yields what is wrong."""
    for name, experts, shapes, activations in expert_cases(rows):
        compiled = h200.compile_for_h200(experts, *shapes)
        for kernel in compiled.kernels:
            print(
                f"{name}, {kernel.name}: {kernel.registers} registers, {kernel.spill_bytes} bytes "
                f"spilled, {kernel.shared_bytes} bytes of shared memory",
                flush=True,
            )
            if kernel.spill_bytes:
                yield f"{name}, {kernel.name}: registers are spilled"
        print(f"{name}: temporaries {compiled.temporary_bytes / 1e6:.2f} MB", flush=True)
        if compiled.temporary_bytes > activations:
            yield f"{name}: temporaries larger than the activations ({activations} bytes)"


def main() -> int:
    """Command line; 1 if a kernel spills or a step holds too large temporaries."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, nargs="*", default=[16], help="batch sizes")
    parser.add_argument("--policies", nargs="+", default=["off", "lynx"])
    parser.add_argument(
        "--routing", type=int, nargs="*", default=[16], help="batch sizes for the routing kernel"
    )
    parser.add_argument("--modes", nargs="+", default=["lynx"], help="the routing kernel's modes")
    parser.add_argument(
        "--experts", type=int, nargs="*", default=[16], help="batch sizes for the expert kernels"
    )
    options = parser.parse_args()
    problems = list(check(options.rows, options.policies))
    problems += check_routing(options.routing, options.modes)
    problems += check_experts(options.experts)
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
