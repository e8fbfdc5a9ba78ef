"""How far each method's predictions lie from the posterior's, against core-seconds: scripts/bench.py leaderboard.

For every problem two long runs of different kernels give the predictive distribution of the posterior, and every
method runs with more and more passes over the data. DIR/leaderboard.json holds all numbers, DIR/leaderboard.md the
table, DIR/leaderboard.png the curves, and DIR/reference-PROBLEM.npz the distributions. A run that was stopped goes on
with what is missing; whatever is there already stays.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
from tools.command import Said
from tools.results import about, read, save

from bdl.errors import BdlError, ConfigError
from benchmarks.leaderboard.figure import draw, table
from benchmarks.leaderboard.methods import METHODS
from benchmarks.leaderboard.problems import PROBLEMS, RESULTS, Problem
from benchmarks.leaderboard.reference import EFFORT, QUICK, Effort, reference

PASSES = {name: [100, 300, 1000, 3000] for name in PROBLEMS} | {"landsat": [30, 100, 300, 1000]}
QUICK_METHODS = ["hmc", "mclmc", "sghmc", "ensemble", "laplace"]


def main(
    *problems: Annotated[str, Said(f"{', '.join(PROBLEMS)}; none: all", "PROBLEM")],
    methods: Annotated[Sequence[str], Said(", ".join(METHODS), "METHOD")] = (),
    seeds: Annotated[Sequence[int], Said(metavar="SEED")] = (0,),
    most: Annotated[int, Said("leave out longer runs", "PASSES")] = 10**9,
    quick: Annotated[bool, Said("a few short runs on one problem, to see that all works")] = False,
    out: Annotated[Path | None, Said(f"default: {RESULTS}; with --quick outputs/leaderboard", "DIR")] = None,
) -> None:
    if unknown := [*set(problems) - set(PROBLEMS), *set(methods) - set(METHODS)]:
        raise ConfigError(f"unknown {unknown[0]!r}: problems are {', '.join(PROBLEMS)}, methods {', '.join(METHODS)}")
    torch.set_num_threads(1)  # core-seconds then count the arithmetic alone
    path = (out or (Path("outputs/leaderboard") if quick else RESULTS)) / "leaderboard.json"
    methods, record = methods or (QUICK_METHODS if quick else list(METHODS)), read(path, problems={})
    for name in problems or (["diabetes"] if quick else PROBLEMS):
        passes = [20] if quick else [p for p in PASSES[name] if p <= most]
        run_problem(name, record, path, methods, passes, seeds, QUICK if quick else EFFORT[name])
    write(record, path)
    draw(record, path.with_suffix(".png"))
    print(table(record))


def run_problem(
    name: str, record: dict[str, Any], path: Path, methods: Sequence[str], lengths: Sequence[int],
    seeds: Sequence[int], effort: Effort,
) -> None:  # fmt: skip
    """Add what is missing of a problem to the record, the shortest runs of all methods first."""
    problem = PROBLEMS[name]()
    entry = record["problems"].setdefault(
        name, {"title": problem.title, "of_classes": problem.classes, "reference": {}, "runs": []}
    )
    stored = path.with_name(f"reference-{name}.npz")
    truth = reference(problem, effort, stored, entry["reference"], lambda: write(record, path))
    done = {(run["method"], run["passes"], run["seed"]) for run in entry["runs"]}
    for passes in lengths:
        for method in (m for m in methods if METHODS[m].fits(problem) and METHODS[m].fewest <= passes):
            for seed in seeds:
                if (method, passes, seed) not in done:
                    entry["runs"].append(run_method(method, problem, passes, seed, truth))
                    write(record, path)


def run_method(method: str, problem: Problem, passes: int, seed: int, truth: torch.Tensor) -> dict[str, Any]:
    """The scores of one run; null where it diverged or its package is missing."""
    run: dict[str, Any] = {"method": method, "passes": passes, "seed": seed}
    try:
        average, seconds = METHODS[method].run(problem, passes, seed)
        scores = {"distance": average.distance(truth), "nll": average.nll, "core_seconds": seconds}
        run |= {name: round(score, 5) for name, score in scores.items()}
    except (BdlError, ImportError) as error:
        run |= {"distance": None, "nll": None, "core_seconds": None, "error": str(error)[:200]}
    print(json.dumps(run), flush=True)
    return run


def write(record: dict[str, Any], path: Path) -> None:
    """The numbers and the table, after every run: a run that is stopped goes on from there."""
    record |= {**about(), "torch": torch.__version__, "cores": os.cpu_count()}
    save(path, record, table(record))
