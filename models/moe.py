"""The mixture of experts of one layer."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from lynx_jax.backends import ExpertBackend
from lynx_jax.models.config import DecoderConfig
from lynx_jax.models.layers import MLP, Linear
from lynx_jax.pallas_kernels.expert_form import SWIGLU, ExpertForm, ExpertWeights
from lynx_jax.policies import Policy
from lynx_jax.routers import Router
from lynx_jax.routing import Phase, Routing
from lynx_jax.teacher_forced import (
    StepRouting,
    TeacherForced,
    pass_phase,
    route_teacher_forced,
)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LayerRouting:
    """What the router of one MoE layer said and what was made of it.

    Attributes:
      router_logits: float32 logits before choice.
      routing: the chosen experts, rows and tokens flattened into one axis.
      steps: each column's own facts in teacher-forced decode, else None.
    """

    router_logits: Float[Array, "rows tokens experts"]
    routing: Routing
    steps: StepRouting | None = None


class Experts(nnx.Module):
    """Weights of a layer's N experts: gate and up in one, then down, [outputs, inputs].

    One stacked array each, or an array an expert where the backend asks for that. Biases, where
    there are any, are stacked in any case: [N, 2F] and [N, D].
    """

    def __init__(
        self,
        num_experts: int,
        width: int,
        hidden: int,
        *,
        backend: ExpertBackend,
        form: ExpertForm = SWIGLU,
        bias: bool = False,
        dtype: DTypeLike,
        rngs: nnx.Rngs,
    ) -> None:
        self.backend, self.form = backend, form
        self.gate_up_proj = _expert_weights(
            num_experts, (2 * hidden, width), split=backend.split, dtype=dtype, rngs=rngs
        )
        self.down_proj = _expert_weights(
            num_experts, (width, hidden), split=backend.split, dtype=dtype, rngs=rngs
        )
        zeros = jnp.zeros
        self.gate_up_bias = nnx.Param(zeros((num_experts, 2 * hidden), dtype)) if bias else None
        self.down_bias = nnx.Param(zeros((num_experts, width), dtype)) if bias else None

    def __call__(
        self, x: Float[Array, "rows width"], routing: Routing, *, phase: Phase
    ) -> Float[Array, "rows width"]:
        weights = ExpertWeights(
            _arrays(self.gate_up_proj),
            _arrays(self.down_proj),
            None if self.gate_up_bias is None else self.gate_up_bias[...],
            None if self.down_bias is None else self.down_bias[...],
        )
        return self.backend(x, routing, weights, form=self.form, phase=phase)


def _expert_weights(
    num_experts: int, shape: tuple[int, int], *, split: bool, dtype: DTypeLike, rngs: nnx.Rngs
) -> nnx.Param[Array] | nnx.List[nnx.Param[Array]]:
    init = nnx.initializers.lecun_normal(in_axis=2, out_axis=1, batch_axis=0)
    stacked = init(rngs.params(), (num_experts, *shape), dtype)
    return nnx.List(nnx.Param(expert) for expert in stacked) if split else nnx.Param(stacked)


def _arrays(
    weights: nnx.Param[Array] | nnx.List[nnx.Param[Array]],
) -> Array | tuple[Array, ...]:
    if isinstance(weights, nnx.List):
        return tuple(weight[...] for weight in weights)
    return weights[...]


class SparseMoeBlock(nnx.Module):
    """Router, expert selection and experts of one layer.

    Args:
      config: gives D, N and k.
      hidden: width F of one expert.
      router: the family's scores and weight rule.
      form: what one expert computes.
      expert_bias, router_bias: whether experts and router have biases.
      selection_bias: whether a float32 bias [N] helps to choose (DeepSeek-V3).
      router_dtype: dtype of the router's weights and of what they multiply; None: ``dtype``.
      shared_expert: runs beside the chosen experts for every token; policies do not see it.
    """

    def __init__(
        self,
        config: DecoderConfig,
        hidden: int,
        *,
        router: Router,
        backend: ExpertBackend,
        form: ExpertForm = SWIGLU,
        expert_bias: bool = False,
        router_bias: bool = False,
        selection_bias: bool = False,
        router_dtype: DTypeLike | None = None,
        shared_expert: MLP | None = None,
        dtype: DTypeLike,
        rngs: nnx.Rngs,
    ) -> None:
        self.k = config.num_experts_per_tok
        width, num_experts = config.hidden_size, config.num_experts
        router.validate(self.k, num_experts)
        self.router = router
        self.gate = Linear(
            width, num_experts, bias=router_bias, dtype=router_dtype or dtype, rngs=rngs
        )
        self.selection_bias = (
            nnx.Param(jnp.zeros(num_experts, jnp.float32)) if selection_bias else None
        )
        self.experts = Experts(
            num_experts,
            width,
            hidden,
            backend=backend,
            form=form,
            bias=expert_bias,
            dtype=dtype,
            rngs=rngs,
        )
        self.shared_expert = shared_expert

    def __call__(
        self,
        x: Float[Array, "rows tokens width"],
        live: Bool[Array, "rows tokens"],
        *,
        phase: Phase | TeacherForced,
        policy: Policy,
    ) -> tuple[Float[Array, "rows tokens width"], LayerRouting]:
        flat = x.reshape(-1, x.shape[-1])
        logits = self.gate(flat.astype(self.gate.weight.dtype), dtype=jnp.float32)
        chosen = self._route(logits.reshape(*x.shape[:2], -1), live, phase, policy)
        y = self.experts(flat, chosen.routing, phase=pass_phase(phase))
        if self.shared_expert is not None:
            y = y + self.shared_expert(flat)
        return y.reshape(x.shape), chosen

    def _route(
        self, logits: Array, live: Array, phase: Phase | TeacherForced, policy: Policy
    ) -> LayerRouting:
        bias = None if self.selection_bias is None else self.selection_bias[...]
        if isinstance(phase, TeacherForced):
            routing, steps = route_teacher_forced(
                logits,
                live,
                k=self.k,
                router=self.router,
                bias=bias,
                policy=policy,
                prompt_tokens=phase.prompt_tokens,
            )
            return LayerRouting(logits, routing, steps)
        routing = self.experts.backend.route(
            logits.reshape(-1, logits.shape[-1]),
            live.reshape(-1),
            k=self.k,
            router=self.router,
            bias=bias,
            policy=policy,
            phase=phase,
        )
        return LayerRouting(logits, routing)
