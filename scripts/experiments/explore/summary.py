"""Means over the seeds as JSON and Markdown, and the picture of who wins where."""

import math
import statistics
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from tools.results import about, markdown, origin, save

from experiments.explore.methods import METHODS

KEYS = ("mode_tv", "tv", "nll", "modes", "hops", "rhat", "weight_ess", "virial", "gradients", "core_seconds")
HEAD = [
    "method", "settings", "modes", "hops", "R-hat", "TV of modes", "TV of predictions", "NLL", "effective draws",
    "gradients", "core-seconds",
]  # fmt: skip
CLEAR = 2.0  # standard errors of a difference


def summarise(problems: dict[str, Any], cells: list[dict[str, Any]], out: Path) -> None:
    """Write explore.json, explore.md and explore.png."""
    for name, problem in problems.items():
        problem["methods"] = means([c for c in cells if c["problem"] == name and c["seed"] >= 0])
        problem["best"] = ranked(problem["methods"])
        problem["better than plain"] = [m for m in problem["methods"] if gain(problem["methods"], m) > CLEAR]
    counted = {m: sum(m in p["best"] for p in problems.values()) for m in METHODS}
    seconds = round(sum(c.get("core_seconds", 0.0) for c in cells), 1)
    record = {**about(), "problems": problems, "wins": counted, "core_seconds": seconds}
    save(out / "explore.json", record, table(record))
    draw(record, out / "explore.png")


def means(cells: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """By method: mean and standard error of every number over the seeds, and the TV of predictions by seed."""
    found = {}
    for method in METHODS:
        runs = [c for c in cells if c["method"] == method]
        whole = [c for c in runs if "mode_tv" in c]
        if whole:
            numbers = {k: statistics.mean(c[k] for c in whole) for k in KEYS}
            by_seed = {str(c["seed"]): c["tv"] for c in whole}
            errors = {f"{k} error": sem([c[k] for c in whole]) for k in ("mode_tv", "tv", "nll")}
            found[method] = numbers | errors | {
                "candidate": whole[0]["candidate"], "runs": len(whole), "diverged": len(runs) - len(whole),
                "by_seed": by_seed,
            }  # fmt: skip
    return found


def sem(values: list[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def gain(methods: dict[str, Any], method: str, over: str = "plain") -> float:
    """By how many standard errors the TV of predictions is smaller than that of another method, paired by seed."""
    if method == over or over not in methods:
        return 0.0
    a, b = methods[over]["by_seed"], methods[method]["by_seed"]
    differences = [a[s] - b[s] for s in a if s in b]
    error = sem(differences) if len(differences) > 1 else math.nan
    return statistics.mean(differences) / error if error > 0 else 0.0


def ranked(methods: dict[str, Any]) -> list[str]:
    """The method with the smallest mean TV of predictions, and those that are not clearly worse."""
    if not methods:
        return []
    first = min(methods, key=lambda m: methods[m]["tv"])
    return [first, *(m for m in methods if m != first and gain(methods, first, m) <= CLEAR)]


def table(record: dict[str, Any]) -> str:
    """A table for each problem, the nearest method first."""
    parts = [
        f"{origin(record)}. Means over the seeds; {record['core_seconds']:,.0f} core-seconds in all.\n",
        "![How far predictions are from the reference's, by method](explore.png)\n",
    ]
    for problem in record["problems"].values():
        known = problem["reference"]
        kernels = ", ".join(f"{k} (R-hat {v['rhat']:.3f})" for k, v in known["kernels"].items())
        between = known["between"]
        parts.append(
            f"## {problem['title']}\n\n{problem['dim']} parameters, {len(known['shares']) - 1} modes. Reference: "
            f"{known['kernel']}, of {kernels}; TV of modes between the two {between['mode_tv']:.3f}, of predictions "
            f"{between['tv']:.4f}.\n"
        )
        methods = problem["methods"]
        order = sorted(methods, key=lambda m: methods[m]["tv"])
        parts.append(markdown(HEAD, [row(METHODS[m].title, methods[m]) for m in order]))
    return "\n".join(parts)


def row(title: str, of: dict[str, Any]) -> list[str]:
    lost = f" ({of['diverged']} diverged)" if of["diverged"] else ""
    return [
        title + lost, of["candidate"], f"{of['modes']:.1f}", f"{of['hops']:.1f}", f"{of['rhat']:.2f}",
        f"{of['mode_tv']:.3f} ± {of['mode_tv error']:.3f}", f"{of['tv']:.4f} ± {of['tv error']:.4f}",
        f"{of['nll']:.3f}", f"{of['weight_ess']:.0f}", f"{of['gradients']:,.0f}", f"{of['core_seconds']:.1f}",
    ]  # fmt: skip


BEST, REST, NAMES = "#1f6fb4", "#b8b8b8", "#333333"


def draw(record: dict[str, Any], path: Path) -> None:
    """A panel for each problem: the TV of predictions by method, best in colour."""
    problems = [p for p in record["problems"].values() if p["methods"]]
    if not problems:
        return
    with matplotlib.rc_context({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False}):
        rows = -(-len(problems) // 2)
        figure = Figure((10.5, 3.4 * rows + 0.6), layout="constrained")
        for ax, problem in zip(figure.subplots(rows, 2, squeeze=False).flat, problems, strict=False):
            panel(ax, problem)
        words = "shorter is better, blue is best; dotted: two references differ by so much"
        figure.suptitle(f"Error of predictions at equal gradients\n{words}", fontweight="bold")
        figure.savefig(path, dpi=110)


def panel(ax: Axes, problem: dict[str, Any]) -> None:
    methods, best = problem["methods"], problem["best"]
    order = [m for m in reversed(METHODS) if m in methods]
    for place, m in enumerate(order):
        colour = BEST if m in best else REST
        ax.barh(place, methods[m]["tv"], color=colour, height=0.7)
        ax.plot(list(methods[m]["by_seed"].values()), [place] * methods[m]["runs"], "|", color="#444444", ms=9)
    ax.axvline(problem["reference"]["between"]["tv"], color="#444444", lw=1.2, ls=":")
    ax.set_yticks(range(len(order)), [METHODS[m].title for m in order])
    for words, m in zip(ax.get_yticklabels(), order, strict=True):
        words.set_color(BEST if m in best else NAMES)
        words.set_fontweight("bold" if m in best else "normal")
    ax.set_xlim(0, max(1e-3, *(max(methods[m]["by_seed"].values()) for m in order)) * 1.05)
    ax.set_title(f"{problem['title'].partition(':')[0]}, {problem['dim']} weights", loc="right", fontsize=11)
    ax.set_xlabel("distance to the reference (total variation)")
