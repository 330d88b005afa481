"""Reading config.json, in the field names of both transformers 4 and 5."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Self

from lynx_jax.models.fields import checked, read_fields, require
from lynx_jax.models.rope import Rope, read_rope


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """Fields that every family of decoder shares, under their Hugging Face names.

    Attributes:
      model_type: the family's name in config.json.
      vocab_size: rows of the embedding.
      hidden_size: width D of the residual stream.
      num_hidden_layers: decoder layers.
      num_attention_heads: query heads.
      num_key_value_heads: key and value heads, a divisor of the query heads.
      head_dim: width of one head.
      max_position_embeddings: longest sequence; with longrope at most the original context.
      rms_norm_eps: added to the mean square in every RMSNorm.
      rope: the rotary position embedding.
      sliding_window: keys further back than this are not seen; None for full attention.
      tie_word_embeddings: the output head is the embedding.
      num_experts: experts N of one MoE layer.
      num_experts_per_tok: experts k that a token uses.
      hidden_act: activation of the feed-forward layers; only ``silu`` is implemented.
    """

    # Names that a family's config.json may use for a field, where they differ; published one first.
    hub_names: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    model_type: str
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope: Rope
    sliding_window: int | None
    tie_word_embeddings: bool
    num_experts: int
    num_experts_per_tok: int
    hidden_act: str = "silu"

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Self:
        """The config that config.json's content describes.

        Raises:
          InputError: a needed field is missing, of the wrong type, or not supported.
        """
        raw = text_part(raw)
        where = f"config.json of model_type {raw.get('model_type')!r}"
        known = _normalise(raw)
        _refuse_other_code(known)
        _refuse_other_routing(cls, known)
        values = read_fields(cls, known, where=where, hub_names=cls.hub_names)
        rope: Rope = values["rope"]
        rope.check()
        longest = rope.longest
        if longest is not None:
            values["max_position_embeddings"] = min(values["max_position_embeddings"], longest)
        config = cls(**values)
        config.check()
        return config

    def check(self) -> None:
        """Raise ``InputError`` if fields contradict one another."""
        for name in _POSITIVE:
            value = getattr(self, name)
            require(value >= 1, f"{name} to be at least 1", value)
            require(value < 2**31, f"{name} below 2147483648", value)
        require(
            self.num_attention_heads % self.num_key_value_heads == 0,
            f"num_attention_heads to be a multiple of num_key_value_heads "
            f"({self.num_key_value_heads})",
            self.num_attention_heads,
        )
        require(self.head_dim % 2 == 0, "an even head_dim", self.head_dim)
        require(
            self.num_experts_per_tok <= self.num_experts,
            f"num_experts_per_tok from 1 to the layer's {self.num_experts} experts",
            self.num_experts_per_tok,
        )
        eps = self.rms_norm_eps
        require(0 < eps < math.inf, "a finite rms_norm_eps above 0", eps)
        window = self.sliding_window
        require(window is None or window >= 1, "sliding_window null or at least 1", window)
        require(self.hidden_act == "silu", "hidden_act 'silu'", repr(self.hidden_act))


_POSITIVE = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "num_experts",
    "num_experts_per_tok",
)

# Routing that only some families have, at the values that leave plain top-k as it is.
_PLAIN_ROUTING = {
    "scoring_func": "softmax",
    "topk_method": "greedy",
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 1.0,
}


def _refuse_other_code(known: Mapping[str, Any]) -> None:
    """SlimMoE models have the ``model_type`` of Phi-3.5-MoE, and code of their own in their folder.

    Raises:
      InputError: this is one.
    """
    code = known.get("auto_map")
    other = [name for name in _texts(code) if "slimmoe" in name.lower()]
    require(not other, "auto_map of a supported architecture", ", ".join(other))


def _texts(code: object) -> Iterator[str]:
    """The names in an ``auto_map``, which gives one or several to each class."""
    if isinstance(code, str):
        yield code
    elif isinstance(code, Mapping | list):
        for part in code.values() if isinstance(code, Mapping) else code:
            yield from _texts(part)


def _refuse_other_routing(cls: type, known: Mapping[str, Any]) -> None:
    """Raise ``InputError`` for a rule of routing that the family does not have."""
    own = {field.name for field in dataclasses.fields(cls)}
    for name, plain in _PLAIN_ROUTING.items():
        given = known.get(name, plain)
        require(
            name in own or given == plain,
            f"no {name} but {plain!r} for {known.get('model_type')}",
            repr(given),
        )


def text_part(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """What config.json says of the decoder: ``text_config`` of a multimodal model, else all of it.

    Raises:
      InputError: ``text_config`` is not an object.
    """
    return checked("text_config", dict, raw["text_config"]) if "text_config" in raw else raw


def _normalise(raw: Mapping[str, Any]) -> dict[str, Any]:
    """config.json with the derived and renamed fields of all versions in one form."""
    known = {name: value for name, value in raw.items() if value is not None}
    known["rope"] = read_rope(known)
    known.setdefault("sliding_window", None)
    known.setdefault("tie_word_embeddings", False)
    width, heads = known.get("hidden_size"), known.get("num_attention_heads")
    if "head_dim" not in known and type(width) is int and type(heads) is int and heads >= 1:
        known["head_dim"] = width // heads
    return known
