"""Rows of a family's weight table: where each parameter stands in a Hugging Face checkpoint.

Names hold ``{i}`` for the layer and ``{e}`` for the expert. A row serves every layer that has its
target, so a family with dense and sparse layers lists both kinds. Which of several stored forms a
checkpoint has is decided by the names in it; only an ``ExpertStack`` of ``Axes.EITHER`` asks the
shape. Names are those of the plain form, without the marks of a quantised one.
"""

import dataclasses
import enum
import functools
import re
from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True)
class Weight:
    """A parameter that stands in one stored tensor of the same form.

    Attributes:
      target: the parameter's path in the model.
      sources: names it may have in a checkpoint; exactly one of them must be there.
    """

    target: str
    sources: tuple[str, ...]


class Axes(enum.Enum):
    """Order of the axes of a stored tensor of all experts, behind the expert's."""

    OUT_IN = "outputs, inputs"  # as the model has them
    IN_OUT = "inputs, outputs"
    EITHER = "either"  # by shape; refused where both fit


@dataclass(frozen=True)
class ExpertStack:
    """A parameter of all experts of a layer: weights [N, outputs, inputs] or biases [N, outputs].

    Attributes:
      target: the parameter's path in the model.
      fused: name of the stored tensor of all experts.
      per_expert: names of the tensors that make up one expert's rows, in their order; none where
        the family has no such form.
      axes: order of the axes of ``fused``, where it is weights.
      interleaved: outputs of ``fused`` are gate and up in turn; the model has all gates first.
    """

    target: str
    fused: str
    per_expert: tuple[str, ...] = ()
    axes: Axes = Axes.OUT_IN
    interleaved: bool = False


type Row = Weight | ExpertStack


@dataclass(frozen=True)
class Prefix:
    """What stands before names where a decoder is saved as a part of a larger model.

    Attributes:
      decoder: instead of ``model.``.
      head: before ``lm_head.``.
    """

    decoder: str = "model."
    head: str = ""

    def apply(self, name: str) -> str:
        """A table's name as such a checkpoint has it."""
        if name.startswith("lm_head."):
            return self.head + name
        return self.decoder + name.removeprefix("model.")


@dataclass(frozen=True)
class WeightTable:
    """Everything that a family's checkpoints may hold.

    Attributes:
      rows: one for each kind of parameter.
      output_head: name of the stored output head; where the model ties it to the embedding, a copy
        may be stored all the same.
      embedding: name of the stored embedding.
      ignored: names that old checkpoints hold and no model reads.
      prefixes: forms of all names; a checkpoint has the one under which its embedding stands.
      skipped: how names of parts begin that text generation does without, such as a vision tower.
      skipped_layer: name of a tensor that only layers of multi-token prediction hold; such a layer
        is skipped as a whole.
    """

    rows: tuple[Row, ...]
    output_head: str = "lm_head.weight"
    embedding: str = "model.embed_tokens.weight"
    ignored: tuple[str, ...] = ("model.layers.{i}.self_attn.rotary_emb.inv_freq",)
    prefixes: tuple[Prefix, ...] = (Prefix(),)
    skipped: tuple[str, ...] = ()
    skipped_layer: str | None = None

    def find(self, path: str) -> tuple[Row, str]:
        """The row of a parameter's path, and the layer index in it ("" if it is in no layer)."""
        for row in self.rows:
            match = _pattern(row.target).fullmatch(path)
            if match:
                return row, match.groupdict().get("i", "")
        raise LookupError(f"the weight table has no row for parameter {path}")

    def is_ignored(self, name: str) -> bool:
        """Whether a stored tensor may be left unread."""
        return any(_pattern(pattern).fullmatch(name) for pattern in self.ignored)

    def skipped_names(self, names: Iterable[str]) -> list[str]:
        """Those of a checkpoint's names that belong to a skipped part or layer."""
        names = list(names)
        beginnings = self.skipped
        if self.skipped_layer is not None:
            marks = filter(_pattern(self.skipped_layer).fullmatch, names)
            own = len(self.skipped_layer.partition("{i}")[2]) - 1  # all behind "layers.61."
            beginnings += tuple(mark[:-own] for mark in marks)
        return [name for name in names if name.startswith(beginnings)]

    def named_as_in(self, names: Container[str]) -> Self:
        """The table with the prefix that a checkpoint of these names has."""
        found = (p for p in self.prefixes if p.apply(self.embedding) in names)
        prefix = next(found, self.prefixes[0])
        return dataclasses.replace(
            self,
            rows=tuple(_prefixed(row, prefix) for row in self.rows),
            output_head=prefix.apply(self.output_head),
            embedding=prefix.apply(self.embedding),
            ignored=tuple(map(prefix.apply, self.ignored)),
            skipped_layer=None if self.skipped_layer is None else prefix.apply(self.skipped_layer),
        )


