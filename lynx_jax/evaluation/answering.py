"""Questions answered by greedy decoding under each policy, and scored."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool

from lynx_jax.evaluation.estimates import Interval, bootstrap
from lynx_jax.evaluation.questions import Question
from lynx_jax.generation import GenerationResult, Generator
from lynx_jax.loading import LoadedModel
from lynx_jax.policies import Policy, TopK
from lynx_jax.stats import Stats

# An answer may be written in more tokens than the tokenizer takes for it.
_SPARE_TOKENS = 8


@dataclass(frozen=True)
class Answers:
    """Which questions were answered rightly, and what decoding took."""

    right: Bool[np.ndarray, " questions"]
    stats: Stats


@dataclass(frozen=True)
class KindResult:
    """One kind of question: how many, the share right, and that less plain top-k's."""

    questions: int
    accuracy: float
    difference: Interval


@dataclass(frozen=True)
class TaskPolicyResult:
    """One policy on one task. Intervals are of 95 %, over facts.

    Attributes:
      policy: as text.
      accuracy: share of questions answered rightly.
      difference: less plain top-k's, on the same questions.
      lost: questions that plain top-k alone answers rightly.
      gained: questions that the policy alone answers rightly.
      experts: distinct experts a layer and decode step.
      share: that over plain top-k's own run.
      mean_rows: rows a decode step.
      against: accuracy less that of the policy that the result names in ``against``, if any.
      kinds: by kind of question.
    """

    policy: str
    accuracy: Interval
    difference: Interval
    lost: int
    gained: int
    experts: float
    share: float
    mean_rows: float
    against: Interval | None
    kinds: dict[str, KindResult]


@dataclass(frozen=True)
class TaskResult:
    """All policies on one task at one batch size.

    Attributes:
      task: its name or file.
      batch: rows that decode together.
      questions: how many were asked.
      facts: that they ask for.
      accuracy: of plain top-k.
      experts: of plain top-k, a layer and decode step.
      against: the policy that the others are compared with, besides plain top-k.
      policies: in the order asked for.
    """

    task: str
    batch: int
    questions: int
    facts: int
    accuracy: float
    experts: float
    against: str | None
    policies: list[TaskPolicyResult]


def ask(
    loaded: LoadedModel,
    questions: Sequence[Question],
    policy: Policy,
    batch: int,
    progress: Callable[[], object] = lambda: None,
) -> Answers:
    """Answer every question greedily, up to ``batch`` of them decoding together.

    Prompts enter in order as rows become free. An answer is right if the first line of the text
    equals it, blanks at both ends aside. Its first token comes from prefill, where no policy acts.

    Raises:
      InputError: a prompt does not fit the model, or the policy is impossible for it.
    """

    def on_result(index: int, result: GenerationResult) -> None:
        progress()

    tokenizer = loaded.tokenizer
    longest = max(len(tokenizer.encode(q.answer, add_special_tokens=False)) for q in questions)
    found = Generator(loaded, policy=policy, max_batch=batch).generate(
        [question.prompt for question in questions],
        max_new_tokens=longest + _SPARE_TOKENS,
        stop="\n",
        on_result=on_result,
    )
    right = [
        result.text.strip() == question.answer.strip()
        for result, question in zip(found.results, questions, strict=True)
    ]
    return Answers(np.array(right), found.stats)


def evaluate_task(
    loaded: LoadedModel,
    task: str,
    questions: Sequence[Question],
    policies: Mapping[str, Policy],
    *,
    batch: int,
    seed: int,
    against: str | None = None,
    progress: Callable[[], object] = lambda: None,
) -> TaskResult:
    """Every policy on a task, paired with plain top-k on the same questions.

    Args:
      loaded: the model.
      task: its name; only reported.
      questions: of the task.
      policies: by name.
      batch: rows that decode together.
      seed: of the bootstrap.
      against: the name of the policy that every policy is compared with, besides plain top-k.
      progress: called after each answer.

    Raises:
      InputError: as ``ask``.
    """
    plain = ask(loaded, questions, TopK(), batch, progress)
    found = {
        name: plain if policy == TopK() else ask(loaded, questions, policy, batch, progress)
        for name, policy in policies.items()
    }
    other = None if against is None else found[against]
    return TaskResult(
        task=task,
        batch=batch,
        questions=len(questions),
        facts=len({question.fact for question in questions}),
        accuracy=float(plain.right.mean()),
        experts=plain.stats.experts_per_layer,
        against=against,
        policies=[
            summarise(name, questions, plain, answers, other, seed)
            for name, answers in found.items()
        ],
    )


def summarise(
    policy: str,
    questions: Sequence[Question],
    plain: Answers,
    answers: Answers,
    other: Answers | None,
    seed: int,
) -> TaskPolicyResult:
    """A policy's result from its answers, plain top-k's and another policy's."""
    right = answers.right.astype(float)
    difference = right - plain.right
    facts = [question.fact for question in questions]
    kinds = np.array([question.kind for question in questions])

    def of_kind(kind: str) -> KindResult:
        here = np.flatnonzero(kinds == kind)
        interval = bootstrap(difference[here], [facts[i] for i in here], seed)
        return KindResult(len(here), float(right[here].mean()), interval)

    topk_experts = plain.stats.experts_per_layer
    return TaskPolicyResult(
        policy=policy,
        accuracy=bootstrap(right, facts, seed),
        difference=bootstrap(difference, facts, seed),
        lost=int((difference < 0).sum()),
        gained=int((difference > 0).sum()),
        experts=answers.stats.experts_per_layer,
        share=answers.stats.experts_per_layer / topk_experts if topk_experts else 1.0,
        mean_rows=answers.stats.mean_rows,
        against=None if other is None else bootstrap(right - other.right, facts, seed),
        kinds={str(kind): of_kind(str(kind)) for kind in dict.fromkeys(kinds.tolist())},
    )
