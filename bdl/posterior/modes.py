"""How many modes did the chains see? Groups of chains whose networks put out about the same."""

from __future__ import annotations

import math

import numpy as np

MIN_DRAWS = 4  # split R-hat takes the variance of half chains, and a half needs two draws
ONE_MODE = 1.0  # standard deviations of a chain's own draws, by which the averages of two chains of one mode differ


def modes_seen(features: np.ndarray) -> float:
    """The number of groups of chains, from features (chains, draws, features), such as outputs of networks.

    Two chains belong to one group if the means of their outputs differ, as a root mean square over the outputs, by at
    most one standard deviation of a chain's own draws, or if a line of such chains joins them. Chains that are too
    short to come back to where they were may be counted apart. NaN with one chain, fewer than 4 draws, and where no
    output varies along a chain or one is not finite.
    """
    from scipy.sparse.csgraph import connected_components  # slow to import

    chains, draws = features.shape[:2]
    within = features.var(1, ddof=1).mean(0) if draws >= MIN_DRAWS else np.zeros(0)  # (features,)
    varies = within > 0
    if chains < 2 or not varies.any() or not np.isfinite(features).all():
        return math.nan
    means = features.mean(1)[:, varies] / np.sqrt(within[varies])
    distance = np.sqrt(np.square(means[:, None] - means).mean(-1))  # (chains, chains)
    return float(connected_components(distance <= ONE_MODE, directed=False, return_labels=False))
