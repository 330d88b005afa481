"""Phi-3.5-MoE (arXiv 2404.14219): LayerNorm, biases, longrope, a router scored by sparsemixer."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from lynx_jax.backends import ExpertBackend
from lynx_jax.models.attention import Attention
from lynx_jax.models.config import DecoderConfig
from lynx_jax.models.decoder import DecoderForCausalLM, DecoderLayer
from lynx_jax.models.fields import require
from lynx_jax.models.layers import LayerNorm
from lynx_jax.models.moe import SparseMoeBlock
from lynx_jax.models.rope_scaling import LongRopeScaling
from lynx_jax.models.weights import (
    DECODER_ROWS,
    ExpertStack,
    WeightTable,
    bias,
    linear,
)
from lynx_jax.routers import Router


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhimoeConfig(DecoderConfig):
    """Fields of Phi-3.5-MoE's config.json.

    Attributes:
      intermediate_size: width F of one expert.
      router_jitter_noise: the router leaves out experts further below the best than twice this
        share; no noise in spite of its name, and in force in inference.
      attention_bias: queries, keys, values and outputs have biases.
      lm_head_bias: the output head has a bias.
    """

    hub_names: ClassVar[Mapping[str, tuple[str, ...]]] = {"num_experts": ("num_local_experts",)}

    intermediate_size: int
    router_jitter_noise: float
    attention_bias: bool = False
    lm_head_bias: bool = False

    def check(self) -> None:
        super().check()
        width, jitter = self.intermediate_size, self.router_jitter_noise
        require(width >= 1, "intermediate_size to be at least 1", width)
        require(0 <= jitter < 1, "router_jitter_noise from 0 to below 1", jitter)
        k = self.num_experts_per_tok
        require(k == 2, "num_experts_per_tok 2 for phimoe", k)
        tied = self.tie_word_embeddings
        require(not (tied and self.lm_head_bias), "lm_head_bias false with a tied head", True)
        scaling, pairs = self.rope.scaling, self.head_dim // 2
        if isinstance(scaling, LongRopeScaling):
            given = len(scaling.short_factor)
            require(given == pairs, f"a short_factor for each of {pairs} rotary pairs", given)

    @property
    def router(self) -> Router:
        """Scores and weight rule of every mixture."""
        return Router("sparsemixer", "own", jitter=self.router_jitter_noise)


class PhimoeForCausalLM(DecoderForCausalLM):
    """Phi-3.5-MoE with its output head."""

    def __init__(
        self,
        config: PhimoeConfig,
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
                    window=config.sliding_window,
                    qkv_bias=config.attention_bias,
                    out_bias=config.attention_bias,
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
                norm=LayerNorm,
                dtype=dtype,
                rngs=rngs,
            )
            for _ in range(config.num_hidden_layers)
        ]
        super().__init__(
            config,
            layers,
            norm=LayerNorm,
            head_bias=config.lm_head_bias,
            dtype=dtype,
            rngs=rngs,
        )


_NORMS = ("layers.{i}.input_layernorm", "layers.{i}.post_attention_layernorm", "norm")
_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")
_EXPERT = "model.layers.{i}.block_sparse_moe.experts.{e}"

WEIGHTS = WeightTable(
    (
        *DECODER_ROWS,
        *(bias(name, f"model.{name}") for name in _NORMS),
        *(
            bias(f"layers.{{i}}.self_attn.{name}", f"model.layers.{{i}}.self_attn.{name}")
            for name in _PROJECTIONS
        ),
        bias("lm_head", "lm_head"),
        linear(
            "layers.{i}.mlp.gate",
            "model.layers.{i}.block_sparse_moe.gate",
            "model.layers.{i}.mlp.router",
        ),
        ExpertStack(
            "layers.{i}.mlp.experts.gate_up_proj",
            fused="model.layers.{i}.mlp.experts.gate_up_proj",
            per_expert=(f"{_EXPERT}.w1.weight", f"{_EXPERT}.w3.weight"),
        ),
        ExpertStack(
            "layers.{i}.mlp.experts.down_proj",
            fused="model.layers.{i}.mlp.experts.down_proj",
            per_expert=(f"{_EXPERT}.w2.weight",),
        ),
    )
)
