"""Whole decode steps of the engine, to be compiled: the demo model and Qwen3-30B-A3B's layers."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from compile_recipe.case import Case
from compile_recipe.expert_cases import activation_bytes
from lynx_jax.backends import ExpertBackend, LoopBackend
from lynx_jax.convert.folder import read_config
from lynx_jax.loading import resolve
from lynx_jax.models import get_family
from lynx_jax.mosaic_backend import MosaicBackend
from lynx_jax.pallas_kernels.expert_shapes import ExpertShape
from lynx_jax.policy_spec import parse_policy
from lynx_jax.sampling import SamplingFlags
from lynx_jax.steps import EngineState, Settings, decode_step, init_state

ENTRIES = 512  # of the cache, a row
BACKENDS: dict[str, ExpertBackend] = {
    "mosaic": MosaicBackend("H200"),
    "loop": LoopBackend(split=False),
}
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


def step_cases(rows: list[int], policies: list[str], backend: str) -> Iterator[Case]:
    """A decode step of both models for every batch size and policy."""
    models = {"demo": read_config(resolve("demo")), "Qwen3-30B-A3B, 2 layers": QWEN3_30B}
    for name, raw in models.items():
        for batch in rows:
            for policy in policies:
                decode, arguments = _decode_step(raw, batch, policy, BACKENDS[backend])
                yield Case(
                    f"step {name}, B={batch}, {policy}, {backend}",
                    decode,
                    arguments,
                    activation_bytes=_activation_bytes(raw, batch),
                    experts=_experts(raw),
                    donate=(1,),
                )


def _decode_step(
    raw: dict[str, Any], rows: int, policy: str, backend: ExpertBackend
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The engine's decode step of a config, and the shapes of its arguments."""
    family = get_family(raw["model_type"])
    config = family.config_class.from_dict(raw)
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


def _experts(raw: dict[str, Any]) -> tuple[int, int, int]:
    return raw["num_experts"], raw["hidden_size"], raw["moe_intermediate_size"]


def _activation_bytes(raw: dict[str, Any], rows: int) -> int:
    """What a step has to keep of a batch.

    One layer at a time: its keys and values in the layout that their products take, the scores of
    attention in float32 and as bfloat16 weights, what its experts keep. Then logits in float32.
    """
    kept = 2 * raw["num_key_value_heads"] * raw["head_dim"] * ENTRIES * 2
    scores = raw["num_attention_heads"] * ENTRIES * (4 + 2)
    n, d, f = _experts(raw)
    experts = activation_bytes(rows, ExpertShape(n, raw["num_experts_per_tok"], d, f))
    return rows * (kept + scores + raw["vocab_size"] * 4) + experts
