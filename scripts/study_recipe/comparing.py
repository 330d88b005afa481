"""Two families at equal distinct experts, paired window by window."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np

from study_recipe.measuring import Measured


def at_experts(members: Iterable[Measured], experts: float) -> np.ndarray | None:
    """Losses [windows] of a family where it reads ``experts``, between its two nearest members.

    What lies between stands for taking one member in some of the steps and the other in the rest.
    None where the family does not reach that number.
    """
    ordered = sorted(members, key=lambda member: member.experts)
    for low, high in pairwise(ordered):
        if low.experts <= experts <= high.experts:
            part = (experts - low.experts) / (high.experts - low.experts or 1)
            return (1 - part) * low.loss + part * high.loss
    return None
