"""How far each method's predictions lie from the posterior's, against core-seconds: python scripts/leaderboard.py.

For every problem two long runs of different kernels give the predictive distribution of the posterior, and every
method runs with more and more passes over the data. DIR/leaderboard.json holds all numbers, DIR/leaderboard.md the
table, DIR/leaderboard.png the curves, and DIR/reference-PROBLEM.npz the distributions. A run that was stopped goes on
with what is missing; whatever is there already stays.
"""

from __future__ import annotations

import argparse
import json
import os
from datetime import date
from pathlib import Path
from typing import Any

import torch
from leaderboard_figure import draw, table
from leaderboard_methods import METHODS
from leaderboard_problems import PROBLEMS, RESULTS, Problem
from leaderboard_reference import EFFORT, QUICK, reference

import bdl
from bdl.disk.files import write_atomically
from bdl.errors import BdlError, ConfigError
from bdl.run.console import one_line_errors
from bdl.run.machine import device_name

PASSES = {name: [100, 300, 1000, 3000] for name in PROBLEMS} | {"landsat": [30, 100, 300, 1000]}
QUICK_METHODS = ["hmc", "mclmc", "sghmc", "ensemble", "laplace"]


def main() -> None:
    arguments = parse()
    torch.set_num_threads(1)  # core-seconds then count the arithmetic alone
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / "leaderboard.json"
    record: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"problems": {}}
    for name in arguments.problems:
        run_problem(name, record, arguments)
    write_numbers(record, path)
    write_atomically(path.with_suffix(".md"), table(record).encode())
    draw(record, path.with_suffix(".png"))
    print(table(record))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="*", metavar="PROBLEM", help=f"{', '.join(PROBLEMS)}; none: all")
    parser.add_argument("--methods", nargs="+", metavar="METHOD", help=", ".join(METHODS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], metavar="SEED")
    parser.add_argument("--most", type=int, default=10**9, metavar="PASSES", help="leave out longer runs")
    parser.add_argument("--quick", action="store_true", help="a few short runs on one problem, to see that all works")
    parser.add_argument("--out", type=Path, metavar="DIR", help=f"default: {RESULTS}; with --quick outputs/leaderboard")
    arguments = parser.parse_args()
    if unknown := [*set(arguments.problems) - set(PROBLEMS), *set(arguments.methods or ()) - set(METHODS)]:
        raise ConfigError(f"unknown {unknown[0]!r}: problems are {', '.join(PROBLEMS)}, methods {', '.join(METHODS)}")
    arguments.problems = arguments.problems or (["diabetes"] if arguments.quick else list(PROBLEMS))
    arguments.methods = arguments.methods or (QUICK_METHODS if arguments.quick else list(METHODS))
    arguments.out = arguments.out or (Path("outputs/leaderboard") if arguments.quick else RESULTS)
    return arguments


def run_problem(name: str, record: dict[str, Any], arguments: argparse.Namespace) -> None:
    """Add what is missing of a problem to the record, the shortest runs of all methods first."""
    problem, path = PROBLEMS[name](), arguments.out / "leaderboard.json"
    entry = record["problems"].setdefault(
        name, {"title": problem.title, "of_classes": problem.classes, "reference": {}, "runs": []}
    )
    effort = QUICK if arguments.quick else EFFORT[name]
    stored = arguments.out / f"reference-{name}.npz"
    truth = reference(problem, effort, stored, entry["reference"], lambda: write_numbers(record, path))
    done = {(run["method"], run["passes"], run["seed"]) for run in entry["runs"]}
    methods = {name: METHODS[name] for name in arguments.methods if METHODS[name].fits(problem)}
    for passes in [20] if arguments.quick else [p for p in PASSES[name] if p <= arguments.most]:
        for method in (m for m in methods if methods[m].fewest <= passes):
            for seed in arguments.seeds:
                if (method, passes, seed) not in done:
                    entry["runs"].append(run_method(method, problem, passes, seed, truth))
                    write_numbers(record, path)


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


def write_numbers(record: dict[str, Any], path: Path) -> None:
    """After every run, so that a run that is stopped goes on from there."""
    about = {"bdl": bdl.__version__, "torch": torch.__version__, "device": device_name(), "cores": os.cpu_count()}
    record |= about | {"date": date.today().isoformat()}
    write_atomically(path, (json.dumps(record, indent=1) + "\n").encode())


if __name__ == "__main__":
    with one_line_errors():
        main()
