"""Chains under an adaptive weighting on exact laws, and log psi as a function of energy written anew."""

import numpy as np
import torch

import bdl

D64 = torch.float64
STEP = 0.03


def rises(psi, rise: str = "bounded"):
    """(m - 1,) of log psi from bin to bin: 1 - θ_(J-1)/θ_J, or the difference of the logarithms, clipped or not."""
    psi = np.maximum(psi, 1e-300)
    if rise == "bounded":
        return (1 - np.minimum(psi[:-1], psi[1:]) / np.maximum(psi[:-1], psi[1:])) * np.sign(np.diff(psi))
    return np.diff(np.log(psi)).clip(*((-1, 1) if rise == "clipped" else (-np.inf, np.inf)))


def from_top(steps):
    """log psi (m,) at the bin centres, 0 in the top bin, from its rises."""
    return np.append(-np.cumsum(steps[::-1])[::-1], 0.0)


def interpolated(target, log_psi, open_top=True):
    """log psi (m,) at the bin centres as a function of u, and its slope."""
    width = (target.high - target.low) / len(log_psi)
    centres = target.low + width * (np.arange(len(log_psi)) + 0.5)

    last = np.diff(log_psi)[-1] / width * open_top

    def slope(u):
        inside = (u > centres[0]) & (u < centres[-1])
        j = ((u - centres[0]) / width).astype(int).clip(0, len(log_psi) - 2)
        return np.where(inside, np.diff(log_psi)[j] / width, np.where(u < centres[0], 0, last))

    return lambda u: np.interp(u, centres, log_psi) + last * np.maximum(u - centres[-1], 0), slope


def chains(target, weighting, count: int, seed: int, start=None, e=STEP, dynamics=bdl.SGLD(), **arguments):  # noqa: B008
    """x, the sampler and a function that makes one step, on a target in one dimension with N = 1."""
    x = torch.full((count, 1), target.start, dtype=D64) if start is None else start.clone()
    x.requires_grad_()
    settings = dict(num_data=1, lr=e, prior=bdl.Uniform(), weighting=weighting, chains=count, seed=seed) | arguments
    sampler = bdl.Sampler([x], dynamics, **settings)
    x.grad = torch.zeros_like(x)

    def closure():
        x.grad.copy_(torch.from_numpy(target.grad(x.detach().numpy())))
        return torch.from_numpy(target.energy(x.detach().numpy()))[:, 0]

    return x, sampler, lambda: sampler.step(closure)


def gaussian(weighting, d=10, count=64, T=1.0, e=0.2, start=1.0, seed=0, **arguments):
    """`count` chains on N(0, I) in d dimensions with N = 5: theta, the sampler and a function that makes one step."""
    theta = torch.full((count, d), float(start), dtype=D64, requires_grad=True)
    arguments = dict(lr=5 * e, temperature=T, prior=bdl.Uniform(), chains=count, seed=seed) | arguments
    sampler = bdl.Sampler([theta], bdl.SGLD(), num_data=5, weighting=weighting, **arguments)

    def closure():
        sampler.zero_grad()
        loss = theta.square().sum(1) / 2 / 5
        loss.sum().backward()
        return loss

    return theta, sampler, lambda: sampler.step(closure)
