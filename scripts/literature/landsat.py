"""Liang 2024, Landsat: adaptively weighted samplers beside plain ones, at T = 1 and with T tuned on training rows."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bdl.data.landsat import LandsatDataModule
from bdl.errors import ConfigError, DivergedError
from literature.distances import with_error
from literature.experiment import Context, Result, Table, experiment, on_all_cores
from literature.landsat_chains import BATCH, BURN_IN, DECAY, Run, sample
from literature.landsat_figures import draw_errors, draw_paths
from literature.landsat_methods import METHODS, Method, Setting
from literature.sources import SLIDES

FOLDS = 4  # parts of the training rows; tuning holds out one at a time
ERRORS = ("one", "chain", "all")


@dataclass(frozen=True)
class Sizes:
    """steps: gradients of a chain. kept: states of a chain that are averaged. folds: how many of FOLDS are held out."""

    seeds: int = 10
    chains: int = 8  # of each repetition
    steps: int = 40_000
    kept: int = 100
    tuning_chains: int = 4  # of each setting and fold
    tuning_steps: int = 12_000
    folds: int = 2


QUICK = Sizes(seeds=2, chains=2, steps=200, kept=4, tuning_chains=2, tuning_steps=100, folds=1)


def sizes(context: Context) -> Sizes:
    return context.choose(Sizes(), QUICK)


@dataclass(frozen=True)
class Outcome:
    """One method's setting and scores: those of `Averages`, one number per repetition or per setting."""

    setting: Setting
    tuning: dict[str, Tensor]  # (settings,) each, on the validation rows
    fit: dict[str, Tensor]  # (seeds,) each
    test: dict[str, Tensor]
    run: Run


@experiment(
    "landsat", f"{SLIDES}, Landsat data", "Landsat: AWSGLD, AWSGHMC and their rivals, at T = 1 and with T tuned"
)
def landsat(context: Context) -> Result:
    done = on_all_cores(functools.partial(measure, context=context.silent()), METHODS, context)
    outcomes = {m.name: o for m, o in zip(METHODS, context.track(done, "landsat", total=len(METHODS)), strict=True)}
    figures = {
        "paths": draw_paths({name: o.run for name, o in outcomes.items()}),
        "errors": draw_errors(METHODS, {name: (o.fit, o.test) for name, o in outcomes.items()}),
    }
    numbers = {name: _numbers(o) for name, o in outcomes.items()}
    fit = _errors(outcomes, "fit", "Fit error in %, the 4,435 training rows", "", context)
    return Result(figures, [_prediction(outcomes, context), fit, _settings(outcomes, context)], numbers)


def measure(method: Method, context: Context) -> Outcome:
    """Choose the method's setting, then run all chains of all repetitions with it, as one stack."""
    setting, tuning = tune(method, context)
    size = sizes(context)
    chains = size.seeds * size.chains
    data = LandsatDataModule(BATCH, chains=chains, seed=context.seed)
    run = sample(method, setting, chains, data, ("train", "test"), size.steps, size.kept, context)
    fit, test = (run.averages[split].scores(size.chains) for split in ("train", "test"))
    run.averages.clear()  # the probabilities of all chains are no part of the result
    return Outcome(setting, tuning, fit, test, run)


def tune(method: Method, context: Context) -> tuple[Setting, dict[str, Tensor]]:
    """The setting with the lowest NLL on held-out training rows, and the mean scores of all settings over the folds."""
    each = [_validate(method, setting, context) for setting in method.grid]
    means = {name: torch.stack([scores[name] for scores in each]) for name in each[0]}
    return method.grid[int(means["all_nll"].nan_to_num(math.inf).argmin())], means


def _validate(method: Method, setting: Setting, context: Context) -> dict[str, Tensor]:
    """Mean scores of a setting over the folds; NaN where its chains diverge."""
    size, scores = sizes(context), []
    chains = size.tuning_chains
    for fold in range(size.folds):
        data = LandsatDataModule(BATCH, 1 / FOLDS, chains=chains, seed=context.seed, stack=1 + fold, fold=fold)
        try:
            run = sample(method, setting, chains, data, ("val",), size.tuning_steps, size.kept, context)
        except (DivergedError, ConfigError):  # under a weighting the energies leave the bins first
            return dict.fromkeys((*ERRORS, "chain_nll", "all_nll"), torch.tensor(math.nan))
        scores.append(run.averages["val"].scores(chains))
    return {name: torch.stack([s[name] for s in scores]).mean() for name in scores[0]}


