"""Routing column by column equals routing each column's batch alone."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from lynx_jax.models.moe import SparseMoeBlock
from lynx_jax.mosaic_backend import MosaicBackend
from lynx_jax.policies import OEA, Demand, Lynx, Policy, XShare
from lynx_jax.routers import Router
from lynx_jax.routing import Phase, route
from lynx_jax.teacher_forced import TeacherForced, route_teacher_forced

_B, _T, _N, _K = 4, 5, 8, 2
_PLAIN, _GROUPED = Router("softmax", "renormalize"), Router("sigmoid", "keep_sum", 1.0, 4, 2)
_PROMPT = 2
_CASES: list[tuple[Router, Policy]] = [
    (_PLAIN, Lynx(1.0, 2, damping=0.5)),
    (_PLAIN, Demand.for_model(_K, _N)),
    (_GROUPED, OEA(1)),
]
_route = jax.jit(route, static_argnames=("k", "router", "policy", "phase"))
_route_teacher_forced = jax.jit(
    route_teacher_forced, static_argnames=("k", "router", "policy", "prompt_tokens")
)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    case=st.sampled_from(_CASES),
)
def test_each_column_is_routed_as_its_own_batch(seed: int, case: tuple[Router, Policy]) -> None:
    router, policy = case
    rng = np.random.default_rng(seed)
    logits = jnp.asarray(rng.normal(size=(_B, _T, _N)).round(1), jnp.float32)
    live = rng.random((_B, _T)) < 0.7
    bias = jnp.asarray(rng.normal(size=_N), jnp.float32) if router is _GROUPED else None
    routing, steps = _route_teacher_forced(
        logits, live, k=_K, router=router, bias=bias, policy=policy, prompt_tokens=_PROMPT
    )
    ids, weights = (np.reshape(x, (_B, _T, _K)) for x in (routing.ids, routing.weights))
    everywhere = set()
    for t in range(_T):
        decodes = t >= _PROMPT
        alone = _route(
            logits[:, t],
            live[:, t],
            k=_K,
            router=router,
            bias=bias,
            policy=policy,
            phase=Phase.DECODE if decodes else Phase.PREFILL,
        )
        rows = live[:, t]
        np.testing.assert_array_equal(ids[rows, t], alone.ids[rows])
        np.testing.assert_array_equal(weights[rows, t], alone.weights[rows])
        used = set(np.asarray(alone.active)[: alone.num_active].tolist())
        assert set(np.flatnonzero(steps.active[t]).tolist()) == used
        assert steps.num_active_topk[t] == alone.num_active_topk
        everywhere |= used
    assert set(np.asarray(routing.active)[: routing.num_active].tolist()) == everywhere
    np.testing.assert_array_equal(routing.live, live.reshape(-1))


def test_retained_is_the_share_of_plain_top_k_s_scores() -> None:
    """Row 0 would use experts 0 and 1, row 1 experts 2 and 3; a budget of 2 keeps 0 and 2."""
    column = jnp.log(jnp.array([[8.0, 4, 2, 1], [2.0, 1, 8, 4], [1.0, 9, 1, 1]]))
    logits = jnp.stack([column, column], axis=1)
    live = jnp.array([[True, True], [True, True], [False, False]])
    options = {"k": 2, "router": _PLAIN, "policy": XShare(2), "prompt_tokens": 1}
    _, steps = _route_teacher_forced(logits, live, **options)
    np.testing.assert_array_equal(steps.active, [[True] * 4, [True, False, True, False]])
    np.testing.assert_array_equal(steps.num_active_topk, [4, 4])
    np.testing.assert_allclose(steps.retained, [[1, 10 / 12], [1, 10 / 12], [1, 1]], rtol=1e-6)


def test_the_mosaic_backend_takes_a_pass_as_many_rows() -> None:
    """Kernels of experts as in prefill, and none of routing."""
    config = SimpleNamespace(hidden_size=64, num_experts=4, num_experts_per_tok=2)
    options = {"router": _PLAIN, "backend": MosaicBackend("H200"), "dtype": jnp.bfloat16}
    block = nnx.eval_shape(lambda: SparseMoeBlock(config, 64, rngs=nnx.Rngs(0), **options))
    graphdef, state = nnx.split(block)

    def run(state: nnx.State, x: jax.Array, live: jax.Array) -> jax.Array:
        block = nnx.merge(graphdef, state)
        return block(x, live, phase=TeacherForced(1), policy=Lynx(0.5, 1))[0]

    x, live = jnp.zeros((3, 4, 64), jnp.bfloat16), jnp.ones((3, 4), bool)
    program = str(jax.make_jaxpr(run)(state, x, live))
    found = [f"name={name}" in program for name in ("ragged_by_expert", "expert_ffn", "route")]
    assert found == [True, False, False]
