"""DeepSeek-V3 and R1 (arXiv 2412.19437): sigmoid router, a bias helps to choose within groups.

Its layers of multi-token prediction only serve to guess ahead; they are skipped.
"""

import dataclasses

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from lynx_jax.backends import ExpertBackend
from lynx_jax.models.deepseek import ROWS, DeepseekForCausalLM
from lynx_jax.models.deepseek_config import DeepseekConfig
from lynx_jax.models.fields import require
from lynx_jax.models.weights import Weight, WeightTable
from lynx_jax.routers import Router


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeepseekV3Config(DeepseekConfig):
    """Fields of DeepSeek-V3's config.json.

    Attributes:
      n_group: groups of experts.
      topk_group: groups that a token chooses from: those whose two best experts are best.
      scoring_func: must be sigmoid; so is a model without the field.
      topk_method: must be "noaux_tc", choice by biased scores; likewise.
    """

    n_group: int
    topk_group: int
    scoring_func: str = "sigmoid"
    topk_method: str = "noaux_tc"

    def check(self) -> None:
        scoring, method = self.scoring_func, self.topk_method
        require(scoring == "sigmoid", "scoring_func 'sigmoid' for deepseek_v3", repr(scoring))
        require(method == "noaux_tc", "topk_method 'noaux_tc' for deepseek_v3", repr(method))
        super().check()

    @property
    def router(self) -> Router:
        return Router(
            "sigmoid",
            "renormalize" if self.norm_topk_prob else "keep_sum",
            self.routed_scaling_factor,
            groups=self.n_group,
            kept_groups=self.topk_group,
            group_score="top2",
        )


class DeepseekV3ForCausalLM(DeepseekForCausalLM):
    """DeepSeek-V3 with its output head."""

    def __init__(
        self,
        config: DeepseekV3Config,
        *,
        backend: ExpertBackend,
        dtype: DTypeLike = jnp.bfloat16,
        rngs: nnx.Rngs,
    ) -> None:
        super().__init__(config, selection_bias=True, backend=backend, dtype=dtype, rngs=rngs)


WEIGHTS = WeightTable(
    (
        *ROWS,
        Weight(
            "layers.{i}.mlp.selection_bias",
            ("model.layers.{i}.mlp.gate.e_score_correction_bias",),
        ),
    ),
    skipped_layer="model.layers.{i}.eh_proj.weight",
)
