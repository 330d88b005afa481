"""Shapes of the experts of published models, by which kernels are compiled, timed and tuned."""

from typing import NamedTuple

from lynx_jax.pallas_kernels.expert_form import SWIGLU, ExpertForm


class ExpertShape(NamedTuple):
    """The experts of a layer.

    Attributes:
      experts: N.
      k: experts a token uses.
      width: D.
      hidden: F.
      form: what an expert computes.
    """

    experts: int
    k: int
    width: int
    hidden: int
    form: ExpertForm = SWIGLU

    @property
    def biased(self) -> bool:
        """Whether experts have biases; those of gpt-oss do."""
        return self.form.activation == "clamped_swiglu"

    @property
    def expert_bytes(self) -> int:
        """Size of the matrices of one expert in bfloat16."""
        return 2 * 3 * self.width * self.hidden

    def slots(self, rows: int) -> int:
        """How many experts a batch can use at most."""
        return min(self.experts, rows * self.k)

    def expected_active(self, rows: int) -> int:
        """Distinct experts that a batch uses on average where every choice is equally likely."""
        return round(self.experts * (1 - (1 - self.k / self.experts) ** rows))


_GPT_OSS = ExpertForm("clamped_swiglu")
_LLAMA_4 = ExpertForm(scale_input=True)
FAMILIES = {
    "Mixtral-8x7B": ExpertShape(8, 2, 4096, 14336),
    "Qwen2-57B-A14B": ExpertShape(64, 8, 3584, 2560),
    "Qwen3-30B-A3B": ExpertShape(128, 8, 2048, 768),
    "Qwen3-235B-A22B": ExpertShape(128, 8, 4096, 1536),
    "DeepSeek-V2-Lite": ExpertShape(64, 6, 2048, 1408),
    "DeepSeek-V2": ExpertShape(160, 6, 5120, 1536),
    "DeepSeek-V3": ExpertShape(256, 8, 7168, 2048),
    "Llama-4-Scout": ExpertShape(16, 1, 5120, 8192, _LLAMA_4),
    "Llama-4-Maverick": ExpertShape(128, 1, 5120, 8192, _LLAMA_4),
    "OLMoE-1B-7B": ExpertShape(64, 8, 2048, 1024),
    "gpt-oss-20b": ExpertShape(32, 4, 2880, 2880, _GPT_OSS),
    "gpt-oss-120b": ExpertShape(128, 4, 2880, 2880, _GPT_OSS),
}
