"""Where exploring pays: six samplers on four posteriors whose modes can be counted.

python scripts/experiment.py explore [PROBLEM ...] [--methods METHOD ...] [--seeds 0 1 2 3 4] [--out DIR]
python scripts/experiment.py explore --make       # writes the tables of the problems again
python scripts/experiment.py explore --quick      # one tiny cell of each, for tests

Every method has four candidate settings, of which the one counts that converges best in a run of half the length, by
R-hat and the virial temperature: what a user sees without a reference. With it the method runs for all seeds, at equal
gradients. A cell is a line of explore.jsonl, and is not run again. explore.json, explore.md and explore.png sum up.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from tools.command import Said
from tools.results import about, read

from bdl.errors import ConfigError, DivergedError
from experiments.explore import data
from experiments.explore.methods import CHAINS, METHODS
from experiments.explore.problems import PROBLEMS, Explored
from experiments.explore.reference import reference
from experiments.explore.scores import Reference, convergence, judged, measure
from experiments.explore.summary import summarise

TRIAL = -1  # the seed of trials
GRADIENTS = 30_000  # over all the data, of every chain of a reference
POWER_STEPS = 60


@dataclass(frozen=True)
class Cells:
    """The cells that are done, one JSON line each in a file that only grows."""

    path: Path

    def all(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_text().splitlines()] if self.path.exists() else []

    def find(self, **which: Any) -> dict[str, Any] | None:
        return next((c for c in self.all() if all(c.get(k) == v for k, v in which.items())), None)

    def add(self, cell: dict[str, Any]) -> dict[str, Any]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(cell | about()) + "\n")
        print({k: v for k, v in cell.items() if k != "shares"}, flush=True)
        return cell


def largest_lr(problem: Explored) -> float:
    """1 / h, h the largest curvature at the minimum below a start, by power iteration; the lr of plain SGD's steps."""
    at = problem.quench(problem.start(1, TRIAL))
    v, h = torch.randn(at.shape, generator=torch.Generator().manual_seed(0)), 1.0
    for _ in range(POWER_STEPS):
        v = v / v.norm()
        v = (problem.energy_and_grad(at + 1e-2 * v)[1] - problem.energy_and_grad(at - 1e-2 * v)[1]) / 2e-2
        h = float(v.norm())
    return 1 / h


def choose(problem: Explored, name: str, method: str, lr: float, gradients: int, cells: Cells) -> tuple[str, float]:
    """The candidate of a method that converges best in a trial, and its score; infinite if all diverge."""
    scores: dict[str, float] = {}
    for words, run in METHODS[method].candidates.items():
        which = {"problem": name, "method": method, "seed": TRIAL, "candidate": words}
        cell = cells.find(**which)
        if cell is None:
            try:
                numbers = convergence(problem, run(problem, lr, gradients // 2, TRIAL))
                cell = cells.add({**which, **numbers, "score": judged(numbers)})
            except (ConfigError, DivergedError):  # or bins that miss the energies
                cell = cells.add({**which, "score": math.inf})
        scores[words] = cell["score"]
    best = min(scores, key=lambda words: scores[words])
    return best, scores[best]


def explore(name: str, methods: Sequence[str], seeds: Sequence[int], out: Path, quick: bool) -> dict[str, Any]:
    """Run what is missing of a problem; returns the diagnostics of its reference."""
    problem, cells = PROBLEMS[name](), Cells(out / "explore.jsonl")
    gradients, effort = (200, (400, 8)) if quick else (problem.gradients, (GRADIENTS, 32))
    law, known = reference(problem, out / f"reference-{name}.npz", *effort)
    base = largest_lr(problem)
    best_plain, _ = choose(problem, name, "plain", base, gradients, cells)
    for method in methods:
        lr = base if method == "plain" else base * factor_of(best_plain)
        words, score = choose(problem, name, method, lr, gradients, cells)
        for seed in seeds if math.isfinite(score) else ():
            which = {"problem": name, "method": method, "seed": seed}
            if cells.find(**which) is None:
                cells.add({**which, "candidate": words, **scored(problem, words, which, lr, gradients, law)})
    return {"title": problem.title, "dim": problem.dim, "gradients": gradients * CHAINS, "reference": known}


def scored(
    problem: Explored, words: str, which: dict[str, Any], lr: float, gradients: int, law: Reference
) -> dict[str, Any]:
    try:
        draws = METHODS[which["method"]].candidates[words](problem, lr, gradients, which["seed"])
    except (ConfigError, DivergedError) as error:
        return {"diverged": str(error)[:100]}
    return measure(problem, draws, law)


def factor_of(words: str) -> float:
    """The multiple of lr that a candidate of plain chains names."""
    return float(words.split()[-1])


def main(
    *problems: Annotated[str, Said(metavar="PROBLEM", choices=PROBLEMS)],
    methods: Annotated[Sequence[str], Said(metavar="METHOD", choices=METHODS)] = tuple(METHODS),
    seeds: Annotated[Sequence[int], Said(metavar="SEED")] = (0, 1, 2, 3, 4),
    out: Annotated[Path, Said(metavar="DIR")] = data.FOLDER,
    make: Annotated[bool, Said("write the tables of the problems again, and nothing else")] = False,
    quick: Annotated[bool, Said("one tiny cell of each, for tests")] = False,
) -> None:
    torch.set_num_threads(1)
    if make:
        data.make()
        return
    known = read(out / "explore.json", problems={})["problems"]
    for name in problems or PROBLEMS:
        known[name] = explore(name, methods, seeds, out, quick)
        summarise(known, Cells(out / "explore.jsonl").all(), out)
