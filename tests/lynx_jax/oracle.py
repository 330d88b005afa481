"""The policies again in plain Python loops, straight from the definition, as an oracle."""

import math

import numpy as np


def ranking(scores: np.ndarray) -> list[int]:
    """Indices by falling score; the lower index first among equals."""
    return sorted(range(len(scores)), key=lambda e: (-scores[e], e))


def top_k_union(z: np.ndarray, live: np.ndarray, k: int) -> set[int]:
    return {e for row, on in zip(z, live, strict=True) if on for e in ranking(row)[:k]}


def lynx_survivors(
    z: np.ndarray, live: np.ndarray, k: int, alpha: float, beta: int, floor: int
) -> set[int]:
    rows = [r for r in range(len(z)) if live[r]]
    batch, experts = len(rows), range(z.shape[1])
    bins = {
        r: [max(math.ceil(np.float32(alpha) * (z[r, e] - z[r].max())), -beta) for e in experts]
        for r in rows
    }
    survivors = top_k_union(z, live, floor)
    for r in rows:
        # Exact sums, in integers of the smallest vote, so that equal popularity is equal.
        popularity = [sum(batch ** (beta + bins[o][e]) for o in rows if o != r) for e in experts]
        key = [(-bins[r][e], -popularity[e], -z[r, e], e) for e in experts]
        survivors |= set(sorted(experts, key=lambda e, key=key: key[e])[:k])
    return survivors


def oea_survivors(z: np.ndarray, live: np.ndarray, k: int, k0: int) -> set[int]:
    while k0 < k and len(top_k_union(z, live, k0)) < k:
        k0 += 1
    return top_k_union(z, live, k0)


def remapped(z: np.ndarray, survivors: set[int], k: int) -> list[list[int]]:
    return [[e for e in ranking(row) if e in survivors][:k] for row in z]
