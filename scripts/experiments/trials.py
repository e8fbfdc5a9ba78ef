"""What trials of several lengths say of T on Landsat, where whole runs find T = 1 and T = 0.3 best (weighting.md).

python scripts/experiment.py trials [--out DIR]

Trials begin at one deep ensemble and are made as `bdl.find_settings` makes them: the first half finds lr, the later
half predicts held-out training rows. The file trials.json of --out holds the NLL at each T, how much better the coldest
predicts than T = 1, and the standard error of that over the rows.
"""

import math
from pathlib import Path
from typing import Annotated, Any

import torch
from tools.command import Said
from tools.results import TABLES, about, save
from torch import Tensor

import bdl
from bdl.tune.score import Score
from bdl.tune.search import Search
from bdl.tune.step import measure_noise, warm_up
from bdl.tune.temperature import TEMPERATURES_TRIED
from bdl.tune.trial import Problem, Trial
from experiments.weighting import CHAINS, Case, landsat, start

LENGTHS = (400, 1000, 2000, 4000)  # steps


def main(*, out: Annotated[Path, Said(metavar="DIR")] = TABLES) -> None:
    torch.set_num_threads(1)
    stack, case = start(landsat(Path()), 0)
    trials = {str(steps): compared(stack, case, steps) for steps in LENGTHS}
    save(out / "trials.json", {**about(), "chains": CHAINS, "trials": trials})


def compared(stack: bdl.ChainStack, case: Case, steps: int) -> dict[str, Any]:
    """The mean NLL of trials of so many steps at each T; the gain of the coldest over T = 1, with its error; nats."""
    nll = {t: nll_of_trial(stack, case, t, steps) for t in TEMPERATURES_TRIED}
    gain = nll[TEMPERATURES_TRIED[0]] - nll[TEMPERATURES_TRIED[-1]]
    means = {f"T = {t:g}": float(each.mean()) for t, each in nll.items()}
    found = {"nll": means, "gain": float(gain.mean()), "error": float(gain.std() / math.sqrt(len(gain)))}
    print(steps, found, flush=True)
    return found


def nll_of_trial(stack: bdl.ChainStack, case: Case, t: float, steps: int) -> Tensor:
    """(n,) negative log densities of the held-out items by the networks of the later half of a trial."""
    dynamics, prior = bdl.SGHMC(), bdl.Gaussian()
    problem = Problem(stack, case.loss, case.train, len(case.train[1]), 0, t)
    problem = Search.begin(problem, dynamics, {"prior": prior}, case.steps).problem
    trial, score = Trial(problem, dynamics, prior, 1e-3, f"T {t}"), Score(case.held_out)
    trial.lr = measure_noise(trial, warm_up(trial, steps // 2)).lr(dynamics.friction)
    trial.run_stably(steps // 2, score, max(1, steps // 40))
    return score.nll
