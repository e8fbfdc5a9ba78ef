"""Do predictions still drift, and is there a direction along which chains hardly move? The slow waves of draws tell.

A chain of n draws x_t is written in the cosines of the discrete cosine transform, a_0 = Σ x_t / √n and

    a_j = √(2/n) Σ_t x_t cos(π j (t + 1/2)/n),   j = 1, 2, ...

The variance of a_j is the spectral density of the chain near frequency j/2n. Where chains have many independent draws
each it is the same for all small j, and the a_j are independent. A drift shared by all chains is a mean of a_1; a
direction that moves like a random walk has most of its variance in the first few a_j.
"""

from __future__ import annotations

import math

import numpy as np

WAVES = 4  # j = 0 ... 4 tell the noise of a drift: 18 degrees of freedom with 4 chains
WALK = 3  # a random walk has 9/10 of its variance in j = 0 ... 3, a chain of 25 independent draws 4/25
LEARNT = 10  # waves from which slow directions are learnt
COMPONENTS = 40  # principal components at most, in the order of their variance
SLOW_CANDIDATES = 3  # slowest directions of one half of the chains that the other half judges
DRIFT_DRAWS = 20  # draws of a chain
# Rounding of an output in float32, as a standard deviation in units of its largest value: it is uniform, and the sums
# of a network lose about 8 of the last bits. Outputs may arrive in float64, so their type does not tell the precision
FLOAT32_ROUNDING = 8 * float(np.finfo(np.float32).eps) / math.sqrt(12)
ROUNDED_SHARE = 0.01  # share of an output's variance that may be rounding
STATIONARITY_NAMES = (
    "drift/mean",
    "drift/mean_most",
    "drift/mean_p",
    "drift/spread",
    "drift/spread_p",
    "slow/waves",
    "slow/share",
)


def stationarity(features: np.ndarray) -> dict[str, float]:
    """Drifts and slow directions of features (chains, draws, features), such as outputs of networks, flat by name.

        drift/mean      change of the features over the run, in standard deviations, root mean square of all features;
                        drift/mean_most = its upper 95 % bound, drift/mean_p = the p-value of "no change"
        drift/spread    the same of the squared distances from the mean, in their own standard deviations
        slow/waves      share of the variance in waves 0 to 3 along the slowest direction; slow/share = the share of the
                        features' variance that this direction holds

    NaN with one chain or fewer than 20 draws of each, and where features are not finite; the slow direction, which one
    half of the chains shows and the other half judges, needs 4 chains.
    """
    chains, draws = features.shape[:2]
    x = features[:, :, np.isfinite(features).all((0, 1)) & (np.ptp(features, (0, 1)) > 0)].astype(float)
    if chains < 2 or draws < DRIFT_DRAWS or x.shape[2] == 0:
        return dict.fromkeys(STATIONARITY_NAMES, math.nan)
    largest, std = np.abs(x).max((0, 1)), x.std((0, 1))
    x, rounding = (x - x.mean((0, 1))) / std, np.square(FLOAT32_ROUNDING * largest / std)
    squares = np.square(x)
    spread = _drift((squares - 1) / np.maximum(squares.std((0, 1)), np.finfo(float).tiny))
    values = (*_drift(x), spread[0], spread[2], *_slowest(x, rounding))
    return dict(zip(STATIONARITY_NAMES, values, strict=True))


def waves(x: np.ndarray, count: int) -> np.ndarray:
    """(chains, count, ...) the coefficients a_0, a_1, ... of chains (chains, draws, ...)."""
    draws = x.shape[1]
    cosines = math.sqrt(2 / draws) * np.cos(np.pi * np.arange(count)[:, None] * (np.arange(draws) + 0.5) / draws)
    cosines[0] /= math.sqrt(2)
    return np.moveaxis(np.tensordot(cosines, x, (1, 1)), 1, 0)