def _prefixed(row: Row, prefix: Prefix) -> Row:
    if isinstance(row, Weight):
        return dataclasses.replace(row, sources=tuple(map(prefix.apply, row.sources)))
    per_expert = tuple(map(prefix.apply, row.per_expert))
    return dataclasses.replace(row, fused=prefix.apply(row.fused), per_expert=per_expert)


def linear(target: str, *sources: str) -> Weight:
    """Row of a projection's weight; names without ``.weight``."""
    return Weight(f"{target}.weight", tuple(f"{s}.weight" for s in sources))


def bias(target: str, source: str) -> Weight:
    """Row of a projection's bias; names without ``.bias``."""
    return Weight(f"{target}.bias", (f"{source}.bias",))


def norm(target: str, source: str) -> Weight:
    """Row of a norm's scale; names without ``.scale`` and ``.weight``."""
    return Weight(f"{target}.scale", (f"{source}.weight",))


def mlp_rows(target: str, source: str) -> tuple[Row, ...]:
    """Rows of a dense SwiGLU layer; the paths of its module."""
    names = ("gate_proj", "up_proj", "down_proj")
    return tuple(linear(f"{target}.{name}", f"{source}.{name}") for name in names)


# Names that all decoders of the Llama line share.
DECODER_ROWS: tuple[Row, ...] = (
    Weight("embed_tokens.embedding", ("model.embed_tokens.weight",)),
    norm("layers.{i}.input_layernorm", "model.layers.{i}.input_layernorm"),
    linear("layers.{i}.self_attn.q_proj", "model.layers.{i}.self_attn.q_proj"),
    linear("layers.{i}.self_attn.k_proj", "model.layers.{i}.self_attn.k_proj"),
    linear("layers.{i}.self_attn.v_proj", "model.layers.{i}.self_attn.v_proj"),
    linear("layers.{i}.self_attn.o_proj", "model.layers.{i}.self_attn.o_proj"),
    norm("layers.{i}.post_attention_layernorm", "model.layers.{i}.post_attention_layernorm"),
    norm("norm", "model.norm"),
    linear("lm_head", "lm_head"),
)

# Router and experts of a mixture in the layout that Qwen, OLMoE and DeepSeek are published in.
MIXTURE_ROWS: tuple[Row, ...] = (
    linear("layers.{i}.mlp.gate", "model.layers.{i}.mlp.gate"),
    ExpertStack(
        "layers.{i}.mlp.experts.gate_up_proj",
        fused="model.layers.{i}.mlp.experts.gate_up_proj",
        per_expert=(
            "model.layers.{i}.mlp.experts.{e}.gate_proj.weight",
            "model.layers.{i}.mlp.experts.{e}.up_proj.weight",
        ),
    ),
    ExpertStack(
        "layers.{i}.mlp.experts.down_proj",
        fused="model.layers.{i}.mlp.experts.down_proj",
        per_expert=("model.layers.{i}.mlp.experts.{e}.down_proj.weight",),
    ),
)


@functools.cache
def _pattern(template: str) -> re.Pattern[str]:
    return re.compile(re.escape(template).replace(re.escape("{i}"), r"(?P<i>\d+)"))
