"""Settings on a model by teacher-forced decode, window by window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from compare_policies import paired
from tqdm import tqdm

from lynx_jax.backends import LoopBackend
from lynx_jax.evaluation.forced import ForcedBatch
from lynx_jax.evaluation.scoring import BatchScorer, BatchScores
from lynx_jax.evaluation.texts import Windows
from lynx_jax.loading import load_model
from lynx_jax.policies import OEA, Policy, TopK
from lynx_jax.policy_spec import parse_policy
from study_recipe.reduced import with_top_k0
from study_recipe.settings import family
from study_recipe.texts import PROMPT


@dataclass(frozen=True)
class Measured:
    """One setting on all windows.

    Attributes:
      loss: cross-entropy of each window, nats a token.
      divergence: KL(plain top-k || setting) of each window, nats a token.
      experts: distinct experts a layer and step.
    """

    loss: np.ndarray
    divergence: np.ndarray
    experts: float


class Bench:
    """A study model."""

    def __init__(self, folder: Path) -> None:
        # One stacked array for all experts compiles faster than an array an expert.
        self._model = load_model(folder, backend=LoopBackend(split=False))
        self._scorers: dict[int, BatchScorer] = {}
        self.k = self._model.config.num_experts_per_tok
        self.num_experts = self._model.config.num_experts

    def measure(
        self, groups: Sequence[Windows], settings: Sequence[str]
    ) -> tuple[Measured, dict[str, Measured]]:
        """Plain top-k, and every setting, on the same batches."""
        chosen = {setting: self._resolve(setting) for setting in settings}
        plain: list[BatchScores] = []
        found: dict[str, list[BatchScores]] = {setting: [] for setting in settings}
        scorer = self._scorer(self.k)
        for group in tqdm(groups, desc=f"{self.k} of {self.num_experts}"):
            batch = ForcedBatch.of_windows(group.tokens[:, :-1], PROMPT)
            targets = group.tokens[:, PROMPT + 1 :]
            baseline = scorer.baseline(batch)
            plain.append(scorer.score(batch, targets, TopK(), baseline))
            for setting, (k, policy) in chosen.items():
                scores = self._scorer(k).score(batch, targets, policy, baseline)
                found[setting].append(scores)
        return _joined(plain), {setting: _joined(scores) for setting, scores in found.items()}

    def _resolve(self, setting: str) -> tuple[int, Policy]:
        """(experts a token in decode, policy)."""
        if family(setting) == "topk0":
            k0 = int(setting.partition("=")[2])
            return k0, OEA(k0)  # Anything but TopK, which is scored as the baseline itself.
        return self.k, parse_policy(setting, self.k, self.num_experts)

    def _scorer(self, k: int) -> BatchScorer:
        if k not in self._scorers:
            model = self._model if k == self.k else with_top_k0(self._model, k)
            self._scorers[k] = BatchScorer(model)
        return self._scorers[k]


def _joined(scores: Sequence[BatchScores]) -> Measured:
    return Measured(
        np.concatenate([score.loss for score in scores]),
        np.concatenate([score.divergence for score in scores]),
        float(np.mean([score.experts for score in scores])),
    )


def summary(plain: Measured, settings: Mapping[str, Measured], batch: int) -> dict[str, object]:
    """What is stored of a measurement: experts, and paired rises in nats."""
    return {
        "batch": batch,
        "windows": len(plain.loss),
        "cross_entropy": float(plain.loss.mean()),
        "experts": plain.experts,
        "settings": {
            name: {
                "experts": measured.experts,
                "share": measured.experts / plain.experts,
                "rise": paired(measured.loss - plain.loss, batch),
                "divergence": paired(measured.divergence, batch),
            }
            for name, measured in settings.items()
        },
    }
