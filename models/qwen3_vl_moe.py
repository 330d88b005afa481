"""Qwen3-VL-MoE, text part: the decoder is Qwen3-MoE's, inside a model that also sees pictures.

Text stands at equal places on all three axes of its rotary embedding, which then is the plain one.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

from lynx_jax.models.config import text_part
from lynx_jax.models.fields import require
from lynx_jax.models.qwen3_moe import WEIGHTS as QWEN3_MOE_WEIGHTS
from lynx_jax.models.qwen3_moe import Qwen3MoeConfig
from lynx_jax.models.weights import Axes, ExpertStack, Prefix


@dataclasses.dataclass(frozen=True, kw_only=True)
class Qwen3VLMoeConfig(Qwen3MoeConfig):
    """Fields of ``text_config`` in Qwen3-VL-MoE's config.json."""

    norm_topk_prob: bool = True

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Self:
        """The config that config.json's content describes; see ``DecoderConfig.from_dict``."""
        tied = raw.get("tie_word_embeddings", False)  # the head belongs to the whole model
        return super().from_dict({**text_part(raw), "tie_word_embeddings": tied})

    def check(self) -> None:
        super().check()
        require(self.norm_topk_prob, "norm_topk_prob true for qwen3_vl_moe", False)


# Published files hold experts as inputs by outputs; those that transformers 5 saves hold them as
# outputs by inputs, under the same names.
WEIGHTS = dataclasses.replace(
    QWEN3_MOE_WEIGHTS,
    rows=tuple(
        dataclasses.replace(row, axes=Axes.EITHER) if isinstance(row, ExpertStack) else row
        for row in QWEN3_MOE_WEIGHTS.rows
    ),
    prefixes=(Prefix("model.language_model."),),
    skipped=("model.visual.",),
)
