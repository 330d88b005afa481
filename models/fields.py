"""Reading typed fields out of config.json; what is wrong raises ``InputError`` in one line."""

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any, NoReturn

from lynx_jax.errors import InputError


def require(condition: bool, expected: str, got: object) -> None:
    """Raise ``InputError`` for config.json unless the condition holds."""
    if not condition:
        raise InputError(f"config.json: expected {expected}, got {got}")


def read_fields(
    cls: type,
    known: Mapping[str, Any],
    *,
    where: str = "config.json",
    hub_names: Mapping[str, tuple[str, ...]] | None = None,
) -> dict[str, Any]:
    """Arguments for a dataclass, of the types that its fields say.

    Args:
      cls: the dataclass; fields with a default may be absent.
      known: what was read, without nulls.
      where: what ``known`` is, for the error.
      hub_names: names that a field may have in ``known``, where they differ; the first that is
        there holds.

    Raises:
      InputError: a needed field is missing, or one is of the wrong type.
    """
    values = {}
    for field in dataclasses.fields(cls):
        names = (hub_names or {}).get(field.name, (field.name,))
        name = next((name for name in names if name in known), names[0])
        if name in known:
            values[field.name] = checked(name, field.type, known[name])
        elif field.default is dataclasses.MISSING:
            lacks(where, name)
    return values


def lacks(where: str, name: str) -> NoReturn:
    """Raise ``InputError`` for a field that is not there."""
    raise InputError(
        f"{where} lacks the field {name!r}; take the config.json that was published with the "
        "weights"
    )


def checked(name: str, expected: Any, value: Any) -> Any:
    """The value, a list as a tuple, if it is of the type expected; else an error with its name."""
    item = _item(expected)
    if item is not None:
        matches = isinstance(value, list) and all(type(v) in _accepted(item) for v in value)
        return tuple(value) if matches else _refuse(name, f"a list of {item.__name__}", value)
    return value if type(value) in _accepted(expected) else _refuse(name, _named(expected), value)


def _item(expected: Any) -> Any:
    """The type of what a tuple, or a tuple that may be None, holds; None for other types."""
    for kind in (expected, *typing.get_args(expected)):
        if typing.get_origin(kind) is tuple:
            return typing.get_args(kind)[0]
    return None


def _accepted(expected: Any) -> set[type]:
    """Types that a value of this type may have in JSON, where 2.0 may stand as 2."""
    types = {expected, *typing.get_args(expected)}
    return types | {int} if float in types else types


def _named(expected: Any) -> str:
    return "an object" if expected is dict else getattr(expected, "__name__", str(expected))


def _refuse(name: str, expected: str, got: object) -> NoReturn:
    raise InputError(f"config.json: expected {name!r} as {expected}, got {got!r}")
