"""002's table: iterations that descent, SGLD and AWSGLD need to come below a threshold on ten functions."""

from __future__ import annotations

import math
import multiprocessing
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

import bdl
from bdl.seeding import derive_seed, generator
from bdl.targets import FUNCTIONS, PUBLISHED, Benchmark, Chains, Settings, benchmark
from literature.experiment import Context, Result, Table, experiment
from literature.figures import BLUE, GREEN, GREY, ORANGE, RED, canvas, label

CHECK = 50  # steps between looks at whether a race is decided
ESCAPED = 1e3  # widths of the starting box from the origin: further out a chain has diverged


@dataclass(frozen=True)
class Method:
    name: str
    bins: int | None = None  # of energy, over the range that the settings give
    noisy: bool = True
    published: int | None = None  # column of the published table


METHODS = (
    Method("descent", noisy=False),
    Method("SGLD", published=0),
    Method("AWSGLD, 10 bins", 10, published=1),
    Method("AWSGLD, 100 bins", 100, published=2),
    Method("AWSGLD, 1000 bins", 1000, published=3),
)
COLOURS = (GREY, BLUE, ORANGE, RED, GREEN)


@dataclass(frozen=True)
class Phase:
    name: str  # starts and noise are drawn by it
    cap: int  # iterations after which a chain has failed
    repeats: int


@dataclass(frozen=True)
class Plan:
    """Sizes of a run."""

    factors: tuple[float, ...]  # of the published lr, to choose from
    tuning: Phase
    report: Phase


FULL = Plan((0.3, 1, 2, 3, 5, 10, 30), Phase("tuning", 10_000, 6), Phase("report", 20_000, 40))
QUICK = Plan((1, 3), Phase("tuning", 60, 2), Phase("report", 100, 4))


@dataclass(frozen=True)
class Job:
    name: str  # of the function
    plan: Plan
    seed: int


Lane = tuple[Method, float]  # who runs, and its lr as a multiple of the published one
Found = dict[str, tuple[float, Tensor]]  # method -> factor of lr, (repeats,) iterations


@experiment(
    "functions", "Liang 2024, slides on adaptively weighted SG-MCMC (002), table 1", "Ten functions to minimise"
)
def functions(context: Context) -> Result:
    plan = context.choose(FULL, QUICK)
    jobs = [Job(name, plan, context.seed) for name in FUNCTIONS]
    done = spread(jobs, workers=context.choose(min(2, os.cpu_count() or 1), 1))
    found = dict(zip(FUNCTIONS, context.track(done, "functions", total=len(jobs)), strict=True))
    numbers = {name: {m: describe(*of, name, plan) for m, of in runs.items()} for name, runs in found.items()}
    figure = draw(numbers, plan)
    return Result({"functions": figure}, [iterations_table(numbers, plan), settings_table(numbers, plan)], numbers)


def spread(jobs: list[Job], workers: int) -> Iterator[Found]:
    """What `tune_and_report` finds for each job, in order, over so many processes."""
    if workers == 1:
        yield from map(tune_and_report, jobs)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, torch.set_num_threads, (1,)) as pool:
        yield from pool.map(tune_and_report, jobs)


def tune_and_report(job: Job) -> Found:
    """Every method with the lr that was best for it, on starts and noise other than those of the tuning."""
    plan = job.plan
    trials = race_all(job, [(m, factor) for m in METHODS for factor in plan.factors], plan.tuning)
    chosen = [(m, best(m, trials, plan.tuning.cap)) for m in METHODS]
    results = race_all(job, chosen, plan.report)
    return {m.name: (factor, results[m, factor]) for m, factor in chosen}


def best(method: Method, trials: dict[Lane, Tensor], cap: int) -> float:
    """The factor with the fewest iterations on average, failures counted as `cap`; of equals, the nearest to 1."""
    factors = [factor for m, factor in trials if m is method]
    return min(factors, key=lambda f: (trials[method, f].clamp_max(cap).mean().item(), abs(math.log(f))))


