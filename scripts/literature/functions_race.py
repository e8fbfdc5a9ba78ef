"""Races on the ten functions: every method with its tuned lr, until f falls below the threshold."""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import bdl
from bdl.seeding import derive_seed, generator
from bdl.targets import PUBLISHED, Benchmark, Chains, Settings, benchmark

CHECK = 50  # steps between checks whether a race is decided
ESCAPED = 1e3  # a chain has diverged at this distance from the origin, in widths of the starting box


@dataclass(frozen=True)
class Method:
    name: str
    bins: int | None = None  # energy bins over the range of the settings
    noisy: bool = True
    published: int | None = None  # its column in the published table


METHODS = (
    Method("descent", noisy=False),
    Method("SGLD", published=0),
    Method("AWSGLD, 10 bins", 10, published=1),
    Method("AWSGLD, 100 bins", 100, published=2),
    Method("AWSGLD, 1000 bins", 1000, published=3),
)


@dataclass(frozen=True)
class Phase:
    name: str  # seeds the starts and the noise
    cap: int  # iterations after which a chain has failed
    repeats: int


@dataclass(frozen=True)
class Plan:
    """Sizes of a run."""

    factors: tuple[float, ...]  # multiples of the published lr to choose from
    tuning: Phase
    report: Phase


FULL = Plan((0.3, 1, 2, 3, 5, 10, 30), Phase("tuning", 10_000, 6), Phase("report", 20_000, 40))
QUICK = Plan((1, 3), Phase("tuning", 60, 2), Phase("report", 100, 4))


@dataclass(frozen=True)
class Job:
    name: str  # a key of FUNCTIONS
    plan: Plan
    seed: int


Lane = tuple[Method, float]  # a method, and its lr as a multiple of the published one
Outcome = dict[str, tuple[float, Tensor]]  # method -> its factor of lr, (repeats,) iterations


def spread(jobs: list[Job], workers: int) -> Iterator[Outcome]:
    """`tune_and_report` of each job, in order, on that many processes."""
    if workers == 1:
        yield from map(tune_and_report, jobs)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, torch.set_num_threads, (1,)) as pool:
        yield from pool.map(tune_and_report, jobs)


def tune_and_report(job: Job) -> Outcome:
    """Tune lr for every method, then run it on other starts and with other noise."""
    plan = job.plan
    trials = race_all(job, [(m, factor) for m in METHODS for factor in plan.factors], plan.tuning)
    chosen = [(m, best(m, trials, plan.tuning.cap)) for m in METHODS]
    results = race_all(job, chosen, plan.report)
    return {m.name: (factor, results[m, factor]) for m, factor in chosen}


def best(method: Method, trials: dict[Lane, Tensor], cap: int) -> float:
    """The factor with the fewest iterations on average, a failure counted as `cap`; on a tie, the one nearest to 1."""
    factors = [factor for m, factor in trials if m is method]
    return min(factors, key=lambda f: (trials[method, f].clamp_max(cap).mean().item(), abs(math.log(f))))


def race_all(job: Job, lanes: list[Lane], phase: Phase) -> dict[Lane, Tensor]:
    """(repeats,) iterations of every lane. Lanes with the same bins share a sampler; all have the same starts."""
    finished: dict[Lane, Tensor] = {}
    function, settings = benchmark(job.name, as_published=True), PUBLISHED[job.name]
    start = settings.draw(phase.repeats, function.dim, generator("cpu", "functions", phase.name, job.name, job.seed))
    for bins in dict.fromkeys(m.bins for m in METHODS):
        together = [lane for lane in lanes if lane[0].bins == bins]
        seed = derive_seed("functions", phase.name, job.name, bins or 0, job.seed)
        chains = build(function, settings, together, start, seed)
        iterations = race(chains, settings, [m for m, _ in together], phase)
        finished.update(zip(together, iterations, strict=True))
    return finished


def build(function: Benchmark, settings: Settings, lanes: list[Lane], start: Tensor, seed: int) -> Chains:
    """One chain per lane and start, lane by lane."""

    def per_chain(values: Iterable[float]) -> Tensor:
        return torch.tensor(list(values), dtype=start.dtype).repeat_interleave(len(start))

    weighting: Any = bdl.Flat()
    temperature: Any = per_chain(settings.temperature * m.noisy for m, _ in lanes)
    bins = lanes[0][0].bins
    if bins is not None:
        rate = bdl.RobbinsMonro(settings.gain)
        weighting = bdl.AdaptiveWeight(settings.zeta, *settings.energies, bins, rate=rate)
        temperature = settings.temperature
    return Chains(
        function, bdl.SGLD(), start.repeat(len(lanes), 1), lr=settings.lr * per_chain(f for _, f in lanes),
        temperature=temperature, weighting=weighting, seed=seed, gradient_noise=settings.gradient_noise,
        box=settings.start if settings.reject else None,
    )  # fmt: skip


def race(chains: Chains, settings: Settings, methods: list[Method], phase: Phase) -> Tensor:
    """(lanes, repeats) iterations until f < threshold, infinite for chains that diverge or have not reached it.

    The race ends at the cap, or when no lane can overtake the best one of its method any more.
    """
    iterations = torch.full((len(chains.theta),), math.inf, dtype=chains.theta.dtype)
    running = torch.ones(len(iterations), dtype=torch.bool)
    far = ESCAPED * (settings.start[1] - settings.start[0])
    for k in range(phase.cap + 1):
        chains.step()
        energy = chains.sampler.energy  # after k iterations
        assert energy is not None
        there = running & (energy < settings.threshold)
        iterations[there] = k
        stopped = running & (there | ~(chains.theta.abs().amax(1) < far))
        if stopped.any():
            running &= ~stopped
            park(chains, stopped)
        if k % CHECK == 0 and decided(iterations, running, methods, phase, k):
            break
    return iterations.view(len(methods), phase.repeats)


def park(chains: Chains, which: Tensor) -> None:
    """Take chains out of the race. They stay at the minimum, where their energies are finite and in range."""
    chains.sampler.param_groups[0]["lr"][which] = 0.0
    chains.theta[which] = chains.target.minimiser()


def decided(iterations: Tensor, running: Tensor, methods: list[Method], phase: Phase, k: int) -> bool:
    """Whether the best lane of every method is known and has finished."""
    least = torch.where(running, k, iterations.clamp_max(phase.cap)).view(-1, phase.repeats).mean(1)
    finished = ~running.view(-1, phase.repeats).any(1)
    for method in set(methods):
        lanes = torch.tensor([m is method for m in methods])
        if not (lanes & finished).any() or least[lanes & finished].min() > least[lanes].min():
            return False
    return True
