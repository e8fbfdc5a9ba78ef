"""Races of AWSGLD as its author's public code has it: the multiplier is a step function of the energy."""

import math

import torch
from torch import Tensor

from literature.targets import Benchmark, Settings

START = 0.1  # θ of every bin before any energy
FAR = 1e3  # a chain has diverged at this distance from the origin, in widths of the starting box

# ζ of the code's settings for 10 bins where it differs from that for 100 bins. There are none for 1000 bins.
ZETA_OF_TEN = {"rosenbrock": 100.0, "zakharov": 1.0, "powell": 500.0, "dixon_price": 100.0, "levy": 100.0}


def race_of_code(
    function: Benchmark, settings: Settings, zeta: float, bins: int, start: Tensor, cap: int, noise: torch.Generator
) -> Tensor:
    """(repeats,) iterations until f < threshold, infinite where that takes more than `cap` or the chain diverges.

        x <- x - lr (1 + ζT (log θ_J - log θ_(J-1)) / Δu) g + sqrt(2 lr T) z,    J = bin of f(x)
        θ_i <- θ_i + γ θ_J (1{i >= J} - θ_i),    γ = min(1, c / (k^.75 + 1000))

    J counts from 1, and the bins 0, ..., m - 1 have one below f = 0, which no energy reaches. Its θ therefore decays to
    0, and the multiplier at the lowest energies has no bound. start: (repeats, d).
    """
    x, repeats = start.clone(), torch.arange(len(start))
    width = (settings.energies[1] - settings.energies[0]) / bins
    theta, j = start.new_full((len(x), bins), START), torch.full((len(x),), bins - 1)
    iterations = start.new_full((len(x),), math.inf)
    running = torch.ones(len(x), dtype=torch.bool)
    gradient = function.energy_and_grad(x)[1]
    for k in range(1, cap + 1):
        rise = theta[repeats, j].log() - theta[repeats, j - 1].log()
        multiplier = 1 + zeta * settings.temperature * rise / width
        x = torch.where(running[:, None], _proposal(x, gradient, multiplier, settings, noise), x)
        f, gradient = function.energy_and_grad(x)
        j = (f.nan_to_num(math.inf).clamp(0, bins * width) / width + 1).long().clamp(1, bins - 1)
        reached = (torch.arange(bins) >= j[:, None]).to(theta)
        gamma = min(1.0, settings.gain / (k**0.75 + 1000))
        theta += gamma * theta[repeats, j, None] * (reached - theta)
        there = running & (f < settings.threshold)
        iterations[there] = k
        running &= ~there & (x.abs().amax(1) < FAR * (settings.start[1] - settings.start[0]))
        if not running.any():
            break
    return iterations


def _proposal(x: Tensor, gradient: Tensor, multiplier: Tensor, settings: Settings, noise: torch.Generator) -> Tensor:
    """(repeats, d) one step of every chain; one that would leave the box stays, if the settings say so."""
    z = torch.randn(2, *x.shape, generator=noise, dtype=x.dtype)
    noisy = gradient + settings.gradient_noise * z[0]
    moved = x - settings.lr * multiplier[:, None] * noisy + math.sqrt(2 * settings.lr * settings.temperature) * z[1]
    if not settings.reject:
        return moved
    low, high = settings.start
    return torch.where(((moved >= low) & (moved <= high)).all(1, keepdim=True), moved, x)
