"""The same prompts with a policy off and on: what it gains, and how far the texts agree."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from lynx_jax.generation import GenerationBatch, GenerationResult, Generator
from lynx_jax.loading import LoadedModel
from lynx_jax.policies import Policy
from lynx_jax.policy_forms import DEFAULT_POLICY
from lynx_jax.prompts import Prompt
from lynx_jax.requests import SamplingParams


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far two texts of one prompt agree, in tokens.

    Attributes:
      equal_before_difference: tokens before the first one that differs.
      equal_share: equal tokens at equal places, as a share of the longer text.
      identical: all tokens are equal.
    """

    equal_before_difference: int
    equal_share: float
    identical: bool


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs over the same prompts.

    Attributes:
      off: plain top-k.
      on: the policy.
      agreements: one for each prompt.
      tpot_ratio: median time per output token, off over on; above 1, the policy is faster.
      experts_ratio: experts a layer and decode step, off over on.
    """

    off: GenerationBatch
    on: GenerationBatch
    agreements: tuple[Agreement, ...]
    tpot_ratio: float
    experts_ratio: float

    def __str__(self) -> str:
        off, on, rows = self.off.stats, self.on.stats, self.agreements
        before = fmean(row.equal_before_difference for row in rows)
        share = fmean(row.equal_share for row in rows)
        same = sum(row.identical for row in rows)
        lines = {
            "time per output token, p50": (
                f"off {off.tpot_ms_p50:.2f} ms, on {on.tpot_ms_p50:.2f} ms: {self.tpot_ratio:.2f}x"
            ),
            "experts a layer and step": (
                f"off {off.experts_per_layer:.1f}, on {on.experts_per_layer:.1f}: "
                f"{self.experts_ratio:.2f}x"
            ),
            "texts": (
                f"{same} of {len(rows)} identical; {before:.1f} tokens equal before the first "
                f"difference; {share:.0%} of places equal"
            ),
        }
        return "\n".join(f"{name + ':':28}{value}" for name, value in lines.items())


def compare(
    loaded: LoadedModel,
    prompts: str | Sequence[Prompt],
    *,
    policy: str | Policy = DEFAULT_POLICY,
    max_new_tokens: int = 128,
    sampling: SamplingParams | None = None,
    stop: str | Sequence[str] = (),
    ignore_eos: bool = False,
    max_batch: int = 16,
) -> Comparison:
    """Generate with plain top-k, then with ``policy``; arguments as in ``generate``.

    Raises:
      InputError: as ``generate``.
    """
    on = Generator(loaded, policy=policy, max_batch=max_batch)
    off = Generator(loaded, policy="off", max_batch=max_batch)
    batches = [
        generator.generate(
            prompts,
            max_new_tokens=max_new_tokens,
            sampling=sampling,
            stop=stop,
            ignore_eos=ignore_eos,
        )
        for generator in (off, on)
    ]
    return compare_batches(*batches)


def compare_batches(off: GenerationBatch, on: GenerationBatch) -> Comparison:
    """The comparison of two finished runs over the same prompts."""
    return Comparison(
        off=off,
        on=on,
        agreements=tuple(map(agreement, off.results, on.results)),
        tpot_ratio=_ratio(off.stats.tpot_ms_p50, on.stats.tpot_ms_p50),
        experts_ratio=_ratio(off.stats.experts_per_layer, on.stats.experts_per_layer),
    )


def agreement(first: GenerationResult, second: GenerationResult) -> Agreement:
    """How far two results agree."""
    a, b = first.token_ids, second.token_ids
    equal = [x == y for x, y in zip(a, b, strict=False)]
    before = equal.index(False) if False in equal else len(equal)
    return Agreement(
        equal_before_difference=before,
        equal_share=sum(equal) / max(len(a), len(b)),
        identical=a == b,
    )


def _ratio(numerator: float, denominator: float) -> float:
    """0 where nothing was measured, as in ``Stats``."""
    return numerator / denominator if denominator else 0.0
