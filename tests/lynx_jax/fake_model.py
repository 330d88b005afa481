"""A language model whose output can be worked out by hand, and a checkpoint around it.

The next token depends on every token before it and on nothing else, through the cache: a wrong
slot, position or length changes the text. Its one MoE layer says that each live row used
``topk`` experts, and half as many where a policy other than plain top-k is on in decode.
"""

from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from lynx_jax.loading import LoadedModel
from lynx_jax.models.moe import LayerRouting
from lynx_jax.policies import Policy, TopK
from lynx_jax.routing import Phase, Routing
from lynx_jax.tokenizer import Tokenizer

VOCAB = 61
EXPERTS_PER_ROW = 4
NUM_EXPERTS = 64


class FakeModel(nnx.Module):
    """next = (sum of (place + 1) * token over all tokens so far + shift) modulo the vocabulary."""

    def __init__(self, vocab: int = VOCAB) -> None:
        self.vocab = vocab
        self.shift = nnx.Param(jnp.array(7, jnp.int32))

    def forward(
        self,
        tokens: jax.Array,
        positions: jax.Array,
        live: jax.Array,
        cache: jax.Array | None,
        *,
        phase: Phase,
        policy: Policy,
    ) -> tuple[jax.Array, jax.Array, tuple[LayerRouting, ...]]:
        rows = jnp.arange(tokens.shape[0])
        if phase is Phase.PREFILL:
            cache = jnp.where(live, tokens, 0)[..., None]
            sums = jnp.cumsum(cache[..., 0] * (positions + 1), axis=1)
        else:
            cache = cache.at[rows, positions[:, 0], 0].set(tokens[:, 0])
            places = jnp.arange(cache.shape[1])
            seen = places <= positions
            sums = jnp.sum(jnp.where(seen, cache[..., 0] * (places + 1), 0), axis=1, keepdims=True)
        hidden = ((sums + self.shift[...]) % self.vocab)[..., None].astype(jnp.float32)
        return hidden, cache, (_routing(live.reshape(-1), phase, policy),)

    def logits(self, hidden: jax.Array) -> jax.Array:
        """The next token first, then the others by distance."""
        return -jnp.abs(jnp.arange(self.vocab) - hidden)

    def cache_bytes_per_token(self) -> int:
        return 4

    def init_cache(self, rows: int, entries: int) -> jax.Array:
        return jnp.zeros((rows, entries, 1), jnp.int32)


def _routing(live: jax.Array, phase: Phase, policy: Policy) -> LayerRouting:
    used = EXPERTS_PER_ROW * jnp.sum(live, dtype=jnp.int32)
    halved = phase is Phase.DECODE and policy != TopK()
    empty = jnp.zeros((live.shape[0], EXPERTS_PER_ROW))
    return LayerRouting(
        router_logits=jnp.zeros((live.shape[0], 1, NUM_EXPERTS)),
        routing=Routing(
            ids=empty.astype(jnp.int32),
            weights=empty,
            live=live,
            active=jnp.zeros(NUM_EXPERTS, jnp.int32),
            num_active=used // 2 if halved else used,
            num_active_topk=used,
        ),
    )


def expected_text(prompt: list[int], count: int, eos: frozenset[int] = frozenset()) -> list[int]:
    """What ``FakeModel`` generates greedily."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + count:
        places = np.arange(1, len(tokens) + 1)
        tokens.append(int((np.array(tokens) * places).sum() + 7) % VOCAB)
        if tokens[-1] in eos:
            break
    return tokens[len(prompt) :]


def fake_checkpoint(tokenizer: Tokenizer, context: int = 64) -> LoadedModel:
    """The fake model as ``load`` would return it, for a tokenizer of any size."""
    vocab = max(tokenizer._backend.get_vocab().values()) + 1
    config = SimpleNamespace(
        model_type="fake",
        vocab_size=vocab,
        max_position_embeddings=context,
        num_experts=NUM_EXPERTS,
        num_experts_per_tok=EXPERTS_PER_ROW,
    )
    return LoadedModel(
        model=FakeModel(vocab),
        config=config,
        tokenizer=tokenizer,
        eos_token_ids=tokenizer.eos_token_ids,
        path=Path("fake"),
        backend_name="fake",
    )
