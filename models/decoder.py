"""The decoder that the families build: layers, final norm, output head, cache."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from lynx_jax.models.attention import LayerCache, SelfAttention
from lynx_jax.models.config import DecoderConfig
from lynx_jax.models.layers import MLP, Linear, Norm, RMSNorm
from lynx_jax.models.moe import LayerRouting, SparseMoeBlock
from lynx_jax.pallas_kernels.dense import linear
from lynx_jax.policies import Policy, TopK
from lynx_jax.routing import Phase
from lynx_jax.teacher_forced import TeacherForced, pass_phase

type Cache = tuple[LayerCache, ...]


class DecoderLayer(nnx.Module):
    """Pre-norm attention and feed-forward, each with a residual."""

    def __init__(
        self,
        config: DecoderConfig,
        attention: SelfAttention,
        mlp: SparseMoeBlock | MLP,
        *,
        norm: Norm = RMSNorm,
        dtype: DTypeLike,
        rngs: nnx.Rngs,
    ) -> None:
        width, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = norm(width, eps=eps, dtype=dtype, rngs=rngs)
        self.self_attn = attention
        self.post_attention_layernorm = norm(width, eps=eps, dtype=dtype, rngs=rngs)
        self.mlp = mlp

    def __call__(
        self,
        x: Float[Array, "rows tokens width"],
        positions: Int[Array, "rows tokens"],
        live: Bool[Array, "rows tokens"],
        cache: LayerCache | None,
        *,
        phase: Phase | TeacherForced,
        policy: Policy,
    ) -> tuple[Float[Array, "rows tokens width"], LayerCache, LayerRouting | None]:
        attended, cache = self.self_attn(
            self.input_layernorm(x), positions, live, cache, phase=pass_phase(phase)
        )
        x = x + attended
        normed = self.post_attention_layernorm(x)
        if isinstance(self.mlp, MLP):
            return x + self.mlp(normed), cache, None
        y, routing = self.mlp(normed, live, phase=phase, policy=policy)
        return x + y, cache, routing


class DecoderForCausalLM(nnx.Module):
    """A decoder-only language model. Families subclass it and build the layers."""

    def __init__(
        self,
        config: DecoderConfig,
        layers: Sequence[DecoderLayer],
        *,
        norm: Norm = RMSNorm,
        head_bias: bool = False,
        dtype: DTypeLike,
        rngs: nnx.Rngs,
    ) -> None:
        self.config = config
        self.dtype = dtype
        self.embed_tokens = nnx.Embed(
            config.vocab_size, config.hidden_size, dtype=dtype, param_dtype=dtype, rngs=rngs
        )
        self.layers = nnx.List(layers)
        self.norm = norm(config.hidden_size, eps=config.rms_norm_eps, dtype=dtype, rngs=rngs)
        self.lm_head = (
            None
            if config.tie_word_embeddings
            else Linear(
                config.hidden_size, config.vocab_size, bias=head_bias, dtype=dtype, rngs=rngs
            )
        )

    def __call__(
        self,
        tokens: Int[Array, "rows tokens"],
        *,
        live: Bool[Array, "rows tokens"] | None = None,
    ) -> Float[Array, "rows tokens vocab"]:
        """float32 logits of whole sequences in one pass, with plain top-k routing.

        Args:
          tokens: int32 ids.
          live: False at padding; None where there is none.
        """
        positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
        live = jnp.ones(tokens.shape, bool) if live is None else live
        hidden, _, _ = self.forward(
            tokens, positions, live, None, phase=Phase.PREFILL, policy=TopK()
        )
        return self.logits(hidden)

    def forward(
        self,
        tokens: Int[Array, "rows tokens"],
        positions: Int[Array, "rows tokens"],
        live: Bool[Array, "rows tokens"],
        cache: Cache | None,
        *,
        phase: Phase | TeacherForced,
        policy: Policy,
    ) -> tuple[Float[Array, "rows tokens width"], Cache, tuple[LayerRouting, ...]]:
        """Hidden states after the final norm, the cache, and the routing of every MoE layer.

        In prefill ``cache`` is None; tokens see the tokens given with them, and the cache that
        comes back holds just these. In decode there is one token a row: row b stores its keys and
        values at ``positions[b, 0]`` of the cache and sees all entries up to there.

        Args:
          tokens: int32 ids.
          positions: int32 place of each token in its sequence, from 0.
          live: False at padding and in rows that hold no running sequence.
          cache: None in prefill, else one ``LayerCache`` a layer.
          phase: static; prefill, decode, or teacher-forced decode, which takes and gives what
            prefill does.
          policy: static; which experts of a decode batch survive.
        """
        x = self.embed_tokens(tokens)
        caches, routings = [], []
        for index, layer in enumerate(self.layers):
            x, layer_cache, routing = layer(
                x,
                positions,
                live,
                None if cache is None else cache[index],
                phase=phase,
                policy=policy,
            )
            caches.append(layer_cache)
            if routing is not None:
                routings.append(routing)
        return self.norm(x), tuple(caches), tuple(routings)

    def logits(self, hidden: Float[Array, "*batch width"]) -> Float[Array, "*batch vocab"]:
        """float32 logits of hidden states that ``forward`` gave."""
        if self.lm_head is None:
            return linear(hidden, self.embed_tokens.embedding[...])
        return self.lm_head(hidden, dtype=jnp.float32)

    def cache_bytes_per_token(self) -> int:
        """What the cache holds of one token, in all layers together."""
        cache = jax.eval_shape(lambda: self.init_cache(1, 1))
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(cache))

    def init_cache(self, rows: int, entries: int) -> Cache:
        """An empty cache for ``rows`` sequences of up to ``entries`` tokens, in the model dtype."""
        return tuple(layer.self_attn.init_cache(rows, entries, self.dtype) for layer in self.layers)
