"""What the configs of Qwen2-MoE and Qwen3-MoE share."""

import dataclasses

from lynx_jax.models.config import DecoderConfig
from lynx_jax.models.fields import require
from lynx_jax.routers import Router


@dataclasses.dataclass(frozen=True, kw_only=True)
class QwenMoeConfig(DecoderConfig):
    """Fields of both families' config.json.

    Attributes:
      moe_intermediate_size: width F of one expert.
      norm_topk_prob: divide the k weights by their sum.
      intermediate_size: hidden width of a dense layer.
      decoder_sparse_step: every so many layers one is a mixture.
      mlp_only_layers: indices of layers that are dense whatever the step says.
      use_sliding_window: whether sliding_window is in force.
    """

    moe_intermediate_size: int
    norm_topk_prob: bool
    intermediate_size: int = 0
    decoder_sparse_step: int = 1
    mlp_only_layers: tuple[int, ...] = ()
    use_sliding_window: bool = False

    def __post_init__(self) -> None:
        if not self.use_sliding_window:
            object.__setattr__(self, "sliding_window", None)

    def check(self) -> None:
        super().check()
        require(
            self.moe_intermediate_size >= 1,
            "moe_intermediate_size to be at least 1",
            self.moe_intermediate_size,
        )
        step = self.decoder_sparse_step
        require(step >= 1, "decoder_sparse_step to be at least 1", step)
        dense = not all(map(self.is_sparse, range(self.num_hidden_layers)))
        require(
            self.intermediate_size >= 1 or not dense,
            "intermediate_size of at least 1, for the dense layers",
            self.intermediate_size,
        )

    def is_sparse(self, layer: int) -> bool:
        """Whether the layer of this index is a mixture."""
        return layer not in self.mlp_only_layers and (layer + 1) % self.decoder_sparse_step == 0

    @property
    def router(self) -> Router:
        """Scores and weight rule of every mixture."""
        return Router("softmax", "renormalize" if self.norm_topk_prob else "keep_sum")
