"""Rotary position embedding (arXiv 2104.09864)."""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from lynx_jax.errors import InputError
from lynx_jax.models.fields import checked, lacks, read_fields, require
from lynx_jax.models.rope_scaling import SCALINGS, LongRopeScaling, Scaling


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding of one model; static under ``jax.jit``.

    Attributes:
      theta: base of the frequencies.
      scaling: how they are stretched; None where they are not.
    """

    theta: float
    scaling: Scaling | None = None

    @property
    def magnitude(self) -> float:
        """What cosine and sine are multiplied by."""
        return 1.0 if self.scaling is None else self.scaling.magnitude

    @property
    def longest(self) -> int | None:
        """The longest sequence that it can place; None where there is no limit."""
        if isinstance(self.scaling, LongRopeScaling):
            return self.scaling.original_max_position_embeddings
        return None

    @functools.cache  # noqa: B019 - ropes are few, and live as long as their models
    def frequencies(self, width: int) -> np.ndarray:
        """float32 [width / 2], radians a token, of a head with ``width`` rotated values."""
        plain = 1.0 / self.theta ** (np.arange(0, width, 2, dtype=np.float32) / width)
        scaled = plain if self.scaling is None else self.scaling.scaled(plain, self.theta)
        return scaled.astype(np.float32)

    def check(self) -> None:
        """Raise ``InputError`` if fields contradict one another."""
        require(0 < self.theta < math.inf, "a finite rope_theta above 0", self.theta)
        if self.scaling is not None:
            self.scaling.check()


def read_rope(known: Mapping[str, Any]) -> Rope:
    """The rope of a config.json without nulls, in the fields of transformers 4 or 5.

    Version 5 keeps all in ``rope_parameters``, version 4 has ``rope_theta`` beside
    ``rope_scaling``.

    Raises:
      InputError: the base is missing, the type is not known, or what it needs is not there.
    """
    given = {
        name: _without_nulls(name, known[name])
        for name in ("rope_parameters", "rope_scaling")
        if name in known
    }
    kinds = {name: _kind(raw) for name, raw in given.items()}
    require(len(set(kinds.values())) <= 1, "one rope type", " and ".join(map(repr, kinds.values())))
    name, raw = next(iter(given.items()), ("rope_parameters", {}))
    theta = given.get("rope_parameters", {}).get("rope_theta", known.get("rope_theta"))
    if theta is None:
        lacks(f"config.json of model_type {known.get('model_type')!r}", "rope_theta")
    theta = float(checked("rope_theta", float, theta))
    kind = kinds.get(name, "default")
    if kind == "default":
        return Rope(theta)
    if kind not in SCALINGS:
        raise InputError(
            f"config.json: rope type {kind!r} in {name} is not supported, expected one of "
            f"default, {', '.join(SCALINGS)}"
        )
    original = "original_max_position_embeddings"
    if original in known:
        raw = {original: known[original], **raw}
    scaling = SCALINGS[kind]
    return Rope(theta, scaling(**read_fields(scaling, raw, where=f"config.json: {name}")))


def rotate(
    x: Float[Array, "rows tokens heads width"],
    positions: Int[Array, "rows tokens"],
    rope: Rope,
    *,
    interleaved: bool = False,
) -> Float[Array, "rows tokens heads width"]:
    """Rotary position embedding, computed in float32.

    Args:
      x: queries or keys.
      positions: int32 place of each token in its sequence.
      rope: gives the frequencies.
      interleaved: pairs are neighbours (2j, 2j + 1), as in DeepSeek and Llama-4; else half the
        width apart.
    """
    angles = positions[:, :, None, None].astype(jnp.float32) * rope.frequencies(x.shape[-1])
    cos, sin = rope.magnitude * jnp.cos(angles), rope.magnitude * jnp.sin(angles)
    x32 = x.astype(jnp.float32)
    if interleaved:
        first, second = x32[..., 0::2], x32[..., 1::2]
    else:
        first, second = jnp.split(x32, 2, axis=-1)
    turned = (first * cos - second * sin, second * cos + first * sin)
    if interleaved:
        return jnp.stack(turned, axis=-1).reshape(x.shape).astype(x.dtype)
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)


def _without_nulls(name: str, raw: Any) -> dict[str, Any]:
    raw = checked(name, dict, raw)
    part = raw.get("partial_rotary_factor")
    require(part in (None, 1, 1.0), "partial_rotary_factor 1", part)
    return {key: value for key, value in raw.items() if value is not None}


def _kind(raw: Mapping[str, Any]) -> str:
    return str(raw.get("rope_type", raw.get("type", "default")))
