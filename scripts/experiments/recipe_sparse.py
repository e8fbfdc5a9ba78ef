"""A recipe for sparse priors, beside SGHMC and SGLD: python scripts/experiment.py recipe_sparse [OUT] writes a file.

Twelve numbers y_i are observed with errors of size 1. Their means θ_i have Cauchy priors of scale 0.05, which say that
most are about 0. So the posterior of each is a spike at 0, a bump at y_i, or both, and its distribution function is
known by quadrature. The recipe is a momentum that is slow in the spike and fast in the bump. Its speed is a function
of each coordinate by itself, so that it runs on networks too.

All chains begin in the posterior. What is measured is the mean square error, over chains, of the share of states below
known quantiles, as the number of independent draws that would have the same: bias counts as an error. Each method has
the same number of trials of other settings, by chains of another seed, and is then run with its best: for as long as a
trial, and ten times as long.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
from tools.command import Said
from tools.results import RESULTS, about, save
from torch import Tensor

import bdl
from bdl.samplers.potential import BoundGradient

Y, SCALE, CHAINS = torch.linspace(0, 5.5, 12), 0.05, 256
TRIAL, STEPS = 1_000, 10_000
LEVELS = torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95])


def exact() -> tuple[Tensor, Tensor]:
    """(12, 5) quantiles of the means at LEVELS, and (CHAINS, 12) draws."""
    t = torch.linspace(-6, 6, 40_001, dtype=torch.float64)
    x = SCALE * t.sinh()  # a fine grid where the spike is
    log_density = -((x - Y.double()[:, None]) ** 2) / 2 - (1 + (x / SCALE) ** 2).log() + t.cosh().log()
    below = (log_density - log_density.amax(1, keepdim=True)).exp().cumsum(1)
    below /= below[:, -1:].clone()
    uniform = torch.rand(len(Y), CHAINS, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    levels = LEVELS.double().expand(len(Y), -1).contiguous()
    quantiles, draws = (x[torch.searchsorted(below, u).clamp_max(len(x) - 1)].float() for u in (levels, uniform))
    return quantiles, draws.T.contiguous()


def draws_worth(dynamics: Any, lr: float, steps: int, seed: int, quantiles: Tensor, start: Tensor) -> float:
    """How many independent draws have the error of one chain of so many gradients; 0 if a chain diverges."""
    theta = start.clone().requires_grad_()
    prior = bdl.StudentT(df=1.0, scale=SCALE)
    sampler = bdl.Sampler([theta], dynamics, num_data=len(Y), lr=lr, prior=prior, chains=CHAINS, seed=seed)
    here, losses, below = theta.detach(), torch.zeros(CHAINS), torch.zeros(CHAINS, *quantiles.shape)

    def gradient(out: Sequence[Tensor]) -> Tensor:
        torch.sub(here, Y, out=out[0]).div_(len(Y))
        return losses

    try:
        for _ in range(steps):
            sampler.advance(BoundGradient(gradient), measure=False)
            below += here.unsqueeze(-1) < quantiles
        sampler.check()
    except bdl.DivergedError:
        return 0.0
    square = (below / steps - LEVELS).square().mean(0)  # (3, 6)
    return float((LEVELS * (1 - LEVELS) / square).log().mean().exp())


def sparse(friction: float) -> bdl.Recipe:
    """A momentum whose speed is that of the curvature 1 + 2 / (θ² + SCALE²), of the errors and of the prior."""

    def speed(z: Any) -> Tensor:
        return (1 + 2 / (z.theta**2 + SCALE**2)) ** -0.5

    return bdl.Recipe(
        D=[[0, 0], [0, friction]],
        Q=[[0, lambda z: -speed(z)], [None, 0]],
        vectors=["r"],
    )


def trials() -> Iterator[tuple[str, Callable[[], Any], float, dict[str, float]]]:
    """Fifteen settings of each method: its name, its dynamics, lr, and both in words."""
    for lr in (0.0005 * 1.5**k for k in range(15)):
        yield "SGLD", bdl.SGLD, lr, {"lr": lr}
    for lr, a in itertools.product((0.003, 0.006, 0.012, 0.024, 0.048), (0.02, 0.1, 0.4)):
        yield "SGHMC", lambda a=a: bdl.SGHMC(friction=a), lr, {"lr": lr, "friction": a}
    for lr, c in itertools.product((0.3, 0.6, 1.2, 2.4, 4.8), (0.03, 0.1, 0.3)):
        yield "recipe", lambda c=c: sparse(c), lr, {"lr": lr, "C": c}


def measured(trial: int, steps: int) -> dict[str, Any]:
    """By method: the best of the trials, and the draws that a run of this length and a longer one are worth."""
    quantiles, start = exact()
    found: dict[str, Any] = {}
    for name, build, lr, words in trials():
        worth = draws_worth(build(), lr, trial, 1, quantiles, start)
        method = found.setdefault(name, {"trials": 0, "trial": -1.0})
        method["trials"] += 1
        if worth > method["trial"]:
            method |= {"trial": worth, "settings": words, "build": build, "lr": lr}
    for method in found.values():
        build, lr = method.pop("build"), method.pop("lr")
        for name, length in (("short", trial), ("long", steps)):
            method[name] = draws_worth(build(), lr, length, 2, quantiles, start)
    return found


def main(
    out: Path = RESULTS / "recipe",
    *,
    trial: Annotated[int, Said("gradients of a trial")] = TRIAL,
    steps: Annotated[int, Said("gradients of a run")] = STEPS,
) -> None:
    methods = measured(trial, steps)
    save(out / "sparse.json", {**about(), "chains": CHAINS, "trial": trial, "steps": steps, "methods": methods})
    for name, method in methods.items():
        print(f"{name}: {method['short']:.1f} and {method['long']:.1f} draws, {method['settings']}")