def race_all(job: Job, lanes: list[Lane], phase: Phase) -> dict[Lane, Tensor]:
    """(repeats,) iterations of every lane. Lanes with the same bins share a sampler, all have the same starts."""
    found: dict[Lane, Tensor] = {}
    function, settings = benchmark(job.name, as_published=True), PUBLISHED[job.name]
    start = settings.draw(phase.repeats, function.dim, generator("cpu", "functions", phase.name, job.name, job.seed))
    for bins in dict.fromkeys(m.bins for m in METHODS):
        together = [lane for lane in lanes if lane[0].bins == bins]
        seed = derive_seed("functions", phase.name, job.name, bins or 0, job.seed)
        chains = build(function, settings, together, start, seed)
        iterations = race(chains, settings, [m for m, _ in together], phase)
        found.update(zip(together, iterations, strict=True))
    return found


def build(function: Benchmark, settings: Settings, lanes: list[Lane], start: Tensor, seed: int) -> Chains:
    """One chain per lane and start, lane by lane."""

    def per_chain(values: Iterable[float]) -> Tensor:
        return torch.tensor(list(values), dtype=start.dtype).repeat_interleave(len(start))

    weighting: Any = bdl.Flat()
    temperature: Any = per_chain(settings.temperature * m.noisy for m, _ in lanes)
    bins = lanes[0][0].bins
    if bins is not None:
        rate = bdl.RobbinsMonro(settings.gain)
        weighting = bdl.AdaptiveWeight(settings.zeta, *settings.energies, bins, rate)
        temperature = settings.temperature
    return Chains(
        function, bdl.SGLD(), start.repeat(len(lanes), 1), lr=settings.lr * per_chain(f for _, f in lanes),
        temperature=temperature, weighting=weighting, seed=seed, gradient_noise=settings.gradient_noise,
        box=settings.start if settings.reject else None,
    )  # fmt: skip


