"""DeepSeek-V2 (arXiv 2405.04434), Lite and Coder: softmax router, greedy or within groups."""

import dataclasses

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from lynx_jax.backends import ExpertBackend
from lynx_jax.models.deepseek import ROWS, DeepseekForCausalLM
from lynx_jax.models.deepseek_config import DeepseekConfig
from lynx_jax.models.fields import require
from lynx_jax.models.weights import WeightTable
from lynx_jax.routers import Router

_TOPK_METHODS = ("greedy", "group_limited_greedy")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeepseekV2Config(DeepseekConfig):
    """Fields of DeepSeek-V2's config.json.

    Attributes:
      scoring_func: must be softmax; so is a model without the field.
      topk_method: "greedy", or "group_limited_greedy": only from the groups with the best experts.
      n_group: groups of experts; of no meaning where the choice is greedy.
      topk_group: groups that a token chooses from; likewise.
    """

    scoring_func: str = "softmax"
    topk_method: str = "greedy"
    n_group: int = 1
    topk_group: int = 1
    norm_topk_prob: bool = False

    def check(self) -> None:
        scoring, method = self.scoring_func, self.topk_method
        require(scoring == "softmax", "scoring_func 'softmax' for deepseek_v2", repr(scoring))
        require(
            method in _TOPK_METHODS,
            f"topk_method {' or '.join(map(repr, _TOPK_METHODS))} for deepseek_v2",
            repr(method),
        )
        # The published code drops routed_scaling_factor then, and transformers ignores the field.
        require(not self.norm_topk_prob, "norm_topk_prob false for deepseek_v2", True)
        super().check()

    @property
    def router(self) -> Router:
        grouped = self.topk_method == "group_limited_greedy"
        return Router(
            "softmax",
            "keep_sum",
            self.routed_scaling_factor,
            groups=self.n_group if grouped else 1,
            kept_groups=self.topk_group if grouped else 1,
        )


class DeepseekV2ForCausalLM(DeepseekForCausalLM):
    """DeepSeek-V2 with its output head."""

    def __init__(
        self,
        config: DeepseekV2Config,
        *,
        backend: ExpertBackend,
        dtype: DTypeLike = jnp.bfloat16,
        rngs: nnx.Rngs,
    ) -> None:
        super().__init__(config, selection_bias=False, backend=backend, dtype=dtype, rngs=rngs)


WEIGHTS = WeightTable(ROWS)
