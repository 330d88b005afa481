"""Policies written as text: ``off``, ``lynx``, ``lynx:alpha=3,beta=4``, ``oea:k0=4`` and so on."""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from lynx_jax.errors import InputError
from lynx_jax.policies import OEA, Demand, Lynx, Policy, TopK, XShare
from lynx_jax.policy_forms import POLICY_FORMS

_CLASSES: dict[str, type[Any]] = {"lynx": Lynx, "demand": Demand, "oea": OEA, "xshare": XShare}


def parse_policy(text: str, k: int, num_experts: int) -> Policy:
    """The policy that ``text`` names, for a router that uses k of num_experts experts.

    ``lynx`` without alpha and beta takes ``Lynx.for_model``, with ``preset=authors``
    ``Lynx.authors``; ``demand`` without threshold ``Demand.for_model``. ``min_rows=R`` and
    ``damping=D`` may be added to each.

    Raises:
      InputError: the text is not of a known form, or the policy is impossible for this router.
    """
    name, _, arguments = text.strip().partition(":")
    if name in ("off", "topk"):
        if arguments:
            raise InputError(f"policy {text!r}: {name!r} takes no settings, got {arguments!r}")
        return TopK()
    if name not in _CLASSES:
        raise InputError(f"policy {text!r} is not known; expected one of: {POLICY_FORMS}")
    kinds = {field.name: str(field.type) for field in dataclasses.fields(_CLASSES[name])}
    known = [*kinds, "preset"] if name == "lynx" else list(kinds)
    given = _split(text, known, arguments)
    preset = given.pop("preset", None)
    settings = {key: _number(text, key, kinds[key], value) for key, value in given.items()}
    if preset is None:
        policy = _build(text, name, settings, k, num_experts)
    else:
        policy = _preset(text, preset, settings, k, num_experts)
    policy.validate(k, num_experts)
    return policy


def _split(text: str, known: Collection[str], arguments: str) -> dict[str, str]:
    """Each setting's text by its name."""
    settings: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in arguments.split(","))):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals or key not in known:
            raise InputError(
                f"policy {text!r}: expected settings out of {', '.join(known)} as name=value, "
                f"got {item!r}"
            )
        if key in settings:
            raise InputError(f"policy {text!r}: {key!r} is given twice")
        settings[key] = value
    return settings


def _number(text: str, key: str, kind: str, value: str) -> float:
    number = float if "float" in kind else int
    try:
        return number(value)
    except ValueError:
        wanted = "a number" if number is float else "a whole number"
        raise InputError(f"policy {text!r}: expected {key} as {wanted}, got {value!r}") from None


def _preset(text: str, name: str, settings: Mapping[str, float], k: int, num_experts: int) -> Lynx:
    """Lynx with constants that have a name, and other settings as given."""
    if name != "authors":
        raise InputError(f"policy {text!r}: expected preset=authors, got {name!r}")
    both = [key for key in ("alpha", "beta") if key in settings]
    if both:
        raise InputError(f"policy {text!r}: expected a preset or constants, got {both[0]} too")
    return dataclasses.replace(Lynx.authors(k, num_experts), **settings)  # type: ignore[arg-type]


def _build(text: str, name: str, settings: dict[str, float], k: int, num_experts: int) -> Policy:
    policy_class = _CLASSES[name]
    needed = [
        field.name
        for field in dataclasses.fields(policy_class)
        if field.default is dataclasses.MISSING
    ]
    missing = [key for key in needed if key not in settings]
    built: Policy
    if missing == needed and hasattr(policy_class, "for_model"):
        built = dataclasses.replace(policy_class.for_model(k, num_experts), **settings)
        return built
    if missing:
        raise InputError(f"policy {text!r}: expected a value for {' and '.join(missing)} too")
    built = policy_class(**settings)
    return built
