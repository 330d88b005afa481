"""Tables of docs/models.md: ``python -m tests.models.tables sizes`` or ``parity``."""

import sys
from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from lynx_jax.convert.reader import abstract_model
from lynx_jax.errors import InputError
from lynx_jax.models import get_family
from lynx_jax.models.decoder import DecoderForCausalLM
from lynx_jax.policies import Lynx
from lynx_jax.sizes import sizes_of
from tests.models.golden import CASES, decode, expected, full_pass, load
from tests.models.published_checkpoints import CHECKPOINTS


def size_row(name: str, model: DecoderForCausalLM) -> str:
    """A published checkpoint's row in the table of sizes."""
    config, sizes = model.config, sizes_of(model)
    k, experts = config.num_experts_per_tok, config.num_experts
    cells = (
        name,
        f"`{CHECKPOINTS[name].config['model_type']}`",
        f"{k} of {experts}",
        f"{sizes.parameters:,}",
        f"{sizes.weight_bytes / 1e9:.1f}",
        f"{sizes.cache_bytes_per_token:,}",
        f"{sizes.cache_bytes(16, 4096) / 1e9:.1f}",
        _authors_constants(k, experts),
    )
    return f"| {' | '.join(cells)} |"


def _authors_constants(k: int, experts: int) -> str:
    try:
        lynx = Lynx.authors(k, experts)
    except InputError:
        return "none"
    return f"{lynx.alpha:g}/{lynx.beta}"


def size_rows() -> Iterator[str]:
    """All rows of the table of sizes."""
    for name, published in CHECKPOINTS.items():
        if not name.endswith("-FP8"):
            family = get_family(published.config["model_type"])
            config = family.config_class.from_dict(published.config)
            yield size_row(name, abstract_model(family, config))


def parity_rows() -> Iterator[str]:
    """A row for every family: the largest differences from the reference over its cases."""
    found: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    for case in CASES:
        found[load(case, "loop").config.model_type].append(_differences(case))
    for family, differences in found.items():
        largest = np.max(differences, axis=0)
        cells = (f"`{family}`", str(len(differences)), *(f"{x:.1e}" for x in largest))
        yield f"| {' | '.join(cells)} |"


def _differences(case: str) -> tuple[float, ...]:
    """Of router logits, the stream, and logits in a pass and in decode, over both backends."""
    want = expected(case)
    ids = want["input_ids"]
    router, hidden, logits, decoded = [0.0], [0.0], [0.0], [0.0]
    for backend in ("loop", "reference"):
        model = load(case, backend).model
        one_pass = full_pass(model, ids)
        for i, stream in enumerate(one_pass.hidden):
            hidden.append(_largest(stream, want[f"hidden.{i}"]))
        for i, routing in one_pass.routings.items():
            router.append(_largest(routing.router_logits, want[f"router_logits.{i}"]))
        logits.append(_largest(one_pass.logits, want["logits"]))
        decoded.append(_largest(decode(model, ids, np.ones(len(ids), bool)), want["logits"]))
    return max(router), max(hidden), max(logits), max(decoded)


def _largest(found: object, wanted: np.ndarray) -> float:
    return float(np.abs(np.asarray(found).reshape(wanted.shape) - wanted).max())


if __name__ == "__main__":
    rows = {"sizes": size_rows, "parity": parity_rows}[sys.argv[1]]
    for row in rows():
        print(row, flush=True)