def race(chains: Chains, settings: Settings, methods: list[Method], phase: Phase) -> Tensor:
    """(lanes, repeats) iterations until f < threshold, infinite for chains that diverge or are still on their way.

    Ends at the cap, or when no lane can still overtake the best one of its method.
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
    """Take chains out of the race: they stay at the minimum, as finite numbers whose energies do not alarm anybody."""
    chains.sampler.param_groups[0]["lr"][which] = 0.0
    chains.theta[which] = chains.target.minimiser()


def decided(iterations: Tensor, running: Tensor, methods: list[Method], phase: Phase, k: int) -> bool:
    """Is the best lane of every method known, and finished?"""
    least = torch.where(running, k, iterations.clamp_max(phase.cap)).view(-1, phase.repeats).mean(1)
    finished = ~running.view(-1, phase.repeats).any(1)
    for method in set(methods):
        own = torch.tensor([m is method for m in methods])
        if not (own & finished).any() or least[own & finished].min() > least[own].min():
            return False
    return True


# ---- presentation ----------------------------------------------------------------------------------------------------


def describe(factor: float, iterations: Tensor, name: str, plan: Plan) -> dict[str, float]:
    """mean: with failures counted as the cap, so a lower bound where there are any."""
    counted = iterations.clamp_max(plan.report.cap)
    return {
        "lr": factor * PUBLISHED[name].lr,
        "mean": counted.mean().item(),
        "se": (counted.std() / len(counted) ** 0.5).item(),
        "success": iterations.isfinite().double().mean().item(),
    }


def shown(found: dict[str, float], plan: Plan) -> str:
    if found["success"] == 0:
        return f"> {plan.report.cap:,}"
    number = f"{found['mean']:,.0f} ± {found['se']:,.0f}"
    return number if found["success"] == 1 else f"≥ {number}, {found['success']:.0%} there"


def published(name: str, method: Method) -> float:
    return math.nan if method.published is None else 1000 * PUBLISHED[name].thousands[method.published]


def iterations_table(numbers: dict[str, Any], plan: Plan) -> Table:
    header, rows = ["function", "descent, ours"], []
    for m in METHODS[1:]:
        header += [f"{m.name}, published", "ours"]
    for i, name in enumerate(numbers, 1):
        row = [f"{i} {name}", shown(numbers[name]["descent"], plan)]
        for m in METHODS[1:]:
            theirs = published(name, m)
            row += ["∞" if math.isinf(theirs) else f"{theirs:,.0f}", shown(numbers[name][m.name], plan)]
        rows.append(row)
    return Table("Iterations until f falls below its threshold", header, rows, note(numbers, plan))


def note(numbers: dict[str, Any], plan: Plan) -> str:
    """What the published table and these runs have in common, as far as these runs show it."""
    alone = [str(i) for i, found in enumerate(numbers.values(), 1) if found["descent"]["success"] == 1]
    never = [str(i) for i, found in enumerate(numbers.values(), 1) if found["descent"]["success"] == 0]
    cap, repeats = plan.report.cap, plan.report.repeats
    multipliers = [f"{1 + s.zeta * s.temperature / s.bin_width:.3g}" for s in PUBLISHED.values()]
    return (
        f"Mean ± standard error over {repeats} repeats. A run ends after {cap:,} iterations; ≥ marks means in which "
        "failures count as that many. Settings are those of the authors' code: the published table's own were not "
        "published, and these do not reproduce it. Descent has the same noisy gradients at T = 0. It always "
        f"succeeds on functions {', '.join(alone) or 'none'} and never on {', '.join(never) or 'none'}. SGLD runs at "
        "AWSGLD's T: there its mean energy, about dT/2 in a quadratic well, lies above the threshold on functions "
        f"{', '.join(too_hot())}, which it reaches only in passing. Functions 5 to 8 are in the authors' form. 10 and "
        "1000 bins cover the same energies as 100, Δu scaled. AWSGLD's multiplier of up to 1 + ζT/Δu (here at 100 bins "
        f"{', '.join(multipliers)}) is also a step size that grows as f falls, which no constant lr is."
    )


def too_hot() -> list[str]:
    settled = {name: benchmark(name).dim * s.temperature / 2 for name, s in PUBLISHED.items()}
    return [str(i) for i, name in enumerate(FUNCTIONS, 1) if settled[name] > PUBLISHED[name].threshold]


def settings_table(numbers: dict[str, Any], plan: Plan) -> Table:
    header = ["function", "d", "x_0 in", "T", "ζ", "energies", "f <", "lr, published", *(m.name for m in METHODS)]
    rows = []
    for i, (name, found) in enumerate(numbers.items(), 1):
        s = PUBLISHED[name]
        low, high = s.start
        rows.append(
            [f"{i} {name}", str(benchmark(name).dim), f"[{low:g}, {high:g}]{', kept there' * s.reject}",
             f"{s.temperature:g}", f"{s.zeta:g}", f"0 to {s.energies[1]:g}", f"{s.threshold:g}", f"{s.lr:g}",
             *(f"{found[m.name]['lr']:g}" for m in METHODS)]
        )  # fmt: skip
    factors = ", ".join(f"{f:g}" for f in plan.factors)
    tuning = plan.tuning
    text = (
        f"Every method's lr is the best of {factors} times the published one: {tuning.repeats} repeats and "
        f"{tuning.cap:,} iterations each, with other starts and noise than those reported."
    )
    return Table("Settings, and the lr tuned for each method", header, rows, text)


def draw(numbers: dict[str, Any], plan: Plan) -> Figure:
    """One row per function; ours filled, published open."""
    figure, axes = canvas("Iterations to reach the threshold: filled ours, open published", width=8.5, height=6.2)
    ax = axes[0, 0]
    for row, name in enumerate(numbers):
        for j, (m, colour) in enumerate(zip(METHODS, COLOURS, strict=True)):
            y, found = row + 0.14 * (j - 2), numbers[name][m.name]
            failed = found["success"] < 1
            style: Any = {"color": colour, "ms": 6, "ls": ""}
            ax.plot(max(found["mean"], 1), y, ">" if failed else "o", **style)
            if math.isfinite(published(name, m)):
                ax.plot(published(name, m), y, "o", mfc="none", **style)
    for m, colour in zip(METHODS, COLOURS, strict=True):
        ax.plot([], [], "o", color=colour, label=m.name)
    ax.plot([], [], ">", color="black", label=f"not always within {plan.report.cap:,}: a lower bound")
    ax.axvline(plan.report.cap, color="black", lw=0.8, ls=":")
    ax.set_xscale("log")
    ax.set_yticks(range(len(numbers)), [f"{i} {name}" for i, name in enumerate(numbers, 1)])
    ax.set_ylim(len(numbers) - 0.5, -0.5)
    ax.legend(ncols=3, loc="lower left", bbox_to_anchor=(0, 1))
    label(ax, "", "iterations, mean over the repeats")
    return figure
