"""OLMoE (arXiv 2409.02060): norms of all query heads and of all key heads together."""

import dataclasses
import math

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from lynx_jax.backends import ExpertBackend
from lynx_jax.models.attention import Attention
from lynx_jax.models.config import DecoderConfig
from lynx_jax.models.decoder import DecoderForCausalLM, DecoderLayer
from lynx_jax.models.fields import require
from lynx_jax.models.moe import SparseMoeBlock
from lynx_jax.models.weights import DECODER_ROWS, MIXTURE_ROWS, WeightTable, norm
from lynx_jax.routers import Router


@dataclasses.dataclass(frozen=True, kw_only=True)
class OlmoeConfig(DecoderConfig):
    """Fields of OLMoE's config.json.

    Attributes:
      intermediate_size: width F of one expert.
      norm_topk_prob: divide the k weights by their sum; the published models do not.
      clip_qkv: queries, keys and values are clipped to this size; None for no limit.
      attention_bias: must be false; the published models have none.
    """

    intermediate_size: int
    norm_topk_prob: bool = False
    clip_qkv: float | None = None
    attention_bias: bool = False

    def check(self) -> None:
        super().check()
        width, clip = self.intermediate_size, self.clip_qkv
        require(width >= 1, "intermediate_size to be at least 1", width)
        require(clip is None or 0 < clip < math.inf, "clip_qkv null or above 0", clip)
        require(not self.attention_bias, "attention_bias false for olmoe", True)
        window = self.sliding_window
        require(window is None, "no sliding_window for olmoe", window)

    @property
    def router(self) -> Router:
        """Scores and weight rule of every mixture."""
        return Router("softmax", "renormalize" if self.norm_topk_prob else "keep_sum")


class OlmoeForCausalLM(DecoderForCausalLM):
    """OLMoE with its output head."""

    def __init__(
        self,
        config: OlmoeConfig,
        *,
        backend: ExpertBackend,
        dtype: DTypeLike = jnp.bfloat16,
        rngs: nnx.Rngs,
    ) -> None:
        layers = [
            DecoderLayer(
                config,
                Attention(
                    config,
                    window=None,
                    qk_norm="width",
                    clip=config.clip_qkv,
                    dtype=dtype,
                    rngs=rngs,
                ),
                SparseMoeBlock(
                    config,
                    config.intermediate_size,
                    router=config.router,
                    backend=backend,
                    dtype=dtype,
                    rngs=rngs,
                ),
                dtype=dtype,
                rngs=rngs,
            )
            for _ in range(config.num_hidden_layers)
        ]
        super().__init__(config, layers, dtype=dtype, rngs=rngs)


WEIGHTS = WeightTable(
    (
        *DECODER_ROWS,
        norm("layers.{i}.self_attn.q_norm", "model.layers.{i}.self_attn.q_norm"),
        norm("layers.{i}.self_attn.k_norm", "model.layers.{i}.self_attn.k_norm"),
        *MIXTURE_ROWS,
    )
)
