"""Scalings of the rotary position embedding to contexts longer than the original one."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from lynx_jax.models.fields import require


class Scaling(Protocol):
    """Stretches the rotary frequencies over a context longer than the original one."""

    @property
    def magnitude(self) -> float:
        """What cosine and sine are multiplied by."""
        ...

    def scaled(self, plain: np.ndarray, theta: float) -> np.ndarray:
        """Frequencies [pairs] in radians a token, made of the plain ones."""
        ...

    def check(self) -> None:
        """Raise ``InputError`` if fields contradict one another."""
        ...


@dataclass(frozen=True)
class LinearScaling:
    """All frequencies divided by ``factor`` (arXiv 2306.15595)."""

    factor: float
    magnitude = 1.0

    def scaled(self, plain: np.ndarray, theta: float) -> np.ndarray:
        return plain / self.factor

    def check(self) -> None:
        _check_factor(self.factor)


@dataclass(frozen=True)
class Llama3Scaling:
    """Long waves divided by ``factor``, short ones kept, and a blend between them (Llama 3.1).

    A wave is long beyond ``original / low_freq_factor`` tokens and short below
    ``original / high_freq_factor``. Llama-4-Scout has both factors equal: then there is no between.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int
    magnitude = 1.0

    def scaled(self, plain: np.ndarray, theta: float) -> np.ndarray:
        turns = self.original_max_position_embeddings * plain / (2 * math.pi)
        low, high = self.low_freq_factor, self.high_freq_factor
        if low == high:
            kept = (turns >= low).astype(np.float32)
        else:
            kept = np.clip((turns - low) / (high - low), 0, 1)
        return _blend(plain, self.factor, kept)

    def check(self) -> None:
        _check_factor(self.factor)
        _check_original(self.original_max_position_embeddings)
        low, high = self.low_freq_factor, self.high_freq_factor
        require(0 < low <= high, f"low_freq_factor above 0 and up to high_freq_factor {high}", low)


@dataclass(frozen=True)
class YarnScaling:
    """Yarn (arXiv 2309.00071): waves that turn often within the original context are kept, those
    that turn seldom divided by ``factor``, with a ramp over the pairs in between.

    Attributes:
      factor: how much longer the context is.
      original_max_position_embeddings: the context before.
      beta_fast, beta_slow: turns within the original context where the ramp starts and ends.
      truncate: the ramp's ends are rounded outwards to whole pairs.
      mscale, mscale_all_dim: DeepSeek's magnitudes of cosine and sine, and of the softmax.
      attention_factor: magnitude of cosine and sine, in place of the one derived.
    """

    factor: float
    original_max_position_embeddings: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    attention_factor: float | None = None

    @property
    def magnitude(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return self._temperature(self.mscale) / self._temperature(self.mscale_all_dim)
        return self._temperature(1.0)

    @property
    def softmax_factor(self) -> float:
        """What DeepSeek's attention multiplies its scores by, beside ``head_dim ** -0.5``."""
        return self._temperature(self.mscale_all_dim) ** 2

    def scaled(self, plain: np.ndarray, theta: float) -> np.ndarray:
        pairs = len(plain)
        low = self._pair(self.beta_fast, theta, pairs)
        high = self._pair(self.beta_slow, theta, pairs)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, 2 * pairs - 1)
        width = high - low or 0.001
        kept = 1 - np.clip((np.arange(pairs, dtype=np.float32) - low) / width, 0, 1)
        return _blend(plain, self.factor, kept)

    def check(self) -> None:
        _check_factor(self.factor)
        _check_original(self.original_max_position_embeddings)
        fast, slow = self.beta_fast, self.beta_slow
        require(0 < slow < fast, f"beta_slow above 0 and below beta_fast {fast}", slow)
        for name in ("mscale", "mscale_all_dim"):
            require(0 <= getattr(self, name) < math.inf, f"{name} from 0", getattr(self, name))
        given = self.attention_factor
        require(given is None or 0 < given < math.inf, "an attention_factor above 0", given)

    def _pair(self, turns: float, theta: float, pairs: int) -> float:
        """The pair, as a fraction, that turns this often within the original context."""
        wave = self.original_max_position_embeddings / (turns * 2 * math.pi)
        return pairs * math.log(wave) / math.log(theta)

    def _temperature(self, scale: float) -> float:
        return 0.1 * scale * math.log(self.factor) + 1.0


@dataclass(frozen=True)
class LongRopeScaling:
    """Each frequency divided by a factor of its own (LongRoPE, arXiv 2402.13753).

    There are two sets of factors, for sequences up to the original context and for longer ones,
    and all keys of a sequence change with the set. A cache holds keys of one set, so only the one
    for the original context is implemented, and no sequence may be longer.

    Attributes:
      short_factor: one for each rotary pair.
      short_mscale: what cosine and sine are multiplied by.
      original_max_position_embeddings: the longest sequence.
    """

    short_factor: tuple[float, ...]
    short_mscale: float
    original_max_position_embeddings: int

    @property
    def magnitude(self) -> float:
        return self.short_mscale

    def scaled(self, plain: np.ndarray, theta: float) -> np.ndarray:
        return plain / np.asarray(self.short_factor, np.float32)

    def check(self) -> None:
        factors, scale = self.short_factor, self.short_mscale
        positive = all(0 < factor < math.inf for factor in factors)
        require(positive, "every short_factor finite and above 0", list(factors))
        require(0 < scale < math.inf, "a finite short_mscale above 0", scale)
        _check_original(self.original_max_position_embeddings)


SCALINGS: Mapping[str, type[LinearScaling | Llama3Scaling | YarnScaling | LongRopeScaling]] = {
    "linear": LinearScaling,
    "llama3": Llama3Scaling,
    "yarn": YarnScaling,
    "longrope": LongRopeScaling,
}


def _blend(plain: np.ndarray, factor: float, kept: np.ndarray) -> np.ndarray:
    """Frequencies of which a share is kept and the rest divided by the factor."""
    blended: np.ndarray = (1 - kept) * plain / factor + kept * plain
    return blended


def _check_factor(factor: float) -> None:
    require(1 <= factor < math.inf, "a rope factor of at least 1", factor)


def _check_original(tokens: int) -> None:
    require(tokens >= 1, "original_max_position_embeddings of at least 1", tokens)
