"""Gaussian laws of many directions that batches heat unevenly, and what bdl's exact gradients would measure of them.

In coordinates θ_j = √h_j x_j of the directions j with curvature h_j, the law that was asked for has variance 1 (T = 1),
the sampled one variance T_j. Along v = Σ v_j e_j, (v·∇U)² / v'∇²U v is (w·θ)² with w_j = v_j √h_j, of norm 1.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

Heat = Literal["none", "batches", "thermostat", "subtracted"]
BATCHES = 24  # whose gradients show the noisiest directions
TOP = 6  # noisiest directions
BLOCKS = 4  # tensors
TRAJECTORIES = 20  # of the exact continuation
LENGTH = 5.0  # mean time of a trajectory, in units of 1 / √(the largest curvature): 10 steps of 0.5


@dataclass(frozen=True)
class Law:
    """d directions with curvatures from 1 to 1 / condition, evenly spaced in their logarithm.

    heat: batch noise gives direction j the temperature 1 + ratio h_j / mean h. A thermostat, or noise that is
    subtracted, divides all of them by their mean. few: (directions, T) instead: the steepest ones have this T, and the
    others what a mean of 1 leaves them. states: of a chain at which exact gradients were taken; 0 for none.
    """

    directions: int
    heat: Heat = "none"
    ratio: float = 0.0
    condition: float = 58.0
    few: tuple[int, float] | None = None
    states: int = 100

    @property
    def curvature(self) -> np.ndarray:
        """(d,) from the steepest direction on."""
        return np.geomspace(1, 1 / self.condition, self.directions)

    @property
    def temperature(self) -> np.ndarray:
        """(d,) T of the directions."""
        h = self.curvature
        if self.few:
            count, hot = self.few
            rest = (len(h) - count * hot) / (len(h) - count)
            return np.where(np.arange(len(h)) < count, hot, rest)
        t = 1 + self.ratio * h / h.mean()
        return t / t.mean() if self.heat in ("thermostat", "subtracted") else t


def means_of(law: Law) -> dict[str, float]:
    """What a run shows of the mean over directions."""
    shown = float(law.temperature.mean())
    flag = {"temperature/thermostat": 1.0} if law.heat in ("thermostat", "subtracted") else {}
    return {"t_eff": shown, "kinetic_temperature": shown, **flag}


def measured_of(law: Law, theta: np.ndarray, rng: np.random.Generator) -> dict[str, float]:
    """The metrics of exact gradients at states of chains θ (chains, draws, d), and of a continuation from the last."""
    if not law.states:
        return {}
    states = theta[:, np.linspace(0, theta.shape[1] - 1, min(law.states, theta.shape[1])).astype(int)]
    ratios, errors = _temperatures(law, states, rng)
    found, t = {}, "temperature/directions"
    for name, i in (("hottest", (ratios - 2 * errors).argmax()), ("coldest", (ratios + 2 * errors).argmin())):
        found |= {f"{t}/{name}": float(ratios[i]), f"{t}/{name}_se": float(errors[i])}
    found[f"{t}/median"] = float(np.median(ratios))
    for i in range(min(TOP, theta.shape[-1])):
        name = f"temperature/direction/noise_{i + 1}"
        found |= {name: float(ratios[i]), f"{name}_se": float(errors[i])}
    energies = np.square(theta).sum(-1) / 2
    found |= {"energy/along": float(energies.std(1, ddof=1).mean()), "energy/gaussian": math.sqrt(theta.shape[-1] / 2)}
    change = _continued(law, theta[:, -1], rng)
    error = float(change.std(ddof=1) / math.sqrt(len(change))) if len(change) > 1 else math.nan
    return found | {"energy/continuation": float(change.mean()), "energy/continuation_se": error}


def _temperatures(law: Law, states: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """T of the noisiest directions, of tensors and of all weights, and standard errors from the spread of the chains.

    For tensors and all weights by curvature, E |∇_b U|² / tr ∇²_bb U, and by coordinates, E θ_b·∇_b U / d_b.
    """
    chains, _, d = states.shape
    h, squares = law.curvature, np.square(states).mean(1)  # (d,), (chains, d)
    along = np.stack([np.square(states[c] @ _noisiest(h, rng)).mean(0) for c in range(chains)])
    block = rng.permutation(np.arange(d) % BLOCKS)
    masks = np.stack([np.ones(d, bool), *(block == b for b in range(BLOCKS) if (block == b).any())], 1)  # (d, blocks)
    by_curvature = (h * squares) @ masks / (h @ masks)
    by_coordinates = squares @ masks / masks.sum(0)
    each = np.concatenate([along, by_curvature, by_coordinates], 1)  # (chains, all directions)
    return each.mean(0), each.std(0, ddof=1) / math.sqrt(chains)


def _noisiest(h: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """(d, k) weights w of the directions in which gradients of batches vary most; their variance is the curvature."""
    gradients = np.sqrt(h) * rng.normal(size=(BATCHES, len(h)))
    v = np.linalg.svd(gradients - gradients.mean(0), full_matrices=False)[2][: min(TOP, len(h))]
    w = v * np.sqrt(h)
    return (w / np.linalg.norm(w, axis=1, keepdims=True)).T


def _continued(law: Law, theta: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """(chains,) U in the later half of some exact trajectories, on average, less U(θ) at the start, nats."""
    start, later = np.square(theta).sum(-1) / 2, []
    for i in range(TRAJECTORIES):
        angle = np.sqrt(law.curvature) * LENGTH * rng.uniform(0.5, 1.5)
        theta = theta * np.cos(angle) + rng.normal(size=theta.shape) * np.sin(angle)
        later += [np.square(theta).sum(-1) / 2] if i >= TRAJECTORIES // 2 else []
    return np.mean(later, 0) - start
