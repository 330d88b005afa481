"""Rows of a family's weight table: where each parameter stands in a Hugging Face checkpoint.

Names hold ``{i}`` for the layer and ``{e}`` for the expert. A row serves every layer that has its
target, so a family with dense and sparse layers lists both kinds. Which of several stored forms a
checkpoint has is decided by the names in it, never by shapes.
"""

import functools
import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Weight:
    """A parameter that stands in one stored tensor of the same form.

    Attributes:
      target: the parameter's path in the model.
      sources: names it may have in a checkpoint; exactly one of them must be there.
    """

    target: str
    sources: tuple[str, ...]


@dataclass(frozen=True)
class ExpertStack:
    """A parameter [N, rows, columns] that holds all experts of a layer.

    Attributes:
      target: the parameter's path in the model.
      fused: name of the stored tensor that has this same form.
      per_expert: names of the tensors that make up one expert's rows, in their order.
    """

    target: str
    fused: str
    per_expert: tuple[str, ...]


type Row = Weight | ExpertStack


@dataclass(frozen=True)
class WeightTable:
    """Everything that a family's checkpoints may hold.

    Attributes:
      rows: one for each kind of parameter.
      output_head: name of the stored output head; where the model ties it to the embedding, a copy
        may be stored all the same.
      embedding: name of the stored embedding.
      ignored: names that old checkpoints hold and no model reads.
    """

    rows: tuple[Row, ...]
    output_head: str = "lm_head.weight"
    embedding: str = "model.embed_tokens.weight"
    ignored: tuple[str, ...] = ("model.layers.{i}.self_attn.rotary_emb.inv_freq",)

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


def linear(target: str, *sources: str) -> Weight:
    """Row of a projection's weight; names without ``.weight``."""
    return Weight(f"{target}.weight", tuple(f"{s}.weight" for s in sources))


def norm(target: str, source: str) -> Weight:
    """Row of a norm's scale; names without ``.scale`` and ``.weight``."""
    return Weight(f"{target}.scale", (f"{source}.weight",))


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


@functools.cache
def _pattern(template: str) -> re.Pattern[str]:
    return re.compile(re.escape(template).replace(re.escape("{i}"), r"(?P<i>\d+)"))
