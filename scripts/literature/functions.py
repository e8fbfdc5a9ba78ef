"""Liang 2024, table 1: iterations that descent, SGLD and AWSGLD need to reach a threshold on ten functions."""

from __future__ import annotations

import math
import os
from typing import Any

from matplotlib.figure import Figure
from torch import Tensor

from bdl.targets import FUNCTIONS, PUBLISHED, benchmark
from literature.experiment import Context, Result, Table, experiment
from literature.figures import BLUE, GREEN, GREY, ORANGE, RED, canvas, label
from literature.functions_race import FULL, METHODS, QUICK, Job, Method, Plan, spread
from literature.sources import SLIDES

COLOURS = (GREY, BLUE, ORANGE, RED, GREEN)


@experiment("functions", f"{SLIDES}, table 1", "Ten functions to minimise")
def functions(context: Context) -> Result:
    plan = context.choose(FULL, QUICK)
    jobs = [Job(name, plan, context.seed) for name in FUNCTIONS]
    done = spread(jobs, workers=context.choose(min(2, os.cpu_count() or 1), 1))
    outcomes = dict(zip(FUNCTIONS, context.track(done, "functions", total=len(jobs)), strict=True))
    numbers = {name: {m: describe(*of, name, plan) for m, of in o.items()} for name, o in outcomes.items()}
    figure = draw(numbers, plan)
    return Result({"functions": figure}, [iterations_table(numbers, plan), settings_table(numbers, plan)], numbers)


def describe(factor: float, iterations: Tensor, name: str, plan: Plan) -> dict[str, float]:
    """Summary of the iterations (repeats,). The mean counts a failure as the cap, which makes it a lower bound."""
    counted = iterations.clamp_max(plan.report.cap)
    return {
        "lr": factor * PUBLISHED[name].lr,
        "mean": counted.mean().item(),
        "se": (counted.std() / len(counted) ** 0.5).item(),
        "success": iterations.isfinite().double().mean().item(),
    }


def shown(summary: dict[str, float], plan: Plan) -> str:
    if summary["success"] == 0:
        return f"> {plan.report.cap:,}"
    number = f"{summary['mean']:,.0f} ± {summary['se']:,.0f}"
    return number if summary["success"] == 1 else f"≥ {number}, {summary['success']:.0%} succeed"


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
    """How these runs differ from the published ones, and what they show."""
    always, never = (
        [str(i) for i, methods in enumerate(numbers.values(), 1) if methods["descent"]["success"] == share]
        for share in (1, 0)
    )
    cap, repeats = plan.report.cap, plan.report.repeats
    multipliers = [f"{1 + s.zeta * s.temperature / s.bin_width:.3g}" for s in PUBLISHED.values()]
    return (
        f"Mean ± standard error over {repeats} repeats. A run ends after {cap:,} iterations; ≥ marks a mean that "
        "counts a failure as that many. The settings are those of the authors' code: those behind the published table "
        "are not published, and these do not reproduce it. Descent has the same noisy gradients at T = 0; it always "
        f"succeeds on functions {', '.join(always) or 'none'} and never on {', '.join(never) or 'none'}. SGLD runs at "
        "AWSGLD's T. Its mean energy there, about dT/2 in a quadratic well, exceeds the threshold of functions "
        f"{', '.join(too_hot())}, so it reaches these only in passing. Functions 5 to 8 have the form of the authors' "
        "code. 10 and 1000 bins cover the same energies as 100 bins, with Δu scaled. AWSGLD's multiplier of up to "
        f"1 + ζT/Δu (with 100 bins: {', '.join(multipliers)}) also acts as a step size that grows as f falls; no "
        "constant lr does."
    )


def too_hot() -> list[str]:
    """Numbers of the functions whose mean energy at T, about dT/2, exceeds the threshold."""
    settled = {name: benchmark(name).dim * s.temperature / 2 for name, s in PUBLISHED.items()}
    return [str(i) for i, name in enumerate(FUNCTIONS, 1) if settled[name] > PUBLISHED[name].threshold]


def settings_table(numbers: dict[str, Any], plan: Plan) -> Table:
    header = ["function", "d", "x_0 in", "T", "ζ", "energies", "f <", "lr, published", *(m.name for m in METHODS)]
    rows = []
    for i, (name, summaries) in enumerate(numbers.items(), 1):
        s = PUBLISHED[name]
        low, high = s.start
        rows.append(
            [f"{i} {name}", str(benchmark(name).dim), f"[{low:g}, {high:g}]{', chains stay inside' * s.reject}",
             f"{s.temperature:g}", f"{s.zeta:g}", f"0 to {s.energies[1]:g}", f"{s.threshold:g}", f"{s.lr:g}",
             *(f"{summaries[m.name]['lr']:g}" for m in METHODS)]
        )  # fmt: skip
    factors = ", ".join(f"{f:g}" for f in plan.factors)
    tuning = plan.tuning
    text = (
        f"The lr of every method is the best of {factors} times the published one, in {tuning.repeats} repeats of "
        f"{tuning.cap:,} iterations. Tuning and reported runs have different starts and different noise."
    )
    return Table("Settings, and the lr tuned for each method", header, rows, text)


def draw(numbers: dict[str, Any], plan: Plan) -> Figure:
    """One row per function: filled markers are ours, open ones published."""
    figure, axes = canvas("Iterations to reach the threshold: filled ours, open published", width=8.5, height=6.2)
    ax = axes[0, 0]
    for row, name in enumerate(numbers):
        for j, (m, colour) in enumerate(zip(METHODS, COLOURS, strict=True)):
            y, summary = row + 0.14 * (j - 2), numbers[name][m.name]
            failed = summary["success"] < 1
            style: Any = {"color": colour, "ms": 6, "ls": ""}
            ax.plot(max(summary["mean"], 1), y, ">" if failed else "o", **style)
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
