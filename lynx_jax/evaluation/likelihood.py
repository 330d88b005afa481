"""Log-likelihoods of continuations: in one pass as prefill computes them, or as decode does."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from lynx_jax.evaluation.forced import ForcedBatch, ForcedDecoder
from lynx_jax.models.decoder import DecoderForCausalLM
from lynx_jax.policies import Policy

# Columns are padded to multiples of these, so that few programs are compiled.
_CONTEXT_STEP, _CONTINUATION_STEP = 64, 16

# Ids of a context, at least one, and of its continuation.
type Pair = tuple[Sequence[int], Sequence[int]]
# A continuation's log-likelihood in nats, and whether every token of it is the likeliest one.
type Score = tuple[float, bool]
# Scores up to so many pairs as rows of one batch.
type Scorer = Callable[[Sequence[Pair], int], list[Score]]


def prefill_scorer(model: DecoderForCausalLM) -> Scorer:
    """Scores with plain top-k routing; the pairs of a batch have nothing to do with one another."""

    def score(pairs: Sequence[Pair], rows: int) -> list[Score]:
        sequences = [(*context, *continuation) for context, continuation in pairs]
        width = _rounded(max(map(len, sequences)) - 1, _CONTEXT_STEP)
        ids, live = _rows(rows, width, [(0, sequence[:-1]) for sequence in sequences])
        targets, _ = _rows(rows, width, [(0, sequence[1:]) for sequence in sequences])
        found = _prefill(model, *map(jnp.asarray, (ids, live, targets)))
        starts = [len(context) - 1 for context, _ in pairs]
        return _sums(found, starts, pairs)

    return score


def decode_scorer(model: DecoderForCausalLM, policy: Policy) -> Scorer:
    """Scores as if each text were decoded from its context's last token on, beside the others.

    The pairs of a batch are the rows of one decode batch on which the policy acts. See
    ``lynx_jax.evaluation.forced``.
    """
    decoder = ForcedDecoder(model)

    def score(pairs: Sequence[Pair], rows: int) -> list[Score]:
        prompts = [context[:-1] for context, _ in pairs]
        first = _rounded(max(map(len, prompts)), _CONTEXT_STEP)
        steps = _rounded(max(len(continuation) for _, continuation in pairs), _CONTINUATION_STEP)
        decoded = [(0, (context[-1], *continuation[:-1])) for context, continuation in pairs]
        before = _rows(rows, first, [(first - len(prompt), prompt) for prompt in prompts])
        after = _rows(rows, steps, decoded)
        targets, _ = _rows(rows, steps, [(0, continuation) for _, continuation in pairs])
        tokens, live = (np.concatenate(both, axis=1) for both in zip(before, after, strict=True))
        hidden = decoder(ForcedBatch(tokens, live, first), policy).hidden
        return _sums(_compare(model, hidden, jnp.asarray(targets)), [0] * len(pairs), pairs)

    return score


def _rounded(n: int, step: int) -> int:
    return max(1, -(-n // step)) * step


def _rows(
    rows: int, width: int, placed: Sequence[tuple[int, Sequence[int]]]
) -> tuple[Int[np.ndarray, "rows width"], Bool[np.ndarray, "rows width"]]:
    """Ids, each row's from a column on, and where they stand."""
    ids, live = np.zeros((rows, width), np.int32), np.zeros((rows, width), bool)
    for row, (start, sequence) in enumerate(placed):
        ids[row, start : start + len(sequence)] = sequence
        live[row, start : start + len(sequence)] = True
    return ids, live


def _sums(found: tuple[Array, Array], starts: Sequence[int], pairs: Sequence[Pair]) -> list[Score]:
    scores, likeliest = map(np.asarray, found)
    return [
        (
            float(scores[row, start : start + len(continuation)].sum(dtype=np.float64)),
            bool(likeliest[row, start : start + len(continuation)].all()),
        )
        for row, (start, (_, continuation)) in enumerate(zip(starts, pairs, strict=True))
    ]


@nnx.jit
def _prefill(
    model: DecoderForCausalLM,
    ids: Int[Array, "rows tokens"],
    live: Bool[Array, "rows tokens"],
    targets: Int[Array, "rows tokens"],
) -> tuple[Float[Array, "rows tokens"], Bool[Array, "rows tokens"]]:
    return _of_targets(model(ids, live=live), targets)


@nnx.jit
def _compare(
    model: DecoderForCausalLM,
    hidden: Float[Array, "rows tokens width"],
    targets: Int[Array, "rows tokens"],
) -> tuple[Float[Array, "rows tokens"], Bool[Array, "rows tokens"]]:
    return _of_targets(model.logits(hidden), targets)


def _of_targets(
    logits: Float[Array, "rows tokens vocab"], targets: Int[Array, "rows tokens"]
) -> tuple[Float[Array, "rows tokens"], Bool[Array, "rows tokens"]]:
    """Log-probability of each target, and whether it is the likeliest token."""
    scores = jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], axis=-1)
    return scores[..., 0], jnp.argmax(logits, axis=-1) == targets
