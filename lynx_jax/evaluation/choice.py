"""Which policies to measure: a list written as text, or a grid over all of them."""

from lynx_jax.errors import InputError
from lynx_jax.policies import Policy
from lynx_jax.policy_spec import parse_policy

# Bins per logit and last bin: the authors' pairs, and between them.
_LYNX = ((0.7, 1), (1, 1), (1.5, 2), (2.25, 3), (3, 2), (3, 4))
_BUDGET_SHARES = (0.375, 0.5, 0.625, 0.75)
# Of the even share, 1/k; Demand's own is 0.36.
_THRESHOLDS = (0.32, 0.42, 0.5)


def parse_policies(text: str, k: int, num_experts: int) -> dict[str, Policy]:
    """Policies by their text, out of a list like ``off,lynx:alpha=3,beta=4,oea:k0=4``.

    An item ``name=value`` without a colon goes on with the policy before it.

    Raises:
      InputError: as ``parse_policy``, or nothing is named.
    """
    items: list[str] = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        if items and "=" in part and ":" not in part:
            items[-1] += f",{part}"
        else:
            items.append(part)
    if not items:
        raise InputError(f"--policies: expected policies separated by commas, got {text!r}")
    return {item: parse_policy(item, k, num_experts) for item in items}


def sweep(k: int, num_experts: int) -> dict[str, Policy]:
    """A grid over every policy for a router that uses k of num_experts experts."""
    lynx = [f"lynx:alpha={alpha},beta={beta}" for alpha, beta in _LYNX]
    oea = [f"oea:k0={k0}" for k0 in range(max(1, k - 6), k)]
    budgets = sorted({max(k, round(share * num_experts)) for share in _BUDGET_SHARES})
    xshare = [f"xshare:budget={budget}" for budget in budgets]
    demand = [f"demand:threshold={round(share / k, 4)}" for share in _THRESHOLDS]
    names = ["off", "lynx", *lynx, *oea, *xshare, "demand", *demand]
    return {name: parse_policy(name, k, num_experts) for name in names}
