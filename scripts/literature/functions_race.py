"""Races on the ten functions: every method with its lr, tuned or published, until f falls below the threshold."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import bdl
from bdl.samplers.weighting.histogram import Form as PsiForm
from bdl.seeding import derive_seed, generator
from literature.functions_code import FAR, ZETA_OF_TEN, race_of_code
from literature.targets import PUBLISHED, Benchmark, Chains, Settings, benchmark

BINS = 100  # bins of the settings
CHECK = 50  # steps between checks whether a race is decided


FIRST = 500  # steps in which log psi follows psi at every step: psi changes by a tenth in each of the first ones

Form = Callable[[Settings], bdl.AdaptiveWeight]


def log_form(s: Settings) -> bdl.AdaptiveWeight:
    """The form of the author's code: unbounded rises that all count, and an empty bin below the lowest energy."""
    low, high = s.energies
    ends = (low - s.bin_width, high - s.bin_width)
    return bdl.AdaptiveWeight(s.zeta, *ends, BINS, form=PsiForm("log", 0), rate=bdl.RobbinsMonro(s.gain))


def slides_form(s: Settings) -> bdl.AdaptiveWeight:
    """Eq. 6 of the slides: bounded rises that all count."""
    return bdl.AdaptiveWeight(s.zeta, *s.energies, BINS, form=PsiForm(min_visits=0), rate=bdl.RobbinsMonro(s.gain))


def default_form(s: Settings) -> bdl.AdaptiveWeight:
    """bdl's own form: bounded rises, smaller where bins were hardly visited."""
    return bdl.AdaptiveWeight(s.zeta, *s.energies, BINS, rate=bdl.RobbinsMonro(s.gain))


@dataclass(frozen=True)
class Method:
    name: str
    form: Form | None = None  # bdl's form of the weighting
    code: int | None = None  # bins of the author's code, which runs in place of bdl
    tuned: bool = True  # False: at the published lr
    noisy: bool = True
    published: int | None = None  # column of the published table


DESCENT = Method("descent, tuned", noisy=False)
SGLD = Method("SGLD, tuned", published=0)
CODE = Method("author's code", code=BINS, tuned=False, published=2)
LOG = Method("its form in bdl", log_form, tuned=False, published=2)
SLIDES = Method("slides' form", slides_form, tuned=False, published=2)
OURS = Method("AWSGLD, tuned", default_form, published=2)
TEN = Method("author's code, 10 bins", code=10, tuned=False, published=1)
THOUSAND = Method("author's code, 1000 bins", code=1000, tuned=False, published=3)
METHODS = (DESCENT, SGLD, CODE, LOG, SLIDES, OURS, TEN, THOUSAND)


@dataclass(frozen=True)
class Phase:
    name: str  # seeds the starts and the noise
    cap: int  # iterations after which a chain has failed
    repeats: int


@dataclass(frozen=True)
class Plan:
    factors: tuple[float, ...]  # multiples of the published lr to choose from
    tuning: Phase
    report: Phase
    code: Phase  # the author's code, whose cap is 1e5


FULL = Plan(
    (0.3, 1, 2, 3, 5, 10, 30), Phase("tuning", 10_000, 6), Phase("report", 20_000, 40), Phase("report", 100_000, 40)
)
QUICK = Plan((1, 3), Phase("tuning", 60, 2), Phase("report", 100, 4), Phase("report", 100, 4))


@dataclass(frozen=True)
class Job:
    name: str  # a key of FUNCTIONS
    plan: Plan
    seed: int


Lane = tuple[Method, float]  # a method, and its lr as a multiple of the published one
Outcome = dict[str, tuple[float, Tensor]]  # method -> its factor of lr, (repeats,) iterations


def tune_and_report(job: Job) -> Outcome:
    """Tune lr for the methods that are tuned, then run every method on other starts and with other noise."""
    plan = job.plan
    trials = race_all(job, [(m, factor) for m in METHODS if m.tuned for factor in plan.factors], plan.tuning)
    chosen = [(m, best(m, trials, plan.tuning.cap) if m.tuned else 1.0) for m in METHODS]
    results = race_all(job, [lane for lane in chosen if lane[0].code is None], plan.report)
    for m, factor in chosen:
        if m.code is not None:
            results[m, factor] = run_code(job, m.code, plan.code)
    return {m.name: (factor, results[m, factor]) for m, factor in chosen}


def best(method: Method, trials: dict[Lane, Tensor], cap: int) -> float:
    """The factor with the fewest iterations on average, a failure counted as `cap`; on a tie, the one nearest to 1."""
    factors = [factor for m, factor in trials if m is method]
    return min(factors, key=lambda f: (trials[method, f].clamp_max(cap).mean().item(), abs(math.log(f))))


def starts(job: Job, phase: Phase) -> Tensor:
    """(repeats, d) the same for every method."""
    stream = generator("cpu", "functions", phase.name, job.name, job.seed)
    return PUBLISHED[job.name].draw(phase.repeats, benchmark(job.name).dim, stream)


def run_code(job: Job, bins: int, phase: Phase) -> Tensor:
    """(repeats,) iterations of the author's code."""
    settings = PUBLISHED[job.name]
    zeta = ZETA_OF_TEN.get(job.name, settings.zeta) if bins == 10 else settings.zeta
    noise = generator("cpu", "functions, code", phase.name, job.name, str(bins), job.seed)
    return race_of_code(
        benchmark(job.name, as_published=True), settings, zeta, bins, starts(job, phase), phase.cap, noise
    )


def race_all(job: Job, lanes: list[Lane], phase: Phase) -> dict[Lane, Tensor]:
    """(repeats,) iterations of every lane. All have the same starts; lanes of one form share a sampler."""
    finished: dict[Lane, Tensor] = {}
    function, settings, start = benchmark(job.name, as_published=True), PUBLISHED[job.name], starts(job, phase)
    for form in dict.fromkeys(m.form for m, _ in lanes):
        together = [lane for lane in lanes if lane[0].form is form]
        seed = derive_seed("functions", phase.name, job.name, form.__name__ if form else 0, job.seed)
        chains = build(function, settings, together, start, seed)
        iterations = race(chains, settings, [m for m, _ in together], phase)
        finished.update(zip(together, iterations, strict=True))
    return finished


def build(function: Benchmark, settings: Settings, lanes: list[Lane], start: Tensor, seed: int) -> Chains:
    """One chain per lane and start, lane by lane. All lanes have one form of weighting."""

    def per_chain(values: Iterable[float]) -> Tensor:
        return torch.tensor(list(values), dtype=start.dtype).repeat_interleave(len(start))

    form = lanes[0][0].form
    weighting: Any = bdl.Flat() if form is None else form(settings)
    temperature: Any = settings.temperature
    if form is None:
        temperature = per_chain(settings.temperature * m.noisy for m, _ in lanes)
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
    far = FAR * (settings.start[1] - settings.start[0])
    for k in range(phase.cap + 1):
        chains.step()
        if k < FIRST and chains.sampler.reweighting.histogram is not None:
            chains.sampler.reweighting.histogram.tabulate()
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
