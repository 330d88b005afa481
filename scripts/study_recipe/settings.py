"""What is measured: policies as text, and ``topk0:k0=K`` for plain top-k0."""

from __future__ import annotations

# Width of all bins together, beta / alpha, in logits.
WIDTHS = (0.3, 0.5, 0.8, 1.25, 2.0)
BETAS = (1, 2, 4)
# Of N, and of the even share 1/k.
_BUDGETS = (0.5, 0.625, 0.75, 0.875)
_THRESHOLDS = (0.298, 0.397, 0.516, 0.675)


def lynx(width: float, beta: int, floor: int) -> str:
    """Lynx whose beta bins span ``width`` logits."""
    return f"lynx:alpha={beta / width:.4g},beta={beta},floor={floor}"


def shapes(k: int) -> list[tuple[int, int]]:
    """(beta, floor) of Lynx's grid; a floor of k would save nothing."""
    found = [(1, 1), (1, 2), (2, 0), (2, 1), (2, 2), (4, 1), (4, 2)]
    return [(beta, floor) for beta, floor in found if floor < k] + [(4, 0)] * (k == 2)


def rivals(k: int, num_experts: int) -> dict[str, list[str]]:
    """Grids of the other policies, by family."""
    budgets = sorted({max(k, round(share * num_experts)) for share in _BUDGETS})
    return {
        "oea": [f"oea:k0={k0}" for k0 in range(max(1, k // 4), k)],
        "xshare": [f"xshare:budget={budget}" for budget in budgets],
        "demand": [
            f"demand:threshold={share / k:.4g},row_power=0,damping=0" for share in _THRESHOLDS
        ],
        "topk0": [f"topk0:k0={k0}" for k0 in range(-(-k // 2), k)][-3:],
    }


def family(setting: str) -> str:
    """The family that a setting belongs to."""
    return setting.split(":")[0]
