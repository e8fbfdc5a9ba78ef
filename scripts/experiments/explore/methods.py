"""The samplers that explore, with four candidate settings each, and how their chains run on a problem."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import bdl
from bdl.schedules import Cycle, CyclicalCosine, WhileSampling
from experiments.explore.problems import Explored

CHAINS, KEPT = 8, 100  # chains; draws of each
BINS, PILOT = 60, 0.1  # bins of a weighting; share of the gradients before it, which finds their range
HOT = (1.5, 2.0, 4.0, 8.0)  # temperatures of methods that heat


@dataclass
class Draws:
    """What a run kept: (n, C, d) states, their log weights (n, C) towards exp(-U), and what they cost."""

    states: Tensor
    log_weights: Tensor
    gradients: int  # over all the data, of all chains
    core_seconds: float
    about: dict[str, Any]


Run = Callable[[Explored, float, int, int], Draws]  # (problem, lr, gradients of a chain, seed)


def keep(chains: Any, due: range | list[int], steps: int, each: Callable[[int], None]) -> tuple[Tensor, Tensor]:
    """Run the steps; (n, C', d) states before those that are due, and the log weights (n, C') that belong to them."""
    wanted, states, logs = set(due), [], []
    rows = chains.sampler.target_chains
    for k in range(steps):
        each(k)
        before = chains.theta[rows].clone() if k in wanted else None
        chains.step()
        if before is not None:
            states.append(before)
            logs.append(torch.as_tensor(chains.sampler.log_weight)[rows].double().clone())
    return torch.stack(states), torch.stack(logs)


def late(steps: int, counts: Callable[[int], bool] = lambda k: True) -> list[int]:
    """KEPT of the steps of the second half that count."""
    there = [k for k in range(steps // 2, steps) if counts(k)]
    return there[:: max(1, len(there) // KEPT)][:KEPT]


def plain(factor: float, exchange: float | None = None) -> Run:
    """SGHMC at a multiple of lr; with exchange, over a ladder of four temperatures from 1 to `exchange`."""

    def run(problem: Explored, lr: float, gradients: int, seed: int) -> Draws:
        began, options = time.process_time(), {}
        if exchange is not None:
            ladder = [exchange ** (r / 3) for r in range(4)]
            options["exchange"] = bdl.Exchange(ladder=ladder, every=10, energy_var=0.0)
        start = problem.start(CHAINS, seed)
        chains = problem.chains(bdl.SGHMC(), start, lr=factor * lr, seed=seed, **options)
        kept = keep(chains, late(gradients), gradients, lambda k: None)
        chains.sampler.check()
        rates = chains.sampler.swap_rates
        about = {} if rates is None else {"swap_rates": [round(r, 3) for r in rates.tolist()]}
        return Draws(*kept, gradients * CHAINS, time.process_time() - began, about)

    return run


def cyclical(cycles: int, factor: float) -> Run:
    """SGHMC whose lr falls from a peak in every cycle, without noise while it explores (Zhang et al. 2020)."""

    def run(problem: Explored, lr: float, gradients: int, seed: int) -> Draws:
        began, cycle = time.process_time(), Cycle(gradients, cycles, explore=0.8)
        temperature = WhileSampling(1.0, cycle)
        chains = problem.chains(bdl.SGHMC(), problem.start(CHAINS, seed), lr=factor * lr, seed=seed)
        group = chains.sampler.param_groups[0]
        rate = CyclicalCosine(group["lr"], cycle)

        def follow(k: int) -> None:
            group["lr"], group["temperature"] = rate(k), temperature(k)

        kept = keep(chains, late(gradients, cycle.sampling), gradients, follow)
        chains.sampler.check()
        return Draws(*kept, gradients * CHAINS, time.process_time() - began, {})

    return run


def mclmc(energy_var: float) -> Run:
    """Microcanonical Langevin, which takes two gradients a step and finds its own step size."""

    def run(problem: Explored, lr: float, gradients: int, seed: int) -> Draws:
        began, steps = time.process_time(), gradients // 2
        dynamics = bdl.MCLMC(energy_var=energy_var, energy_var_start=0.5, adapt_steps=int(0.4 * steps))
        chains = problem.chains(dynamics, problem.start(CHAINS, seed), lr=lr, seed=seed)
        kept = keep(chains, late(steps), steps, lambda k: None)
        chains.sampler.check()
        return Draws(*kept, 2 * steps * CHAINS, time.process_time() - began, {})

    return run


def weighted(kind: type, k: float) -> Run:
    """SGHMC at T = k, weighted with zeta = 1 over the energies from T = 1 to T = k, with weights back to T = 1.

    A plain run at T = 1 finds the lower end of the bins; the upper end follows from (k - 1) d / 2, the mean rise of U.
    """

    def run(problem: Explored, lr: float, gradients: int, seed: int) -> Draws:
        began, first = time.process_time(), int(PILOT * gradients)
        pilot = problem.chains(bdl.SGHMC(), problem.start(CHAINS, seed), lr=lr, seed=seed)
        seen = torch.stack([_energy_after_step(pilot) for _ in range(first)])[first // 2 :]
        spread = (problem.dim / 2) ** 0.5
        low = float(seen.median()) - 3 * spread
        high = float(seen.median()) + (k - 1) * problem.dim / 2 + 3 * k * spread
        edges = torch.linspace(low, high, BINS + 1).tolist()
        weighting = kind(zeta=1.0, target=1.0, edges=edges, shared=True)
        chains = problem.chains(
            bdl.SGHMC(), pilot.theta, lr=lr / k, temperature=k, weighting=weighting, seed=seed + 1000
        )
        steps = gradients - first
        frozen = []  # whether psi had settled when the first draw was kept

        def freeze(k: int) -> None:
            if k == steps // 2:
                frozen.append(chains.sampler.snapshot(full_energy=False).psi_frozen)

        kept = keep(chains, late(steps), steps, freeze)
        chains.sampler.check()
        about = {"edges": [round(low, 1), round(high, 1)], "settled": frozen[0]}
        return Draws(*kept, gradients * CHAINS, time.process_time() - began, about)

    return run


def _energy_after_step(chains: Any) -> Tensor:
    chains.step()
    energy = chains.sampler.energy
    assert energy is not None
    return energy.clone()


@dataclass(frozen=True)
class Explorer:
    """A method: what people read, and its candidates by the words that tell their settings."""

    title: str
    candidates: dict[str, Run]


METHODS: dict[str, Explorer] = {
    "plain": Explorer("plain SGHMC", {f"lr x {f:g}": plain(f) for f in (1.0, 0.5, 0.25, 0.125)}),
    "weighted": Explorer(
        "weighted, with target",
        {f"{k:g} T": weighted(bdl.AdaptiveWeight, k) for k in HOT},
    ),
    "contour": Explorer(
        "contour, with target",
        {f"{k:g} T": weighted(bdl.Contour, k) for k in HOT},
    ),
    "exchange": Explorer(
        "replica exchange", {f"up to {k:g} T": plain(1.0, k) for k in HOT}),
    "cyclical": Explorer(
        "cyclical", {f"{c} cycles, lr x {f:g}": cyclical(c, f) for c, f in ((4, 1.0), (4, 4.0), (16, 1.0), (16, 4.0))}
    ),
    "mclmc": Explorer("MCLMC", {f"energy_var {v:g}": mclmc(v) for v in (0.1, 0.01, 0.001, 0.0005)}),
}  # fmt: skip
