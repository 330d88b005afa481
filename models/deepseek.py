"""What DeepSeek-V2 and V3 are built from: latent attention, dense layers, mixtures, weights."""

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from lynx_jax.backends import ExpertBackend
from lynx_jax.models.decoder import DecoderForCausalLM, DecoderLayer
from lynx_jax.models.deepseek_config import DeepseekConfig
from lynx_jax.models.layers import MLP
from lynx_jax.models.mla import LatentAttention
from lynx_jax.models.moe import SparseMoeBlock
from lynx_jax.models.weights import DECODER_ROWS, MIXTURE_ROWS, Row, linear, mlp_rows, norm


class DeepseekForCausalLM(DecoderForCausalLM):
    """A DeepSeek decoder with its output head.

    Args:
      selection_bias: whether every router has a bias that helps to choose.
    """

    def __init__(
        self,
        config: DeepseekConfig,
        *,
        selection_bias: bool,
        backend: ExpertBackend,
        dtype: DTypeLike,
        rngs: nnx.Rngs,
    ) -> None:
        def feed_forward(index: int) -> SparseMoeBlock | MLP:
            width = config.hidden_size
            if not config.is_sparse(index):
                return MLP(width, config.intermediate_size, dtype=dtype, rngs=rngs)
            hidden = config.moe_intermediate_size
            return SparseMoeBlock(
                config,
                hidden,
                router=config.router,
                backend=backend,
                selection_bias=selection_bias,
                router_dtype=jnp.float32,
                shared_expert=MLP(width, hidden * config.n_shared_experts, dtype=dtype, rngs=rngs),
                dtype=dtype,
                rngs=rngs,
            )

        layers = [
            DecoderLayer(
                config,
                LatentAttention(config, dtype=dtype, rngs=rngs),
                feed_forward(index),
                dtype=dtype,
                rngs=rngs,
            )
            for index in range(config.num_hidden_layers)
        ]
        super().__init__(config, layers, dtype=dtype, rngs=rngs)


_LAYER = "layers.{i}"
_HUB = "model.layers.{i}"

ROWS: tuple[Row, ...] = (
    *DECODER_ROWS,
    linear(f"{_LAYER}.self_attn.q_a_proj", f"{_HUB}.self_attn.q_a_proj"),
    norm(f"{_LAYER}.self_attn.q_a_layernorm", f"{_HUB}.self_attn.q_a_layernorm"),
    linear(f"{_LAYER}.self_attn.q_b_proj", f"{_HUB}.self_attn.q_b_proj"),
    linear(f"{_LAYER}.self_attn.kv_a_proj_with_mqa", f"{_HUB}.self_attn.kv_a_proj_with_mqa"),
    norm(f"{_LAYER}.self_attn.kv_a_layernorm", f"{_HUB}.self_attn.kv_a_layernorm"),
    linear(f"{_LAYER}.self_attn.kv_b_proj", f"{_HUB}.self_attn.kv_b_proj"),
    *mlp_rows(f"{_LAYER}.mlp", f"{_HUB}.mlp"),
    *mlp_rows(f"{_LAYER}.mlp.shared_expert", f"{_HUB}.mlp.shared_experts"),
    *MIXTURE_ROWS,
)
