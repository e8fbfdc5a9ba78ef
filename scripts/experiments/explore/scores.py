"""What is measured of the draws of a run: modes, hops, R-hat, predictions, and how far all that is from a reference."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from literature.distances import total_variation
from torch import Tensor

from bdl.posterior.diagnostics import rhat, weight_ess
from experiments.explore.methods import Draws
from experiments.explore.problems import Explored

QUENCHED = 20  # draws of a chain whose minimum is looked for
NEAR = 0.05  # mean difference of predictions below which two minima are one mode
FEWEST = 0.02  # probability from which a minimum counts as a mode
SAME = 0.15  # share by which the virial temperature of a trial may differ from 1
BLOCK = 400  # states that are evaluated together


@dataclass(frozen=True)
class Reference:
    """Modes of a posterior, their probabilities, and its predictions.

    centres: (K, q) predictions at the minima. shares: (K + 1,) probabilities of the modes, and of all other states.
    predicted: (items, parts).
    """

    centres: Tensor
    shares: Tensor
    predicted: Tensor
    nll: float


def find_modes(problem: Explored, states: Tensor) -> Tensor:
    """(K, q) predictions at the minima of U into which at least FEWEST of the states (n, d) fall, the most first."""
    functions = problem.function(problem.quench(states))
    centres, counts = functions[:0], list[int]()
    for each in functions:
        distance = (centres - each).abs().mean(-1)
        if len(centres) and float(distance.min()) < NEAR:
            counts[int(distance.argmin())] += 1
        else:
            centres, counts = torch.cat([centres, each[None]]), [*counts, 1]
    order = sorted(range(len(counts)), key=lambda i: -counts[i])
    return centres[[i for i in order if counts[i] >= FEWEST * len(states)]]


def labels(problem: Explored, states: Tensor, centres: Tensor) -> Tensor:
    """(n,) the mode of each state (n, d), K for a state in none of them."""
    distance = torch.cdist(problem.function(problem.quench(states)), centres, p=1.0) / centres.shape[1]
    nearest = distance.min(1)
    return torch.where(nearest.values < NEAR, nearest.indices, len(centres))


def shares_of(label: Tensor, weights: Tensor, modes: int) -> Tensor:
    """(modes + 1,) the sums of normalised weights by label."""
    found = torch.zeros(modes + 1, dtype=torch.float64).index_add_(0, label.flatten(), weights.flatten().double())
    return found / found.sum()


def averages(problem: Explored, states: Tensor, weights: Tensor) -> tuple[Tensor, float]:
    """(items, parts) weighted mean prediction of states (n, d), and its NLL at the test items, nats."""
    w = (weights / weights.sum()).double()
    predicted, density = torch.zeros(()), torch.zeros(())
    for part, of_part in zip(states.split(BLOCK), w.split(BLOCK), strict=True):
        predicted = predicted + torch.einsum("n,nip->ip", of_part, problem.predict(part).double())
        density = density + of_part @ problem.densities(part).double()
    return predicted, float(-density.log().mean())


def convergence(problem: Explored, draws: Draws) -> dict[str, float]:
    """What a user sees without a reference, and by which settings are chosen.

    virial: <θ·∇U>/d under the weights, 1 for exp(-U). rhat: the 95 % quantile over predictions; weighted draws are
    drawn again by their weights within each chain.
    """
    n, c, d = draws.states.shape
    w = weights_of(draws)
    flat = draws.states.flatten(0, 1)
    products = torch.cat([(x * problem.energy_and_grad(x)[1]).sum(-1) for x in flat.split(BLOCK)]).double()
    functions = torch.cat([problem.function(x) for x in flat.split(BLOCK)]).view(n, c, -1)
    random = torch.Generator().manual_seed(0)
    again = torch.stack([functions[resampled(w[:, i], random), i] for i in range(c)])
    return {
        "virial": float((w.flatten() * products).sum() / d),
        "rhat": float(np.nanquantile(rhat(again.numpy()), 0.95)),
        "weight_ess": weight_ess(draws.log_weights.numpy()),
        "draws": n * c,
    }


def weights_of(draws: Draws) -> Tensor:
    """(n, C) normalised over all chains, which share one psi."""
    return draws.log_weights.flatten().softmax(0).view(draws.log_weights.shape)


def resampled(weights: Tensor, random: torch.Generator) -> Tensor:
    """(n,) indices in ascending order, each as often as its weight (n,) says (systematic resampling)."""
    n = len(weights)
    places = (torch.arange(n) + torch.rand((), generator=random)) / n
    return torch.searchsorted((weights / weights.sum()).cumsum(0).float(), places).clamp_max(n - 1)


def judged(numbers: dict[str, float]) -> float:
    """What settings are chosen by, the smaller the better: R-hat, if the virial temperature is that of the target."""
    wrong = max(0.0, abs(numbers["virial"] - 1) - SAME)
    return numbers["rhat"] + 3 * wrong if all(map(math.isfinite, numbers.values())) else math.inf


def measure(problem: Explored, draws: Draws, reference: Reference) -> dict[str, Any]:
    n, c, d = draws.states.shape
    w, modes = weights_of(draws), len(reference.centres)
    rows = torch.linspace(0, n - 1, min(QUENCHED, n)).long()
    label = labels(problem, draws.states[rows].reshape(-1, d), reference.centres).view(len(rows), c)
    shares = shares_of(label, w[rows], modes)
    predicted, nll = averages(problem, draws.states.reshape(-1, d), w.flatten())
    return {
        **convergence(problem, draws),
        "modes": int((torch.bincount(label.flatten(), minlength=modes + 1)[:modes] > 0).sum()),
        "hops": float((label[1:] != label[:-1]).sum() / c),
        "shares": [round(s, 4) for s in shares.tolist()],
        "mode_tv": float(total_variation(shares, reference.shares)),
        "tv": float(total_variation(predicted, reference.predicted).mean()),
        "nll": nll,
        "gradients": draws.gradients,
        "core_seconds": round(draws.core_seconds, 2),
        **draws.about,
    }
