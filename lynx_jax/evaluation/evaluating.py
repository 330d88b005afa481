"""Policies on a model and texts: the whole measurement."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from lynx_jax.errors import InputError
from lynx_jax.evaluation.forced import ForcedBatch
from lynx_jax.evaluation.report import BatchSizeResult, mean_use, per_layer, summarise
from lynx_jax.evaluation.scoring import BatchScorer, BatchScores
from lynx_jax.evaluation.texts import Composition, Document, Windows, cut
from lynx_jax.loading import LoadedModel
from lynx_jax.policies import Policy, TopK


def windows_of(loaded: LoadedModel, documents: Sequence[Document], length: int) -> Windows:
    """The documents as windows of ``length`` tokens by the model's own tokenizer."""
    return cut(
        documents,
        lambda text: list(loaded.tokenizer.encode(text, add_special_tokens=False)),
        min(loaded.eos_token_ids, default=None),
        length,
    )


def evaluate(
    scorer: BatchScorer,
    groups: Sequence[Windows],
    policies: Mapping[str, Policy],
    *,
    prompt_tokens: int,
    composition: Composition = "mixed",
    against: str | None = None,
    progress: Callable[[], object] = lambda: None,
) -> BatchSizeResult:
    """Every policy on every batch by teacher-forced decode, paired with plain top-k.

    Args:
      scorer: of the model.
      groups: batches of one size, as ``texts.batches`` makes them.
      policies: by name.
      prompt_tokens: tokens of each row that are prefilled; those after them are scored.
      composition: how the batches were made; only reported.
      against: the name of the policy that every policy is compared with, besides plain top-k.
      progress: called after each pass over a batch.

    Raises:
      InputError: the prompt leaves nothing to score, or the model has no mixture of experts.
    """
    length = groups[0].tokens.shape[1] - 1
    if not 0 < prompt_tokens < length:
        raise InputError(
            f"expected --prompt-tokens from 1 to one below --length={length}, got {prompt_tokens}"
        )
    plain: list[BatchScores] = []
    found: dict[str, list[BatchScores]] = {name: [] for name in policies}
    for group in groups:
        batch = ForcedBatch.of_windows(group.tokens[:, :-1], prompt_tokens)
        targets = group.tokens[:, prompt_tokens + 1 :]
        baseline = scorer.baseline(batch)
        if not baseline.layers:
            raise InputError("expected a model with mixture-of-experts layers, got none in it")
        plain.append(scorer.score(batch, targets, TopK(), baseline))
        progress()
        for name, policy in policies.items():
            found[name].append(scorer.score(batch, targets, policy, baseline))
            progress()
    other = None if against is None else found[against]
    rows = sum(len(group.documents) for group in groups)
    return BatchSizeResult(
        batch=len(groups[0].documents),
        composition=composition,
        scored_tokens=rows * (length - prompt_tokens),
        documents=len(np.unique(np.concatenate([group.documents for group in groups]))),
        cross_entropy=float(np.mean([score.loss.mean() for score in plain])),
        experts=float(np.mean([score.experts for score in plain])),
        experts_per_layer=per_layer(plain),
        use=mean_use(plain),
        against=against,
        policies=[summarise(name, groups, plain, scores, other) for name, scores in found.items()],
    )
