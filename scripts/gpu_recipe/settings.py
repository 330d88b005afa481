"""What a run checks and times. Tests run the same sections with small settings, interpreted."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from compile_recipe.routing_cases import LAYERS, Layer
from compile_recipe.step_cases import QWEN3_30B
from jax.experimental.pallas import mosaic_gpu as plgpu

from lynx_jax.backends import LoopBackend
from lynx_jax.mosaic_backend import MosaicBackend
from lynx_jax.pallas_kernels.expert_shapes import FAMILIES, ExpertShape


class Family(NamedTuple):
    """A published model's MoE layer: its router and its experts."""

    router: Layer
    experts: ExpertShape


# In the order in which they are run, while time is left.
_ROUTERS = {
    "Qwen3-30B-A3B": "Qwen3-30B, 235B",
    "Mixtral-8x7B": "Mixtral-8x7B",
    "DeepSeek-V2-Lite": "DeepSeek-V2-Lite",
    "DeepSeek-V3": "DeepSeek-V3",
    "Llama-4-Maverick": "Llama-4-Maverick",
    "gpt-oss-120b": "gpt-oss-120b",
    "DeepSeek-V2": "DeepSeek-V2",
    "Qwen2-57B-A14B": "Qwen2-57B, OLMoE",
    "Llama-4-Scout": "Llama-4-Scout",
    "gpt-oss-20b": "gpt-oss-20b",
    "Qwen3-235B-A22B": "Qwen3-30B, 235B",
    "OLMoE-1B-7B": "Qwen2-57B, OLMoE",
}


def _families() -> dict[str, Family]:
    return {name: Family(LAYERS[router], FAMILIES[name]) for name, router in _ROUTERS.items()}


@dataclass(frozen=True)
class Settings:
    """Of a run; the defaults are those of a GPU.

    Attributes:
      device: family, by which tiles are looked up.
      interpret: kernels are interpreted on CPU; nothing such a run times means anything.
      families: of the checks and of routing's times.
      batches: B of those; the first is the one that layers are timed at, too.
      many: B of the checks of large batches, or None to leave them out.
      many_families: families of those.
      modes: of the routing kernel in checks; the first at every family and batch, the second at
        every family if time is left in the end.
      measured: families of the experts' times.
      active: distinct experts that those are timed with, as far as a layer has them.
      steps: of a timed program.
      repeats: a time is the median of so many.
      seconds: that each takes, about.
      copied: bytes of the copy that gives the device's bandwidth.
      poisoned: bytes of memory that is filled with NaN before a check.
      model: config.json of the model whose decode steps are timed.
      decode_batches: B of those.
      policies: of those; B = 1 runs the first alone.
      context: tokens before the first timed step.
      decode_steps: a time is that of so many.
    """

    device: str = "H200"
    interpret: bool = False
    families: Mapping[str, Family] = field(default_factory=_families)
    batches: tuple[int, ...] = (16, 8, 32, 1, 64)
    many: int | None = 128
    many_families: tuple[str, ...] = (
        "Qwen3-30B-A3B",
        "DeepSeek-V3",
        "Llama-4-Scout",
        "gpt-oss-120b",
    )
    modes: tuple[str, ...] = ("demand", "lynx", "off", "oea", "xshare")
    measured: tuple[str, ...] = ("Qwen3-30B-A3B", "Mixtral-8x7B", "DeepSeek-V2-Lite")
    active: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 16, 24, 32, 48, 64, 96, 128)
    steps: int = 16
    repeats: int = 7
    seconds: float = 0.02
    copied: int = 2**31
    poisoned: int = 2**33
    model: Mapping[str, Any] = field(default_factory=lambda: QWEN3_30B | {"num_hidden_layers": 48})
    decode_batches: tuple[int, ...] = (16, 1, 8, 32)
    policies: tuple[str, ...] = (
        "off",
        "demand",
        "lynx:alpha=3,beta=4",
        "lynx:alpha=3,beta=2",
        "oea:k0=4",
        "oea:k0=2",
    )
    context: int = 512
    decode_steps: int = 30

    @property
    def mosaic(self) -> MosaicBackend:
        """The kernels, and grouped products for larger batches."""
        return MosaicBackend(self.device)

    @property
    def loop(self) -> LoopBackend:
        """XLA's loop over the experts in use."""
        return LoopBackend(split=False)

    @contextlib.contextmanager
    def kernels(self) -> Iterator[None]:
        """Where programs are traced."""
        with plgpu.force_gpu_interpret_mode() if self.interpret else contextlib.nullcontext():
            yield
