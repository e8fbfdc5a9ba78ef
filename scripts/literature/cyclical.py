"""Zhang et al. 2020, section 5.1: cyclical against decreasing steps on a grid of 25 modes."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

import bdl
from bdl.seeding import generator
from literature.distances import total_variation, with_error
from literature.experiment import Context, Result, Table, experiment
from literature.figures import BLUE, GREEN, GREY, ORANGE, RED, canvas, label
from literature.sources import LIGHTNING_POST
from literature.targets import Chains, Mixture, grid25

SOURCE = f"Zhang et al. 2020, section 5.1; shown in the {LIGHTNING_POST}"
STEPS, CYCLES = 50_000, 30  # per chain; both from the authors' code
THIN = 10  # every so many steps a state is recorded
SKIPPED = 50  # steps at the start of each cycle that the authors' code does not keep
LATE = "cSGLD, late part kept"
TOGETHER = 4  # chains of the paper's parallel setting
STD = 0.03**0.5  # standard deviation of a mode
STABLE = 2 * STD**2  # largest step at which Euler's method is stable within a mode

Schedule = Callable[[int], float]


@dataclass(frozen=True)
class Method:
    """schedule(step): ε of θ <- θ - ε ∇U + noise. hot(step): is noise injected? keep(step): is the state a sample?"""

    name: str
    schedule: Schedule
    hot: Callable[[int], bool]
    keep: Callable[[int], bool]
    settings: str
    published: tuple[str, ...] = ("–",) * 4  # modes of 1 chain, modes of 4 chains, off modes, weights of 4 chains


@dataclass(frozen=True, eq=False)
class Run:
    method: Method
    states: Tensor  # (n, C, 2) every THIN-th state
    kept: Tensor  # (n,) whether it is a sample

    def samples(self, together: int) -> Tensor:
        """(groups, n together, 2) samples of each group of `together` chains."""
        x = self.states[self.kept].transpose(0, 1)  # (C, n, 2)
        return x.reshape(len(x) // together, -1, 2)


@experiment("cyclical-modes", SOURCE, "Cyclical SGLD on 25 modes")
def cyclical_modes(context: Context) -> Result:
    law = grid25()
    steps = context.choose(STEPS, 1_500)
    runs: list[Run] = []
    for m in methods(steps):
        states = runs[-1].states if m.name == LATE else sample(law, m, steps, context.choose(64, 8), context)
        runs.append(Run(m, states, torch.tensor([m.keep(THIN * i + THIN - 1) for i in range(len(states))])))
    measures = {r.method.name: measure(law, r) for r in runs}
    figures = {"modes": draw_modes(law, runs, measures), "schedule": draw_schedules(law, runs, steps)}
    code = counted(law, runs[1], math.ceil(steps / max(1, CYCLES * steps // STEPS)), steps)
    varied = {f"ε₀ = {e:g}, {c} cycles": count(law, e, c, steps, context) for e, c in VARIED}
    tables = [tabulate(runs, measures), causes(varied, code)]
    return Result(figures, tables, {**measures, "varied": {name: c.modes["a tenth"] for name, c in varied.items()}})


def methods(steps: int) -> list[Method]:
    cycle = bdl.schedules.Cycle(steps, max(1, CYCLES * steps // STEPS), explore=0.25)
    late = replace(cycle, explore=0.75)
    always = lambda k: True  # noqa: E731
    code, paper = (bdl.schedules.CyclicalCosine(e, cycle) for e in (0.07, 0.09))
    return [
        Method("SGLD, decreasing steps", decreasing, always, always,
               "ε = .043, then .043 (t - 500)^-.55 (authors' code)",
               ("1", "4", "1 %", ".84")),
        Method("cSGLD, authors' code", code, always, lambda k: k % cycle.length >= SKIPPED,
               "ε₀ = .07, 30 cycles, noise always, all kept but 50 steps a cycle (authors' code)",
               ("23", "25", "32 %", ".10")),
        Method(LATE, code, always, late.sampling, "the same chains, last quarter of each cycle kept"),
        Method("cSGLD as in the paper", paper, cycle.sampling, cycle.sampling,
               "ε₀ = .09, no noise and nothing kept in the first quarter of a cycle (from memory of the paper)"),
    ]  # fmt: skip


def decreasing(step: int) -> float:
    return 0.043 * max(1, step + 1 - 500) ** -0.55


def sample(law: Mixture, method: Method, steps: int, chains: int, context: Context) -> Tensor:
    """(steps / THIN, C, 2) states of all chains of one method."""
    start = 20 * torch.rand(chains, 2, generator=generator("cpu", "cyclical start", context.seed)).double() - 10
    dynamics = bdl.SGLD(grad_var=1.0)  # subtracts the gradients' noise, as the authors' code does
    run = Chains(law, dynamics, start, lr=0.05, gradient_noise=1.0, seed=context.seed)
    group, states = run.sampler.param_groups[0], start.new_empty(steps // THIN, chains, 2)
    for i in context.track(range(len(states)), f"cyclical-modes: {method.name}"):
        for k in range(THIN * i, THIN * (i + 1)):
            group.update(lr=method.schedule(k), temperature=float(method.hot(k)))
            run.step()
        states[i] = run.theta
    return states


def near(law: Mixture, x: Tensor) -> tuple[Tensor, Tensor]:
    """(...) the nearest mode, and the distance from it in standard deviations of a mode."""
    distance, mode = torch.cdist(x.flatten(0, -2), law.means).min(-1)
    return mode.reshape(x.shape[:-1]), distance.reshape(x.shape[:-1]) / STD


def shares(law: Mixture, x: Tensor) -> Tensor:
    """(groups, n, 2) -> (groups, 25) share of the samples within 3 standard deviations of each mode."""
    mode, distance = near(law, x)
    inside = (mode[..., None] == torch.arange(25)) & (distance < 3)[..., None]
    return inside.double().mean(1)


def measure(law: Mixture, r: Run) -> dict[str, Any]:
    one, four = r.samples(1), r.samples(TOGETHER)
    mode, distance = near(law, four)
    weights = (mode[..., None] == torch.arange(25)).double().mean(1)
    inside = distance < 3
    return {
        "modes, 1 chain": (shares(law, one) > 0.1 / 25).double().sum(-1),
        "modes, 4 chains": (shares(law, four) > 0.1 / 25).double().sum(-1),
        "off modes": 1 - inside.double().mean(1),
        "weights": total_variation(weights, law.weights),
        "spread": (distance.square() * inside).sum() / inside.sum() / 2 / TRIMMED,
    }


TRIMMED = 1 - 4.5 * math.exp(-4.5) / (1 - math.exp(-4.5))  # variance of a normal in the plane within 3 deviations


def tabulate(runs: Sequence[Run], measures: dict[str, dict[str, Any]]) -> Table:
    header = ["method", "modes, 1 chain, published", "ours", "modes, 4 chains, published", "ours",
              "samples off modes, published", "ours", "weights of 4 chains, published", "ours",
              "variance in modes / exact", "settings"]  # fmt: skip
    rows = []
    for r in runs:
        f, p = measures[r.method.name], r.method.published
        rows.append(
            [r.method.name, p[0], with_error(f["modes, 1 chain"], 1), p[1], with_error(f["modes, 4 chains"], 1),
             p[2], f"{f['off modes'].mean():.0%}", p[3], with_error(f["weights"], 2), f"{f['spread']:.2f}",
             r.method.settings]
        )  # fmt: skip
    n = len(measures[runs[0].method.name]["off modes"])
    title = f"25 modes, {len(runs[0].states) * THIN:,} steps a chain, gradients with noise N(0, 1)"
    return Table(title, header, rows, f"{n} groups of 4 chains. {EXPLANATION}")


EXPLANATION = (
    "A mode counts as visited if a tenth of its weight is there. A sample is off the modes if it is more than 3 "
    "standard deviations from all of them (exact: 1 %). Weights: total variation from 1/25 each. The paper reports 4 "
    "of 25 modes for SGLD with 4 chains and all of them for cSGLD; the other published numbers are computed from the "
    f"samples in the authors' repository. Steps above {STABLE:.2f} are unstable within a mode. This throws a "
    "cyclical chain from mode to mode, but its states during such steps are not samples of the law: 32 % of the "
    "authors' samples lie off the modes. Keeping only the late part of each cycle, where the steps are small, repairs "
    "this."
)


VARIED = ((0.05, 30), (0.06, 30), (0.09, 30), (0.07, 15), (0.07, 60), (0.07, 120))  # ε₀ and cycles
AUTHORS = (23, 23, 21, 21, 21)  # modes in each chain stored in the authors' repository; the first one is the published


@dataclass(frozen=True, eq=False)
class Count:
    """How many of the 25 modes one chain visited: (C,) by the share of their weight that counts, and at cycle ends."""

    modes: dict[str, Tensor]
    ends: Tensor  # different modes in which the chain's cycles ended
    random: float  # the same if every cycle ended in a random mode


def count(law: Mixture, e: float, cycles: int, steps: int, context: Context) -> Count:
    """What chains by the authors' code do with another first step ε₀ or another number of cycles."""
    cycle = bdl.schedules.Cycle(steps, max(1, cycles * steps // STEPS), explore=0.25)
    schedule = bdl.schedules.CyclicalCosine(e, cycle)
    always = lambda k: True  # noqa: E731
    method = Method(f"ε₀ = {e:g}, {cycles} cycles", schedule, always, lambda k: k % cycle.length >= SKIPPED, "")
    states = sample(law, method, steps, context.choose(32, 4), context)
    kept = torch.tensor([method.keep(THIN * i + THIN - 1) for i in range(len(states))])
    return counted(law, Run(method, states, kept), cycle.length, steps)


def counted(law: Mixture, r: Run, length: int, steps: int) -> Count:
    """length: steps of one cycle."""
    found = shares(law, r.samples(1))
    rows = [min(end, steps) // THIN - 1 for end in range(length, steps + length, length)]
    last = near(law, r.states[rows])[0]  # (cycles, C)
    ends = torch.tensor([len(set(column)) for column in last.T.tolist()], dtype=torch.float64)
    modes = {name: (found > share / 25).double().sum(-1) for name, share in SHARES.items()}
    return Count(modes, ends, 25 * (1 - (24 / 25) ** len(rows)))


SHARES = {"a tenth": 0.1, "a twentieth": 0.05, "a fifth": 0.2}


def causes(varied: dict[str, Count], code: Count) -> Table:
    rows = []
    for name, c in {"ε₀ = .07, 30 cycles (authors' code)": code, **varied}.items():
        rows.append([name, *(with_error(modes, 1) for modes in c.modes.values())])
        tenth = c.modes["a tenth"]
        rows[-1] += [f"{tenth.std():.1f}", f"{(tenth >= AUTHORS[0]).double().mean():.0%}"]
        rows[-1] += [with_error(c.ends, 1), f"{c.random:.1f}"]
    mean, spread = sum(AUTHORS) / len(AUTHORS), float(code.modes["a tenth"].std())
    return Table(
        "What the number of modes of one chain depends on",
        ["authors' code with", *(f"modes with {name} of their weight" for name in SHARES), "standard deviation",
         f"chains with {AUTHORS[0]} or more", "different modes at the ends of cycles", "the same, if random"],
        rows,
        f"The published {AUTHORS[0]} modes are those of one chain, and chains differ. The authors' repository holds "
        f"five chains, with {', '.join(map(str, AUTHORS))} modes: {mean:.1f} on average, with a standard error of "
        f"{spread / len(AUTHORS) ** 0.5:.1f}. A chain gathers a mode in every cycle, the one in which its steps become "
        "small, and a few more on the way; modes that cycles end in are nearly random, so that the number of cycles "
        "decides. What counts as visited matters as much.",
    )  # fmt: skip


def draw_modes(law: Mixture, runs: Sequence[Run], measures: dict[str, dict[str, Any]]) -> Figure:
    title = "Four chains each: SGLD stays in four modes, cyclical steps reach nearly all 25"
    figure, axes = canvas(title, 1, 1 + len(runs), width=3.0, height=3.0, sharex=True, sharey=True)
    exact = law.sample(100_000, generator("cpu", "cyclical"))
    panels = [("true law", exact)] + [
        (f"{r.method.name}\n{measures[r.method.name]['modes, 4 chains'][0]:.0f} modes, "
         f"{measures[r.method.name]['off modes'][0]:.0%} off", r.samples(TOGETHER)[0])
        for r in runs
    ]  # fmt: skip
    edges = np.linspace(-6, 6, 121)
    for ax, (text, x) in zip(axes[0], panels, strict=True):
        counts = np.histogram2d(*x.T.numpy(), bins=(edges, edges))[0] / len(x)
        ax.imshow(counts.T**0.5, origin="lower", extent=(-6, 6, -6, 6), vmin=0, vmax=0.06)
        ax.grid(False)
        label(ax, text)
    axes[0, 0].set_title("true law\n25 modes, 1% off")
    return figure


def draw_schedules(law: Mixture, runs: Sequence[Run], steps: int) -> Figure:
    title = "Every cycle starts above the limit of stability, and finds new modes there"
    figure, axes = canvas(title, 1, 2, width=5.2, height=3.0)
    k = np.arange(0, steps, max(1, steps // 5_000))
    chosen = ((runs[0], BLUE, "-"), (runs[1], ORANGE, "-"), (runs[3], GREEN, "-"))
    for r, colour, dash in chosen:
        ours = [r.method.schedule(int(i)) for i in k]
        axes[0, 0].plot(k, ours, color=colour, ls=dash, lw=1.2, label=r.method.name)
        seen = visited(law, r)
        axes[0, 1].plot(THIN * np.arange(1, len(seen) + 1), seen, color=colour, lw=1.8, label=r.method.name)
    axes[0, 0].axhline(STABLE, color=RED, ls="--", lw=1.2, label="unstable in a mode above")
    axes[0, 0].set(xlim=(0, min(steps, 8_000)), ylim=(0, 0.14))
    axes[0, 0].legend(loc="upper right", fontsize=8, ncols=2)
    axes[0, 1].axhline(25, color=GREY, lw=0.8)
    axes[0, 1].legend(loc="center right", fontsize=8)
    label(axes[0, 0], "step size ε", "step")
    label(axes[0, 1], "modes visited so far by one chain, mean", "step")
    return figure


def visited(law: Mixture, r: Run) -> np.ndarray:
    """(n,) modes within 3 standard deviations of which a chain has had a sample so far, mean over chains."""
    mode, distance = near(law, r.states)
    at = (mode[..., None] == torch.arange(25)) & ((distance < 3) & r.kept[:, None])[..., None]
    return at.cummax(0).values.sum(-1).double().mean(1).numpy()
