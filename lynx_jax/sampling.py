"""The next token of every row of a batch, each by its own sampling parameters.

No step sorts the vocabulary. The filters are exact: top-k by ``lax.top_k`` where k is small, and
otherwise, like top-p, by a search for the threshold that goes through the bits of a float32 from
the highest to the lowest (32 masked sums). A row's result depends on its own logits and parameters
only, never on its batch mates.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, UInt

from lynx_jax.requests import SamplingParams

# lax.top_k of 16 rows of 152k logits on two CPU cores: 4 ms for 64, 12 ms for 1024, and 41 ms for
# the threshold search.
_WIDEST_TOP_K = 1024
_BLOCK = 512


@dataclass(frozen=True)
class SamplingFlags:
    """What the compiled program has to be able to do; static, so that it holds nothing else.

    Attributes:
      draw: some row has a temperature; without it every row takes its likeliest token.
      top_k: some row has a top-k.
      top_p: some row has a top-p below 1.
      min_p: some row has a min-p above 0.
      penalty: some row has a repetition penalty.
      width: tokens a row that are looked at, where every row that draws has a small top-k; 0 for
        the whole vocabulary.
    """

    draw: bool = False
    top_k: bool = False
    top_p: bool = False
    min_p: bool = False
    penalty: bool = False
    width: int = 0

    @classmethod
    def covering(cls, params: Iterable[SamplingParams]) -> "SamplingFlags":
        """The least that serves all of ``params``."""
        every = list(params)
        drawing = [p for p in every if p.temperature > 0]
        narrow = bool(drawing) and all(0 < p.top_k <= _WIDEST_TOP_K for p in drawing)
        widest = max((p.top_k for p in drawing), default=0)
        return cls(
            draw=bool(drawing),
            top_k=any(p.top_k > 0 for p in drawing),
            top_p=any(p.top_p < 1 for p in drawing),
            min_p=any(p.min_p > 0 for p in drawing),
            penalty=any(p.repetition_penalty != 1 for p in every),
            width=1 << (widest - 1).bit_length() if narrow else 0,
        )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SamplingRows:
    """Sampling parameters and state of every slot.

    Attributes:
      temperature, top_k, top_p, min_p, repetition_penalty, seed: as in ``SamplingParams``.
      step: tokens of the text sampled so far.
      seen: tokens that the prompt or the text holds; None in a program without penalty.
    """

    temperature: Float[Array, "*rows"]
    top_k: Int[Array, "*rows"]
    top_p: Float[Array, "*rows"]
    min_p: Float[Array, "*rows"]
    repetition_penalty: Float[Array, "*rows"]
    seed: UInt[Array, "*rows"]
    step: Int[Array, "*rows"]
    seen: Bool[Array, "*rows vocab"] | None


def sample(
    logits: Float[Array, "rows vocab"], rows: SamplingRows, flags: SamplingFlags
) -> Int[Array, " rows"]:
    """One int32 token id a row.

    Args:
      logits: float32.
      rows: parameters of each row.
      flags: static; must cover the rows' parameters.
    """
    if flags.penalty:
        logits = _penalise(logits, rows)
    likeliest = jnp.argmax(logits, axis=-1).astype(jnp.int32)
    if not flags.draw:
        return likeliest
    greedy = rows.temperature == 0
    scaled = logits / jnp.where(greedy, 1.0, rows.temperature)[:, None]
    ids = None
    if flags.width:
        scaled, ids = lax.top_k(scaled, min(flags.width, scaled.shape[-1]))
    drawn = _draw(_filtered_weights(scaled, rows, flags), _uniform(rows))
    if ids is not None:
        drawn = jnp.take_along_axis(ids, drawn[:, None], axis=-1)[:, 0]
    return jnp.where(greedy, likeliest, drawn.astype(jnp.int32))


def _penalise(logits: Float[Array, "rows vocab"], rows: SamplingRows) -> Float[Array, "rows vocab"]:
    """The repetition penalty of arXiv 1909.05858, once for each distinct token seen."""
    assert rows.seen is not None
    penalty = rows.repetition_penalty[:, None]
    penalised = jnp.where(logits > 0, logits / penalty, logits * penalty)
    return jnp.where(rows.seen, penalised, logits)


def _filtered_weights(
    scaled: Float[Array, "rows tokens"], rows: SamplingRows, flags: SamplingFlags
) -> Float[Array, "rows tokens"]:
    """exp(logit - highest) of the tokens that the filters leave, 0 for the others."""
    weights = jnp.exp(scaled - jnp.max(scaled, axis=-1, keepdims=True))
    if flags.top_k:
        weights = jnp.where(_in_top_k(scaled, rows.top_k, flags), weights, 0.0)
    if flags.top_p:
        weights = jnp.where(_in_top_p(weights, rows.top_p), weights, 0.0)
    if flags.min_p:
        weights = jnp.where(weights >= rows.min_p[:, None], weights, 0.0)
    return weights


def _in_top_k(
    scaled: Float[Array, "rows tokens"], top_k: Int[Array, " rows"], flags: SamplingFlags
) -> Bool[Array, "rows tokens"]:
    """Whether fewer than k tokens are likelier. Equals at the border: all stay, or, in a program
    with ``width``, those of lower id do.
    """
    size = scaled.shape[-1]
    k = jnp.where(top_k > 0, top_k, size)[:, None]
    if flags.width:
        return jnp.broadcast_to(jnp.arange(size) < k, scaled.shape)
    keys = _ordered_bits(scaled)

    def enough(threshold: UInt[Array, "rows 1"]) -> Bool[Array, "rows 1"]:
        return jnp.sum(keys > threshold, axis=-1, keepdims=True) >= k

    return keys > _largest(enough, scaled.shape[0])


def _in_top_p(
    weights: Float[Array, "rows tokens"], top_p: Float[Array, " rows"]
) -> Bool[Array, "rows tokens"]:
    """Whether likelier tokens have less than top-p of the mass together; equals all stay."""
    wanted = top_p[:, None] * jnp.sum(weights, axis=-1, keepdims=True)
    keys = lax.bitcast_convert_type(weights, jnp.uint32)

    def enough(threshold: UInt[Array, "rows 1"]) -> Bool[Array, "rows 1"]:
        above = jnp.where(keys > threshold, weights, 0.0)
        return jnp.sum(above, axis=-1, keepdims=True) >= wanted

    # Rounding of the sum must not cost a row without top-p its rarest tokens.
    return (keys > _largest(enough, weights.shape[0])) | (top_p[:, None] >= 1)


def _largest(
    enough: Callable[[UInt[Array, "rows 1"]], Bool[Array, "rows 1"]], rows: int
) -> UInt[Array, "rows 1"]:
    """The largest uint32 threshold above which there is enough; 0 if there never is.

    A token is kept if it lies above this threshold: without it the tokens above do not suffice.
    """

    def try_bit(step: Array, threshold: Array) -> Array:
        raised = threshold | (jnp.uint32(1 << 31) >> step.astype(jnp.uint32))
        return jnp.where(enough(raised), raised, threshold)

    threshold: Array = lax.fori_loop(0, 32, try_bit, jnp.zeros((rows, 1), jnp.uint32))
    return threshold


def _ordered_bits(x: Float[Array, "*shape"]) -> UInt[Array, "*shape"]:
    """Bits of float32 numbers as uint32 that are ordered as the numbers are."""
    bits = lax.bitcast_convert_type(x, jnp.uint32)
    sign = jnp.uint32(1 << 31)
    return jnp.where(bits & sign, ~bits, bits | sign)


def _uniform(rows: SamplingRows) -> Float[Array, " rows"]:
    """One number in [0, 1) a row, from its seed and step alone."""

    def one(seed: Array, step: Array) -> Array:
        return jax.random.uniform(jax.random.fold_in(jax.random.key(seed), step))

    return jax.vmap(one)(rows.seed, rows.step)


def _draw(
    weights: Float[Array, "rows tokens"], uniform: Float[Array, " rows"]
) -> Int[Array, " rows"]:
    """An index a row, each as likely as its weight.

    By the inverse of the cumulative sum, first over blocks and then within one: a single number a
    row is drawn, and no long sum is needed, which would round the rarest tokens away.
    """
    count, size = weights.shape
    blocks = -(-size // _BLOCK)
    padded = jnp.pad(weights, ((0, 0), (0, blocks * _BLOCK - size)))
    blocked = padded.reshape(count, blocks, _BLOCK)
    sums = jnp.sum(blocked, axis=-1)
    point = uniform * jnp.sum(sums, axis=-1)
    block, point = _invert(sums, point)
    within = jnp.take_along_axis(blocked, block[:, None, None], axis=1)[:, 0]
    index, _ = _invert(within, point)
    return block * _BLOCK + index


def _invert(
    weights: Float[Array, "rows n"], point: Float[Array, " rows"]
) -> tuple[Int[Array, " rows"], Float[Array, " rows"]]:
    """The entry with weight in which the cumulative sum passes ``point``, and how far into it."""
    cumulative = jnp.cumsum(weights, axis=-1)
    has_weight = weights > 0
    passes = has_weight & (cumulative > point[:, None])
    # Sums made in another order can end below the point: then it lies in the last entry.
    last = weights.shape[-1] - 1 - jnp.argmax(has_weight[:, ::-1], axis=-1)
    index = jnp.where(jnp.any(passes, axis=-1), jnp.argmax(passes, axis=-1), last)
    before = jnp.take_along_axis(cumulative - weights, index[:, None], axis=-1)[:, 0]
    return index, point - before
