"""The temperature of a law along directions, by exact gradients.

For exp(-U/T), any fixed vector v and any fixed block of coordinates b, partial integration gives

    E (v·∇U)² = T E v'∇²U v,    E |∇_b U|² = T E tr ∇²_bb U,    E (θ_b - c)·∇_b U = T d_b.

The first two look along the directions in which U is steep, the third at every coordinate alike. None of them is what a
thermostat controls, which sets the mean of |m|².

v'∇²U v is a difference of gradients at θ ± ε v. At kinks, as ReLU makes them, second derivatives miss what differences
see. Several directions share two gradients: along u = Σ s_j ε_j v_j with random signs s_j, the mean of
s_j v_j·(∇U(θ + u) - ∇U(θ - u)) / 2 ε_j is v_j'∇²U v_j (Hutchinson 1989).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bdl.devices import widest

STEP = 0.3  # standard deviations of the law by which θ moves along a direction, where U is steepest
OPEN = 0.25  # relative standard error of a curvature beyond which nothing is divided by it
VARIANCE_ROUNDING = 1e-6  # of the largest variance of batch gradients; below it a direction is made of rounding
CHAIN_PARTS = 8  # Parts of a single chain, whose means tell an error
GradientAt = Callable[[Tensor], Tensor]  # θ (C, d) -> ∇U (C, d), nats
Pair = tuple[Tensor, Tensor]  # two estimates (C, d) of ∇U at one θ, whose noise is independent


@dataclass(frozen=True)
class DirectionReading:
    """What one direction shows at one state of every chain: T is the mean of `square` over that of `curvature`."""

    square: Tensor  # (C, directions) such as (v·∇U)² or θ_b·∇_b U, nats
    curvature: Tensor  # (C, directions) such as v'∇²U v, or d_b


@dataclass(frozen=True)
class DirectionTemperature:
    """The temperature along one direction, over T; error: its standard error, NaN where it is not known."""

    name: str
    ratio: float
    error: float


def top_directions(gradients: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """(C, k, d) orthonormal directions in which the gradients (M, C, d) of batches vary most; (C, k) the variances.

    Gradients of a small model may vary in few directions: k is then their number, at most `most`.

    The variances are too large for the first of few batches: they serve to choose a step, and T is not read from them.
    """
    deviations = (gradients - gradients.mean(0)).transpose(0, 1)  # (C, M, d)
    gram = (deviations @ deviations.mT).cpu().double() / (len(gradients) - 1)
    values, vectors = torch.linalg.eigh(gram)
    varying = int((values > VARIANCE_ROUNDING * values[:, -1:]).sum(1).min())
    k = max(1, min(most, len(gradients) // 2, varying))
    values, vectors = values[:, -k:].flip(-1), vectors[..., -k:].flip(-1)
    along = vectors.mT.to(deviations) @ deviations
    return along / torch.linalg.vector_norm(along, dim=-1, keepdim=True).clamp_min(1e-30), values.clamp_min(1e-30)


def read_directions(
    gradient: GradientAt, here: Pair, theta: Tensor, temperature: Tensor, v: Tensor, steep: Tensor, signs: Tensor
) -> DirectionReading:
    """The reading along directions v (C, k, d) at θ (C, d), from `here`, the gradients there, and two more.

    temperature: (C,). steep: (C, k) about the curvature along each. signs: (C, k) of ±1.
    """
    step = STEP * (temperature[:, None] / steep).sqrt()
    u = torch.einsum("ck,ckd->cd", (signs * step).to(v), v)
    a, b = (_along(v, g) for g in here)
    change = gradient(theta + u) - gradient(theta - u)
    return DirectionReading(a * b, signs * _along(v, change) / (2 * step))


def _along(v: Tensor, g: Tensor) -> Tensor:
    """(C, k) v·g, double, on the CPU."""
    return torch.einsum("ckd,cd->ck", v, g).cpu().double()


def read_blocks(
    gradient: GradientAt, here: Pair, theta: Tensor, offset: Tensor, temperature: Tensor, steepest: Tensor,
    signs: Tensor, split: Callable[[Tensor], list[Tensor]],
) -> tuple[DirectionReading, DirectionReading]:  # fmt: skip
    """The readings of all coordinates together and of each block, by curvature and by coordinates.

    here: the gradients at θ; two more are taken. offset: (C, d) θ less a constant vector, around which the law lies.
    steepest: (C,) the largest curvature. signs: (C, d) of ±1. split: the blocks of (C, d), not all coordinates need be
    in one.
    """
    step = STEP * (temperature / steepest).sqrt()
    u = signs * step[:, None].to(signs)
    a, b = here
    change = gradient(theta + u) - gradient(theta - u)
    square, bend = _sums(a * b, split), _sums(signs * change, split) / (2 * step[:, None])
    return DirectionReading(square, bend), DirectionReading(_sums(offset * a, split), _sums(torch.ones_like(a), split))


def _sums(x: Tensor, split: Callable[[Tensor], list[Tensor]]) -> Tensor:
    """(C, 1 + blocks) the sums over all coordinates, and over those of each block, double."""
    return torch.stack([part.sum(-1, dtype=widest(x.device)).cpu().double() for part in (x, *split(x))], -1)


def temperatures(
    names: Sequence[str], readings: Sequence[DirectionReading], temperature: Tensor
) -> list[DirectionTemperature]:
    """The temperature over T along each direction, from the readings of several states.

    A direction whose curvature or temperature these states leave open is left out: one of few coordinates, for example.

    temperature: (states, C) T of every reading.
    """
    square = torch.stack([r.square for r in readings]) / temperature[..., None]
    curvature = torch.stack([r.curvature for r in readings])
    square, curvature = (x if x.shape[1] > 1 else _as_chains(x) for x in (square, curvature))
    bend = curvature.mean((0, 1))
    ratio = square.mean((0, 1)) / bend
    error = _error(square - ratio * curvature) / bend.abs()
    known = (_error(curvature) <= OPEN * bend) & (error <= ratio.abs().clamp_min(1.0)) & error.isfinite()
    found = zip(names, ratio.tolist(), error.tolist(), known.tolist(), strict=True)
    return [DirectionTemperature(name, value, e) for name, value, e, is_known in found if is_known]


def _error(x: Tensor) -> Tensor:
    """(directions,) the standard error of the mean of x (states, C, directions), from the differences between chains.

    Few chains may agree by chance: it is no smaller than if all states were independent. Chains may share the rows by
    which a state is read: it is no smaller than the differences between states say.
    """
    states, chains = x.shape[:2]
    between = x.mean(0).std(0) / math.sqrt(chains)
    together = x.flatten(0, 1).std(0) / math.sqrt(states * chains)
    shared = x.mean(1).std(0) / math.sqrt(states) if states > 1 else torch.zeros_like(together)
    return torch.stack([between, shared, together]).amax(0)


def _as_chains(x: Tensor) -> Tensor:
    """The states (n, 1, directions) of a single chain as CHAIN_PARTS chains of fewer states each."""
    parts = min(CHAIN_PARTS, len(x))
    return x[len(x) % parts :].reshape(parts, -1, x.shape[-1]).transpose(0, 1)
