"""Everything that is wrong with a checkpoint's tensors, gathered into one line."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from lynx_jax.errors import InputError

_SHOWN = 3


@dataclass
class Problems:
    """Mismatches between the tensors that a model needs and those that a checkpoint holds."""

    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    shapes: list[str] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)

    def wrong_shape(self, name: str, got: tuple[int, ...], expected: tuple[int, ...]) -> None:
        """Note a tensor whose shape is not what config.json makes it."""
        self.shapes.append(f"{name} is {list(got)}, config.json makes it {list(expected)}")

    def wrong_dtype(self, name: str, got: str, expected: Sequence[str]) -> None:
        """Note a tensor of a dtype that cannot be read there, in the names of safetensors."""
        listed = " or ".join([", ".join(expected[:-1]), expected[-1]] if expected[1:] else expected)
        self.dtypes.append(f"{name} is {got}, expected {listed}")

    def ambiguous(self, name: str, got: tuple[int, ...]) -> None:
        """Note a tensor whose shape should tell the order of its axes, and cannot."""
        self.shapes.append(f"{name} is {list(got)}, which fits its axes in either order")

    def raise_if_any(self, where: object) -> None:
        """Raise one ``InputError`` that counts every kind and names the first few of each."""
        kinds = (
            ("missing", self.missing),
            ("unexpected", self.unexpected),
            ("wrong shape", self.shapes),
            ("wrong dtype", self.dtypes),
        )
        found = [f"{len(items)} {kind} ({_listed(items)})" for kind, items in kinds if items]
        if found:
            raise InputError(f"{where}: tensors do not match the model: {'; '.join(found)}")


def _listed(items: list[str]) -> str:
    more = len(items) - _SHOWN
    return ", ".join(items[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
