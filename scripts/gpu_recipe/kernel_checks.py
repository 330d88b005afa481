"""Section ``kernels``: kernels against plain JAX on fresh random inputs, results poisoned first."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from compile_recipe.routing_cases import policies, route
from jaxtyping import Array

from gpu_recipe.cases import Deadline, Row, attempt
from gpu_recipe.layers import draw_logits, routings, rows_of
from gpu_recipe.poison import fill_memory, poisoned
from gpu_recipe.settings import Family, Settings
from lynx_jax.backends import ReferenceBackend
from lynx_jax.errors import InputError
from lynx_jax.kernel_routing import why_not
from lynx_jax.pallas_kernels.expert_ffn import dense_over_active
from lynx_jax.pallas_kernels.expert_form import ExpertWeights
from lynx_jax.pallas_kernels.measure import ROUNDINGS, error, random_experts, rotating_work
from lynx_jax.policies import Demand, Policy, XShare
from lynx_jax.routing import Phase, Routing

WEIGHT_ERROR = 1e-6


def run(settings: Settings, seed: int, deadline: Deadline) -> Iterator[Row]:
    """A row for every case: how far results are off, and whether a second run gives the same."""
    names = list(settings.families)
    rows = settings.batches[0]
    cases = [(name, rows, settings.modes[0]) for name in names]
    cases += [(names[0], rows, mode) for mode in settings.modes[1:]]
    cases += [(names[0], batch, settings.modes[0]) for batch in settings.batches[1:]]
    if settings.many is not None:
        cases += [(name, settings.many, settings.modes[0]) for name in settings.many_families]
        cases += [(names[0], settings.many, mode) for mode in settings.modes[1:]]
    yield from _experts(settings, seed, deadline, [(name, rows) for name in names[:1]])
    yield from _routing(settings, seed, deadline, cases)
    others = [(name, rows) for name in names[1:]]
    others += [(names[0], batch) for batch in settings.batches[1:]]
    if settings.many is not None:
        others += [(name, settings.many) for name in settings.many_families]
    yield from _experts(settings, seed, deadline, others)
    last = [(name, rows, mode) for mode in settings.modes[1:2] for name in names[1:]]
    yield from _routing(settings, seed + len(cases), deadline, last)


def _routing(
    settings: Settings, seed: int, deadline: Deadline, cases: list[tuple[str, int, str]]
) -> Iterator[Row]:
    for number, (name, batch, mode) in enumerate(cases):
        family = settings.families[name]
        case = {"case": f"routing {name}, B={batch}, {mode}"}
        policy = policies(family.router.k, family.router.experts)[mode]
        check = partial(check_routing, settings, family, batch, policy, seed + number, deadline)
        yield attempt(case, check)


def _experts(
    settings: Settings, seed: int, deadline: Deadline, cases: list[tuple[str, int]]
) -> Iterator[Row]:
    for name, batch in cases:
        family = settings.families[name]
        check = partial(check_experts, settings, family, batch, seed, deadline)
        yield attempt({"case": f"experts {name}, B={batch}"}, check)


def check_routing(
    settings: Settings, family: Family, rows: int, policy: Policy, seed: int, deadline: Deadline
) -> Row:
    """The kernel's routing against plain JAX's: ids and lists exactly, weights within 1e-6."""
    deadline.check()
    layer = family.router
    reason = why_not(policy, layer.router, layer.k, layer.experts, rows)
    if reason is not None:
        raise InputError(reason)
    fill_memory(settings.poisoned)
    with settings.kernels():
        kernel = poisoned(partial(route, family.router, policy, by=settings.mosaic.route))
        plain = jax.jit(partial(route, family.router, policy, by=ReferenceBackend().route))
        worst, equal, repeatable = 0.0, True, True
        # What these two sum up is rounded in another order, which tells apart what should tie.
        for ties in (False,) if isinstance(policy, XShare | Demand) else (False, True):
            inputs = draw_logits(family, rows, seed, ties=ties)
            got, want, again = kernel(*inputs), plain(*inputs), kernel(*inputs)
            equal &= same_choice(got, want)
            repeatable &= bool(jnp.array_equal(got.combine_matrix(), again.combine_matrix()))
            worst = max(worst, error(got.combine_matrix(), want.combine_matrix()))
    return {
        "ok": equal and repeatable and worst <= WEIGHT_ERROR,
        "equal": equal,
        "error": worst,
        "repeatable": repeatable,
    }


def same_choice(got: Routing, want: Routing) -> bool:
    """Whether live rows have equal ids, and the lists of experts in use are equal."""
    live = np.asarray(want.live)
    return (
        bool(np.array_equal(np.asarray(got.ids)[live], np.asarray(want.ids)[live]))
        and bool(jnp.array_equal(got.active, want.active))
        and int(got.num_active) == int(want.num_active)
        and int(got.num_active_topk) == int(want.num_active_topk)
    )


def check_experts(
    settings: Settings, family: Family, rows: int, seed: int, deadline: Deadline
) -> Row:
    """The kernels' experts against plain JAX's, within two roundings to bfloat16.

    Rows that are not live hold NaN and are to yield zeros.
    """
    deadline.check()
    shape, backend = family.experts, settings.mosaic
    weights = random_experts(shape, seed)
    live = jnp.arange(rows) % 8 != 5
    x = jnp.where(live[:, None], rows_of(family, rows, seed), jnp.nan)
    (work,) = rotating_work(shape, rows, shape.expected_active(rows), 1)
    work = work._replace(combine=jnp.where(live[:, None], work.combine, 0.0))
    fill_memory(settings.poisoned)

    (routing,) = routings([work], shape.k)
    routing = replace(routing, live=live)

    def experts(x: Array, routing: Routing, weights: ExpertWeights) -> Array:
        return backend(x, routing, weights, form=shape.form, phase=Phase.DECODE)

    with settings.kernels():
        kernel = poisoned(experts)
        got, again = kernel(x, routing, weights), kernel(x, routing, weights)
    want = jax.jit(partial(dense_over_active, form=shape.form))(x, *work, weights)
    worst = error(got, want)
    repeatable = bool(jnp.array_equal(got, again))
    return {"ok": repeatable and worst <= ROUNDINGS, "error": worst, "repeatable": repeatable}
