"""Fields that the config.json files of DeepSeek-V2 and V3 share."""

import abc
import dataclasses
import math
from collections.abc import Mapping
from typing import ClassVar

from lynx_jax.models.config import DecoderConfig
from lynx_jax.models.fields import require
from lynx_jax.models.rope_scaling import YarnScaling
from lynx_jax.routers import Router

_POSITIVE = (
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "intermediate_size",
    "moe_intermediate_size",
    "n_shared_experts",
    "moe_layer_freq",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeepseekConfig(DecoderConfig, abc.ABC):
    """Latent attention, leading dense layers, shared experts and routing in groups.

    Attributes:
      head_dim: the rotated part of a head, ``qk_rope_head_dim``, as transformers 5 has it.
      kv_lora_rank: width of the latent vector that keys and values are made from.
      q_lora_rank: width of the compressed query; None where queries are not compressed.
      qk_nope_head_dim: part of a head's query and key without rotary embedding.
      qk_rope_head_dim: part with it.
      v_head_dim: width of a head's values.
      rope_interleave: rotated pairs are neighbours, not half the width apart.
      intermediate_size: hidden width of a dense layer.
      moe_intermediate_size: width F of one expert.
      n_shared_experts: experts that every token uses; they are one MLP of so many times F.
      first_k_dense_replace: so many leading layers are dense.
      moe_layer_freq: of those after them, every layer whose index it divides is a mixture.
      routed_scaling_factor: factor on the weights of the chosen experts.
      norm_topk_prob: divide the k weights by their sum.
      attention_bias: must be false; the published models have none.
    """

    hub_names: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "head_dim": ("qk_rope_head_dim",),
        "num_experts": ("n_routed_experts",),
    }

    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    intermediate_size: int
    moe_intermediate_size: int
    n_shared_experts: int
    first_k_dense_replace: int
    norm_topk_prob: bool
    q_lora_rank: int | None = None
    rope_interleave: bool = True
    moe_layer_freq: int = 1
    routed_scaling_factor: float = 1.0
    attention_bias: bool = False

    def check(self) -> None:
        super().check()
        for name in _POSITIVE:
            require(getattr(self, name) >= 1, f"{name} to be at least 1", getattr(self, name))
        rank = self.q_lora_rank
        require(rank is None or rank >= 1, "q_lora_rank null or at least 1", rank)
        dense = self.first_k_dense_replace
        require(dense >= 0, "first_k_dense_replace to be at least 0", dense)
        heads = self.num_attention_heads
        require(
            self.num_key_value_heads == heads,
            f"num_key_value_heads {heads}, as many as num_attention_heads",
            self.num_key_value_heads,
        )
        scale = self.routed_scaling_factor
        require(0 < scale < math.inf, "a finite routed_scaling_factor above 0", scale)
        require(not self.attention_bias, f"attention_bias false for {self.model_type}", True)
        self.router.validate(self.num_experts_per_tok, self.num_experts)

    @property
    @abc.abstractmethod
    def router(self) -> Router:
        """The family's rule at this config.

        Raises:
          InputError: its fields contradict one another.
        """

    @property
    def softmax_scale(self) -> float:
        """What attention scores are multiplied by."""
        scaling = self.rope.scaling
        factor = scaling.softmax_factor if isinstance(scaling, YarnScaling) else 1.0
        return factor / math.sqrt(self.qk_nope_head_dim + self.qk_rope_head_dim)

    def is_sparse(self, layer: int) -> bool:
        """Whether the layer of this index is a mixture."""
        return layer >= self.first_k_dense_replace and layer % self.moe_layer_freq == 0