def _errors(outcomes: dict[str, Outcome], split: str, title: str, note: str, context: Context) -> Table:
    """split: "fit" or "test"."""
    header = ["method", "published", "one sample", "one chain's average", f"average of {sizes(context).chains} chains"]
    rows = []
    for method in METHODS:
        scores = getattr(outcomes[method.name], split)
        published = f"{method.published[split == 'test']:.2f}" if method.published else "–"
        rows.append(
            [method.name, published, *(with_error(scores[k], 2) for k in ERRORS), with_error(scores["all_nll"], 3)]
        )
    return Table(title, [*header, "its NLL (nats)"], rows, note)


def _prediction(outcomes: dict[str, Outcome], context: Context) -> Table:
    size = sizes(context)
    note = (
        f"Mean ± standard error over {size.seeds} repetitions of {size.chains} chains. Every chain has its own start, "
        f"batches and injected noise, {size.steps:,} gradients, batches of {BATCH} and prior precision 1. Averages are "
        f"over the probabilities of {size.kept} states a chain, from the last {1 - BURN_IN:.0%} of its steps. dsSGLD "
        "weights its states by the step size. The AW methods do not use importance weights: their averages are those "
        "of the weighted law. The slides give neither settings nor which of the three errors they report, and their "
        "eq. 6 has no temperature, so that T = 1 is the nearest. The sampling error of 8 % on 2,000 rows, .6 points, "
        "is common to all methods."
    )
    return _errors(outcomes, "test", "Prediction error in %, 2,000 test rows", note, context)


def _settings(outcomes: dict[str, Outcome], context: Context) -> Table:
    header = ["method", "lr tried", "T tried", "other settings tried", "chosen", "NLL", "error", "T_eff",
              "multiplier: 5 %, median, 95 %"]  # fmt: skip
    size = sizes(context)
    note = (
        f"{len(METHODS[0].grid)} settings a method. Each runs {size.tuning_chains} chains of "
        f"{size.tuning_steps:,} gradients with each of {size.folds} quarters of the training rows held out. "
        "The chosen one has the lowest NLL of the chains' average there, averaged over the quarters. lr at step k of K "
        f"is lr (1 + {DECAY} k/K)^-γ. SGHMC, AWSGHMC and M-SGD have friction .1; the other methods have no momentum. "
        "Slides' form: rises 1 - θ_(J-1)/θ_J, θ = 1 at first, and a floor that goes down from the pilot's. Author's "
        "form: differences of log θ, θ_i = i/m at first, 125 bins from 0 to 2,500 nats. T_eff is the temperature of "
        "injected and batch noise; the weighted drift is that of the temperature T divided by the multiplier. Before "
        "these grids were set, 34 runs of AWSGLD and AWSGHMC and 5 of SGLD and SGHMC had been seen on one held-out "
        "quarter of the training rows."
    )
    rows = [_settings_row(method, outcomes[method.name]) for method in METHODS]
    return Table("Settings, and their scores on the validation rows", header, rows, note)


def _settings_row(method: Method, o: Outcome) -> list[str]:
    best = method.grid.index(o.setting)
    lrs, temperatures = (_values([getattr(s, name) for s in method.grid]) for name in ("lr", "temperature"))
    others = dict.fromkeys(", ".join(str(s).split(", ")[1 + (s.temperature > 0) :]) for s in method.grid)
    scores = [f"{o.tuning['all_nll'][best]:.3f}", f"{o.tuning['all'][best]:.2f}"]
    t_eff = "–" if math.isnan(o.run.t_eff) else f"{o.run.t_eff:.2f}"
    multiplier = ", ".join(f"{m:.2f}" for m in o.run.multiplier)
    return [method.name, lrs, temperatures, "; ".join(others) or "–", str(o.setting), *scores, t_eff, multiplier]


def _values(values: Sequence[float]) -> str:
    return ", ".join(f"{v:g}" for v in sorted(set(values)))


def _numbers(o: Outcome) -> dict[str, Any]:
    return {
        "setting": str(o.setting), "fit": o.fit, "test": o.test, "multiplier": o.run.multiplier, "t_eff": o.run.t_eff,
        "validation": o.tuning,
    }  # fmt: skip
