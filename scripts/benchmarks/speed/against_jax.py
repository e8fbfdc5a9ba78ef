"""`bench.py jax`: Landsat by SGHMC in bdl, in torch and in JAX, at 1, 8 and 64 chains with a batch per chain.

JAX takes all cores that the process may use when it is imported, so bench.py pins the process before that.
"""

import functools
import statistics

from bdl.data import LandsatDataModule
from benchmarks.speed.jax_kernels import BlackjaxScan, JaxScan
from benchmarks.speed.law import CHAINS as LAW_CHAINS
from benchmarks.speed.law import EVERY, check_torch, compare, record
from benchmarks.speed.problem import Quadratic, landsat, regression
from benchmarks.speed.timing import Times, interleave, per_step, ratio, timed
from benchmarks.speed.torch_kernels import BareLoop, SamplerLoop, time_like_train

CHAINS = {1: 1440, 8: 1440, 64: 480}  # chains: steps of a timed run of bdl, multiples of KEEP_EVERY
KEEP_EVERY = 480  # steps between the samples of train.py's run of 80,000 steps
WARM_UP = 100  # steps of a fit that are not timed
BLOCK = {1: 440, 8: 440, 64: 110}  # chains: steps in one call of a jitted scan


def bench(rounds: int) -> tuple[Times, dict[str, float]]:
    check_jax()
    check_torch()
    problem, test = landsat(), LandsatDataModule().slices("test")
    contestants = {"bare torch loop, 1 chain": timed(BareLoop(problem).step, 500)}
    for chains, steps in CHAINS.items():
        for name, kind in (("JAX scan", JaxScan), ("blackjax sghmc", BlackjaxScan)):
            scan = kind(problem, chains, BLOCK[chains])
            contestants[title(name, chains)] = per_step(timed(scan.run, 2), scan.block)
        contestants[title("bdl Sampler.step", chains)] = timed(SamplerLoop(problem, chains).step, steps // 4)
        contestants[title("bdl train.py", chains)] = functools.partial(
            time_like_train, problem, chains, WARM_UP + steps, WARM_UP, KEEP_EVERY, test
        )
    times = interleave(contestants, rounds)
    ratios = {}
    for chains in CHAINS:
        scan = times[title("JAX scan", chains)]
        for name in ("bdl train.py", "bdl Sampler.step", "blackjax sghmc"):
            ratios[f"{title(name, chains)} / JAX scan"] = ratio(times[title(name, chains)], scan)
    one = times["bare torch loop, 1 chain"]
    for name in ("bdl train.py", "bdl Sampler.step"):
        ratios[f"{title(name, 1)} / bare torch loop"] = ratio(times[title(name, 1)], one)
    for name, t in times.items():
        ratios[f"{name}: us per chain-step"] = statistics.median(t) / count_of(name) * 1e3
    return times, ratios


def check_jax() -> None:
    """Print the mean energies of both scans on the regression; exits as `compare` does.

    The expected energies are exact at each kernel's step size, so they differ.
    """
    problem = regression()
    law, limit = Quadratic(problem), problem.dim * problem.temperature / 2
    ours, theirs = law.mean(), law.mean(explicit=True, refresh=BlackjaxScan.INTEGRATION)
    for name, kind, exact in (("JAX scan", JaxScan, ours), ("blackjax sghmc", BlackjaxScan, theirs)):
        scan = kind(problem, LAW_CHAINS, EVERY)
        compare(name, law.energy(record(scan.run, scan.theta, 1000)), exact, limit)


def title(name: str, chains: int) -> str:
    return f"{name}, {chains} chain{'s' if chains > 1 else ''}"


def count_of(name: str) -> int:
    """The number of chains in a contestant's title."""
    return int(name.split(", ")[1].split()[0])
