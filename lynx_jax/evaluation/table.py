"""Results as a table for a terminal."""

from collections.abc import Iterator

from lynx_jax.evaluation.answering import TaskResult
from lynx_jax.evaluation.estimates import Estimate, Interval
from lynx_jax.evaluation.report import BatchSizeResult, PolicyResult

_HEADER = (
    f"{'policy':28} {'experts':>14} {'share':>6} {'CE rise, nats':>18} {'relative':>15} "
    f"{'KL':>16} {'top-1':>15} {'retained':>15} {'worst row':>15}"
)


def table(result: BatchSizeResult) -> str:
    """The table of one batch size, with rows by domain below each policy that changes something."""
    return "\n".join(_lines(result))


def _lines(result: BatchSizeResult) -> Iterator[str]:
    yield (
        f"B={result.batch}, {result.composition}: {result.scored_tokens:,} scored tokens of "
        f"{result.documents} documents; plain top-k: cross-entropy {result.cross_entropy:.4f} "
        f"nats, {result.experts:.2f} experts a layer and step"
    )
    yield _HEADER
    for policy in result.policies:
        yield _row(policy)
        if policy.rise.value or policy.divergence.value:
            for name, domain in policy.domains.items():
                yield (
                    f"  {name:26} {'':14} {'':6} {_pm(domain.rise):>18} "
                    f"{_percent(domain.relative_rise):>15} {_pm(domain.divergence):>16}"
                )
    if result.against is not None:
        yield from _differences(result)


def _differences(result: BatchSizeResult) -> Iterator[str]:
    yield f"less {result.against}, on the same tokens"
    yield f"{'policy':28} {'experts':>14} {'CE, nats':>18} {'errors':>7} {'KL':>18} {'errors':>7}"
    for policy in result.policies:
        if policy.difference is not None and policy.policy != result.against:
            rise, divergence = policy.difference.rise, policy.difference.divergence
            yield (
                f"{policy.policy:28} {_pm(policy.difference.experts, 2):>14} "
                f"{_pm(rise):>18} {_in_errors(rise):>7} "
                f"{_pm(divergence):>18} {_in_errors(divergence):>7}"
            )


def _in_errors(estimate: Estimate) -> str:
    """A difference in units of its standard error."""
    return f"{estimate.value / estimate.error:+.1f}" if estimate.error else ""


def _row(policy: PolicyResult) -> str:
    return (
        f"{policy.policy:28} {_pm(policy.experts, 2):>14} {policy.share:>6.2f} "
        f"{_pm(policy.rise):>18} {_percent(policy.relative_rise):>15} "
        f"{_pm(policy.divergence):>16} "
        f"{_pm(policy.agreement):>15} {_pm(policy.retained):>15} {_pm(policy.worst_retained):>15}"
    )


def task_table(result: TaskResult) -> str:
    """The table of one task, with rows by kind of question below each policy that changes one."""
    return "\n".join(_task_lines(result))


def _task_lines(result: TaskResult) -> Iterator[str]:
    yield (
        f"{result.task}, B={result.batch}: {result.questions:,} questions for {result.facts:,} "
        f"facts; plain top-k: {result.accuracy:.1%} right, {result.experts:.2f} experts a layer "
        "and step"
    )
    other = "" if result.against is None else f" {'less ' + result.against:>26}"
    yield (
        f"{'policy':28} {'experts':>7} {'share':>6} {'right':>6} {'less top-k, points':>22} "
        f"{'lost':>5} {'gained':>6}{other}"
    )
    for policy in result.policies:
        other = "" if policy.against is None else f" {_points(policy.against):>26}"
        yield (
            f"{policy.policy:28} {policy.experts:>7.2f} {policy.share:>6.2f} "
            f"{policy.accuracy.value:>6.1%} {_points(policy.difference):>22} "
            f"{policy.lost:>5} {policy.gained:>6}{other}"
        )
        if (policy.lost or policy.gained) and len(policy.kinds) > 1:
            for name, kind in policy.kinds.items():
                yield f"  {name:41} {kind.accuracy:>6.1%} {_points(kind.difference):>22}"


def _points(interval: Interval) -> str:
    """A difference of shares in points, and its interval."""
    value, low, high = (100 * x for x in (interval.value, interval.low, interval.high))
    return f"{value:+.1f} [{low:+.1f}, {high:+.1f}]"


def _pm(estimate: Estimate, digits: int = 4) -> str:
    error = "" if estimate.error is None else f" ±{estimate.error:.{digits}f}"
    return f"{estimate.value:.{digits}f}{error}"


def _percent(estimate: Estimate) -> str:
    error = "" if estimate.error is None else f" ±{estimate.error:.2%}"
    return f"{estimate.value:.2%}{error}"
