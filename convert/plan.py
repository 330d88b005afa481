"""Matching the tensors of a Hugging Face checkpoint with a model's parameters, strict both ways."""

import logging
from collections.abc import Mapping

from lynx_jax.convert.matching import Matching
from lynx_jax.convert.packing import Packing
from lynx_jax.convert.safetensors_file import StoredTensor
from lynx_jax.convert.sources import Source
from lynx_jax.errors import InputError
from lynx_jax.models.weights import WeightTable

_log = logging.getLogger(__name__)


def match(
    table: WeightTable,
    shapes: Mapping[str, tuple[int, ...]],
    stored: Mapping[str, StoredTensor],
    where: object,
    packing: Packing | None = None,
) -> dict[str, Source]:
    """The source of every parameter; every stored tensor is claimed exactly once.

    Args:
      table: the family's weight table.
      shapes: canonical shape of every parameter of the model.
      stored: the checkpoint's tensors by name.
      where: the checkpoint, for the error.
      packing: the quantised form that some tensors have.

    Raises:
      InputError: tensors are missing, left over (among them an output head that differs from the
        embedding it is tied to), of a wrong shape or of a wrong dtype, or none is packed.
    """
    table = table.named_as_in(stored)
    matching = Matching(dict(stored), packing)
    claimed = {}
    for path, shape in shapes.items():
        row, layer = table.find(path)
        claimed[path] = matching.claim(row, layer, shape)
    matching.drop_tied_head(table, stored.get(table.embedding))
    matching.drop_zero_biases(stored)
    skipped = table.skipped_names(matching.left)
    left = {name for name in matching.left if not table.is_ignored(name)}.difference(skipped)
    matching.problems.unexpected.extend(_explained(name, table, shapes) for name in sorted(left))
    matching.problems.raise_if_any(where)
    if packing is not None and not matching.num_packed:
        raise InputError(
            f"{where}: config.json says quant_method {packing.method!r}, but no tensor is packed "
            "so; remove quantization_config from config.json"
        )
    if skipped:
        _log.warning("%s: %d tensors not used, such as %s", where, len(skipped), skipped[0])
    return {path: source for path, source in claimed.items() if source is not None}


def _explained(name: str, table: WeightTable, shapes: Mapping[str, tuple[int, ...]]) -> str:
    if name != table.output_head or "lm_head.weight" in shapes:
        return name
    return f"{name}, which differs from {table.embedding} although config.json ties them"