def _drift(x: np.ndarray) -> tuple[float, float, float]:
    """(change over the run, its upper bound, p-value) of the mean over chains; features have mean 0 and variance 1.

    The squared norm of the mean of a_1, over the squared norm of the noise, follows F(r, νr), where r is the effective
    number of dimensions (tr S)²/tr S² of the noise's covariance S, and ν its degrees of freedom (Dempster 1958).
    """
    from scipy.special import fdtrc  # scipy.stats is slow to import

    chains, draws, features = x.shape
    a = waves(x, WAVES + 1)
    mean = a[:, 1].mean(0)
    noise = np.concatenate([a[:, 0] - a[:, 0].mean(0), a[:, 1] - mean, *a[:, 2:].swapaxes(0, 1)])
    nu = 2 * (chains - 1) + (WAVES - 1) * chains
    gram = noise @ noise.T / nu
    trace = np.trace(gram)
    trace_of_square = (np.square(gram).sum() - trace**2 / nu) * nu**2 / ((nu - 1) * (nu + 2))  # without its bias
    r = float(np.clip(trace**2 / max(trace_of_square, np.finfo(float).tiny), 1, features))
    ratio = chains * mean @ mean / trace
    of_ramp = abs(waves(np.linspace(0, 1, draws)[None], 2)[0, 1])  # a_1 of a change by 1
    unit = math.sqrt(trace / chains / features) / of_ramp
    # χ² laws with r degrees of freedom and this noncentrality fall below ratio r in 5 of 100 draws, or fewer. For the
    # square root is nearly normal, with mean √(r + noncentrality - 1/2) and a standard deviation of 1 at most
    most = max((math.sqrt(ratio * r) + 1.645) ** 2 - r + 0.5, 0.0)
    return unit * math.sqrt(max(ratio - 1, 0)), unit * math.sqrt(most / r), float(fdtrc(r, nu * r, ratio))


def _slowest(x: np.ndarray, rounding: np.ndarray) -> tuple[float, float]:
    """(share of the variance in the first waves along the slowest direction, share of all variance that it holds).

    rounding: (features,) its shares of their variances. Principal components that it can make show nothing of chains.
    """
    x, rounding = x[:, :, rounding < ROUNDED_SHARE], rounding[rounding < ROUNDED_SHARE]
    chains, draws, features = x.shape
    if chains < 4 or features == 0:
        return math.nan, math.nan
    flat = x.reshape(-1, features)
    variances, axes = np.linalg.eigh(flat.T @ flat / len(flat))
    # Independent noise of variance v has covariances with eigenvalues up to v (1 + √(features/n))² (Marchenko & Pastur)
    least = max(1e-9 * features, rounding.max() * (1 + math.sqrt(features / len(flat))) ** 2)
    kept = [i for i in range(features)[: -COMPONENTS - 1 : -1] if variances[i] > least]
    y = (flat @ axes[:, kept] / np.sqrt(variances[kept])).reshape(chains, draws, -1)
    a = waves(y, min(LEARNT, draws // 4) + 1)
    even, odd, shares = np.arange(0, chains, 2), np.arange(1, chains, 2), variances[kept] / features
    return max(_judged(y, a, even, odd, shares), _judged(y, a, odd, even, shares))


def _judged(
    y: np.ndarray, a: np.ndarray, learn: np.ndarray, judge: np.ndarray, shares: np.ndarray
) -> tuple[float, float]:
    """The slowest directions of the chains `learn`, on the chains `judge`: the first of `_slowest`."""
    size = y.shape[2]
    total = np.einsum("ctk,ctl->kl", y[learn], y[learn])
    values, vectors = np.linalg.eigh(total)
    white = vectors / np.sqrt(np.maximum(values, 1e-9 * values[-1]))
    slow = a[learn].reshape(-1, size) @ white
    directions = white @ np.linalg.eigh(slow.T @ slow)[1][:, -SLOW_CANDIDATES:]
    low = np.square(a[judge][:, : WALK + 1] @ directions).sum((0, 1)) / np.square(y[judge] @ directions).sum((0, 1))
    worst = int(low.argmax())
    unit = np.square(directions[:, worst]) / np.square(directions[:, worst]).sum()
    return float(low[worst]), float(shares @ unit)
