"""The policies again in plain Python loops, straight from the definition, as an oracle."""

import math

import numpy as np


def ranking(scores: np.ndarray) -> list[int]:
    """Indices by falling score; the lower index first among equals."""
    return sorted(range(len(scores)), key=lambda e: (-scores[e], e))


def top_k_union(z: np.ndarray, live: np.ndarray, k: int) -> set[int]:
    return {e for row, on in zip(z, live, strict=True) if on for e in ranking(row)[:k]}


def lynx_survivors(
    z: np.ndarray,
    live: np.ndarray,
    k: int,
    alpha: float,
    beta: int,
    floor: int,
    confidence: np.ndarray | None = None,
) -> set[int]:
    """``z`` ranks; ``confidence`` is binned, ``z`` where it is None."""
    binned = z if confidence is None else confidence
    rows = [r for r in range(len(z)) if live[r]]
    batch, experts = len(rows), range(z.shape[1])
    bins = {
        r: [
            math.ceil(max(np.float32(alpha) * (binned[r, e] - binned[r].max()), -beta))
            for e in experts
        ]
        for r in rows
    }
    survivors = top_k_union(z, live, floor)
    for r in rows:
        # Exact sums, in integers of the smallest vote, so that equal popularity is equal.
        popularity = [sum(batch ** (beta + bins[o][e]) for o in rows if o != r) for e in experts]
        key = [(-bins[r][e], -popularity[e], -z[r, e], e) for e in experts]
        usable = [e for e in experts if z[r, e] > -math.inf]
        survivors |= set(sorted(usable, key=lambda e, key=key: key[e])[:k])
    return survivors


def oea_survivors(z: np.ndarray, live: np.ndarray, k: int, k0: int) -> set[int]:
    while k0 < k and len(top_k_union(z, live, k0)) < k:
        k0 += 1
    return top_k_union(z, live, k0)


def demand_survivors(
    z: np.ndarray,
    weight: np.ndarray,
    live: np.ndarray,
    k: int,
    threshold: float,
    power: float,
    row_power: float = 0.0,
) -> tuple[set[int], set[int]]:
    """Which experts survive for certain, and which may: those within rounding of a bound too."""
    demand = dict.fromkeys(range(z.shape[1]), 0.0)
    favourites = set()
    mass = {r: sum(float(weight[r, e]) for e in ranking(z[r])[:k]) for r in np.flatnonzero(live)}
    for r in np.flatnonzero(live):
        own = ranking(z[r])[:k]
        counts = (mass[r] * len(mass) / sum(mass.values())) ** row_power
        favourites.add(own[0])
        for e in own:
            demand[e] += (float(weight[r, e]) / mass[r] * counts) ** power
    # In one list, the k-th most demanded expert sets a second bound.
    bound = min(threshold**power * len(mass), sorted(demand.values())[-k])
    sure = {e for e in demand if demand[e] > bound * (1 + 1e-5)} | favourites
    return sure, {e for e in demand if demand[e] >= bound * (1 - 1e-5)} | favourites


def remapped(z: np.ndarray, survivors: set[int], k: int) -> list[list[int]]:
    return [[e for e in ranking(row) if e in survivors][:k] for row in z]


def remapped_in_groups(z: np.ndarray, survivors: set[int], k: int) -> list[list[int]]:
    """As ``remapped``; a row that may not use k survivors takes its own best after them."""
    usable = [[e for e in ranking(row) if row[e] > -math.inf] for row in z]
    return [sorted(row, key=lambda e: e not in survivors)[:k] for row in usable]


def sparsemixer_weight(z: np.ndarray, expert: int, jitter: float) -> float:
    """The weight of an expert chosen when those that the row ranks higher are gone."""
    left = z.copy()
    for better in range(len(z)):
        if z[better] > z[expert] or (z[better] == z[expert] and better < expert):
            left[better] = -np.inf
    best = left.max()
    assert np.argmax(left) == expert
    size = np.clip(np.abs(z), best, None)
    kept = [
        e for e in range(len(z)) if np.isfinite(left[e]) and best - z[e] <= 2 * jitter * size[e]
    ]
    return 1 / np.exp(z[kept] - best).sum()


def weight_scores(z: np.ndarray, score: str, jitter: float = 0.0) -> np.ndarray:
    z = z.astype(np.float64)
    if score == "sparsemixer":
        return np.array(
            [[sparsemixer_weight(row, e, jitter) for e in range(len(row))] for row in z]
        )
    if score == "sigmoid":
        return 1 / (1 + np.exp(-z))
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def allowed(router, ranked: np.ndarray, summed: np.ndarray) -> np.ndarray:
    """Which experts of one row lie in its kept groups; ``summed`` is what "top2" adds up."""
    members = np.split(np.arange(len(ranked)), router.groups)
    if router.group_score == "max":
        score = [ranked[m].max() for m in members]
    else:
        score = [np.float32(np.sort(summed[m])[-2:].sum()) for m in members]
    kept = ranking(np.array(score))[: router.kept_groups]
    return np.isin(np.arange(len(ranked)), [e for g in kept for e in members[g]])


def weights(
    router, weight: np.ndarray, ids: np.ndarray, top_ids: np.ndarray, damping: float = 0.0
) -> np.ndarray:
    out = np.empty(ids.shape)
    for r, (row, top) in enumerate(zip(ids, top_ids, strict=True)):
        counted = np.array([weight[r, e] * (1 if e in top else 1 - damping) for e in row])
        top_sum = sum(weight[r, e] for e in top)
        lost = (counted.sum() / top_sum) ** damping
        factor = {
            "own": 1.0,
            "renormalize": lost / counted.sum(),
            "keep_sum": lost * top_sum / counted.sum(),
        }[router.weights]
        out[r] = counted * factor * router.scale
    return out
