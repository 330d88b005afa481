"""What a run cost: times and experts read."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean

import numpy as np


@dataclass(frozen=True)
class Stats:
    """Summary of one run. Values that nothing was measured for are 0.

    Attributes:
      compile_seconds: tracing, compiling and one run of each program to warm up; not contained in
        the other times.
      prefill_seconds: all prompts, one after another, until the first token of each is there.
      prefill_tokens: prompt tokens.
      prefill_tokens_per_second: both together.
      decode_seconds: all decode steps. A step lasts from the end of the one before (or of the
        prefill before) until its tokens are on the host, work of the host in between included.
      decode_steps: steps in which at least one row ran.
      decode_tokens: tokens that they gave. First tokens come from prefill.
      decode_tokens_per_second: both together.
      tpot_ms_p50, tpot_ms_mean, tpot_ms_p99: milliseconds of one decode step, which is the time
        that every running text waits for its next token.
      mean_rows: running rows a decode step.
      experts_per_layer: distinct experts that a MoE layer read in a decode step, on average.
      topk_experts_per_layer: how many plain top-k would have read on the same router logits.
    """

    compile_seconds: float = 0.0
    prefill_seconds: float = 0.0
    prefill_tokens: int = 0
    prefill_tokens_per_second: float = 0.0
    decode_seconds: float = 0.0
    decode_steps: int = 0
    decode_tokens: int = 0
    decode_tokens_per_second: float = 0.0
    tpot_ms_p50: float = 0.0
    tpot_ms_mean: float = 0.0
    tpot_ms_p99: float = 0.0
    mean_rows: float = 0.0
    experts_per_layer: float = 0.0
    topk_experts_per_layer: float = 0.0

    def to_dict(self) -> dict[str, float]:
        """All fields by name."""
        return asdict(self)

    def __str__(self) -> str:
        saved = _ratio(self.topk_experts_per_layer, self.experts_per_layer)
        lines = {
            "compile": f"{self.compile_seconds:.2f} s",
            "prefill": (
                f"{self.prefill_seconds:.3f} s, {self.prefill_tokens} tokens, "
                f"{self.prefill_tokens_per_second:.0f} tokens/s"
            ),
            "decode": (
                f"{self.decode_seconds:.3f} s, {self.decode_tokens} tokens in "
                f"{self.decode_steps} steps of {self.mean_rows:.1f} rows, "
                f"{self.decode_tokens_per_second:.1f} tokens/s"
            ),
            "time per output token": (
                f"p50 {self.tpot_ms_p50:.2f} ms, mean {self.tpot_ms_mean:.2f} ms, "
                f"p99 {self.tpot_ms_p99:.2f} ms"
            ),
            "experts a layer and step": (
                f"{self.experts_per_layer:.1f}; plain top-k {self.topk_experts_per_layer:.1f} "
                f"({saved:.2f}x)"
            ),
        }
        return "\n".join(f"{name + ':':26}{value}" for name, value in lines.items())


@dataclass
class Recorder:
    """Collects measurements while an engine runs."""

    compile_seconds: float = 0.0
    prefill_seconds: float = 0.0
    prefill_tokens: int = 0
    _step_seconds: list[float] = field(default_factory=list)
    _rows: list[int] = field(default_factory=list)
    _experts: list[float] = field(default_factory=list)
    _topk_experts: list[float] = field(default_factory=list)

    def prefill(self, tokens: int, seconds: float) -> None:
        """Note one prompt."""
        self.prefill_tokens += tokens
        self.prefill_seconds += seconds

    def step(
        self, seconds: float, rows: int, experts: Sequence[int], topk_experts: Sequence[int]
    ) -> None:
        """Note one decode step with ``rows`` live rows; experts are given for each layer."""
        self._step_seconds.append(seconds)
        self._rows.append(rows)
        self._experts.append(fmean(experts) if len(experts) else 0.0)
        self._topk_experts.append(fmean(topk_experts) if len(topk_experts) else 0.0)

    def summary(self) -> Stats:
        """What was collected so far."""
        seconds = np.array(self._step_seconds or [0.0])
        tokens, total = sum(self._rows), float(seconds.sum())
        p50, p99 = np.percentile(seconds, [50, 99]) * 1e3
        return Stats(
            compile_seconds=self.compile_seconds,
            prefill_seconds=self.prefill_seconds,
            prefill_tokens=self.prefill_tokens,
            prefill_tokens_per_second=_ratio(self.prefill_tokens, self.prefill_seconds),
            decode_seconds=total,
            decode_steps=len(self._rows),
            decode_tokens=tokens,
            decode_tokens_per_second=_ratio(tokens, total),
            tpot_ms_p50=float(p50),
            tpot_ms_mean=float(seconds.mean()) * 1e3,
            tpot_ms_p99=float(p99),
            mean_rows=_ratio(tokens, len(self._rows)),
            experts_per_layer=fmean(self._experts or [0.0]),
            topk_experts_per_layer=fmean(self._topk_experts or [0.0]),
        )


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else 0.0
