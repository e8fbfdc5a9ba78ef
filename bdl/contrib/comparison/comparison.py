"""Runs side by side: a row for each method, with means and standard errors over its runs."""

from __future__ import annotations

import json
import math
import os
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from bdl.contrib.comparison.compared_runs import ABSENT, SECONDS, ComparedRun
from bdl.errors import BdlWarning, ConfigError
from bdl.posterior.judgements import LEVELS, Level
from bdl.posterior.verdict import Verdict

HEADINGS = {  # metrics that are shown where no others are asked for
    "val/bma/nll": "validation NLL",
    "test/bma/nll": "NLL (nats)",
    "test/bma/accuracy": "error %",
    "test/bma/rmse": "RMSE",
    "test/bma/crps": "CRPS",
    "test/bma/ece": "ECE",
    "test/bma/coverage_90": "in 90 % interval, %",
    "test/one_sample/nll": "NLL of one network",
    "t_eff": "T_eff (mean over directions)",
    "rhat/max": "R-hat",
    SECONDS: "time (s)",
}
SMALLER_IS_BETTER = ("nll", "rmse", "crps", "ece", "brier")


@dataclass(frozen=True)
class ComparedMethod:
    """Runs whose settings agree, or the deep ensembles at which they began.

    scores: (mean, standard error) of each metric over the finished runs; NaN where unknown. One run has no error.
    """

    label: str
    settings: Mapping[str, str]  # the method, and one for each column
    runs: Sequence[ComparedRun]
    scores: Mapping[str, tuple[float, float]]
    judged: bool = True  # whether there is a verdict on it

    @property
    def finished(self) -> list[ComparedRun]:
        return [run for run in self.runs if run.metrics]

    @property
    def verdicts(self) -> list[Verdict]:
        return [run.verdict for run in self.runs if run.verdict is not None and self.judged]

    @property
    def count(self) -> str:
        """How many runs there are, and how many of them have finished if not all."""
        done, total = len(self.finished), len(self.runs)
        return f"{total}" if done == total else f"{done} of {total}"

    @property
    def verdict(self) -> str:
        """The outcome, with numbers where runs differ: "2 not at rest, 1 trust"."""
        outcomes = Counter(verdict.outcome for verdict in self.verdicts)
        return ", ".join(name if len(outcomes) == 1 else f"{n} {name}" for name, n in outcomes.items()) or ABSENT

    @property
    def level(self) -> Level | None:
        """The worst level of all verdicts, None without one."""
        levels: list[Level] = [verdict.level for verdict in self.verdicts]
        return max(levels, key=LEVELS.index) if levels else None


@dataclass(frozen=True)
class Comparison:
    """All methods, each with the same columns."""

    columns: Mapping[str, Sequence[str]]  # settings that differ within a method -> those that change with them
    metrics: Sequence[str]
    methods: Sequence[ComparedMethod]
    same_data: bool

    @property
    def headings(self) -> list[str]:
        return ["method", *self.columns, "runs", "verdict", *map(heading, self.metrics)]

    @property
    def texts(self) -> list[list[str]]:
        """The rows of the table, in the order of `headings`."""
        return [
            [*m.settings.values(), m.count, m.verdict, *(mean_and_error(n, *m.scores[n]) for n in self.metrics)]
            for m in self.methods
        ]

    @property
    def words(self) -> list[bool]:
        """Whether a column holds words: the settings, and the verdict."""
        last = len(self.columns)
        return [j <= last or j == last + 2 for j in range(len(self.headings))]

    @property
    def best(self) -> set[tuple[int, int]]:
        """(row, column) of the best scores: none of runs on different data, and none of a single score."""
        places = set()
        for j, name in enumerate(self.metrics, len(self.columns) + 3):
            losses = [loss(name, method.scores[name][0]) for method in self.methods]
            scored = [i for i, value in enumerate(losses) if not math.isnan(value)]
            if self.same_data and len(scored) > 1:
                places.add((min(scored, key=losses.__getitem__), j))
        return places


def compare_runs(runs: Sequence[ComparedRun], metrics: Sequence[str] | None, same_data: bool) -> Comparison:
    """Rows of equal settings. Copies of a run are left out with a warning, and unfinished runs are warned of.

    metrics: names of metrics.json; None for the usual ones. Raises ConfigError for a metric that no run has.
    """
    present = {name for run in runs for name, value in run.metrics.items() if not math.isnan(value)}
    for name in metrics or ():
        if present and name not in present:
            raise ConfigError(f"metrics: {name} is no metric of these runs: choose among those of a metrics.json")
    shown = [name for name in metrics or HEADINGS if name in present]
    runs = _without_copies(runs if same_data else [run.with_data_as_settings() for run in runs])
    if late := [run for run in runs if not run.metrics]:
        many = f" and {len(late) - 1} more" if len(late) > 1 else ""
        about = "not finished, and in no mean; the command of a run resumes it"
        warnings.warn(f"{late[0].path}{many}: {about}", BdlWarning, stacklevel=2)
    columns, names = _differing(runs), list(dict.fromkeys(run.method for run in runs))
    groups: dict[tuple[str, ...], list[ComparedRun]] = {}
    for run in runs:
        groups.setdefault((run.method, *map(run.setting, columns)), []).append(run)
    rows = sorted(groups, key=lambda row: (names.index(row[0]), [sort_key(word) for word in row[1:]]))
    shared = os.path.commonprefix([name.split("-")[:-1] for name in names]) if len(names) > 1 else []
    methods: list[ComparedMethod] = []
    for row in rows:
        name = "-".join(row[0].split("-")[len(shared) :])  # all names begin with data and model
        words = zip(columns, row[1:], *(rival[1:] for rival in rows if rival[0] == row[0]), strict=True)
        told = ", ".join(f"{key}={word}" for key, word, *among in words if len(set(among)) > 1)
        settings = dict(zip(("method", *columns), (name, *row[1:]), strict=True))
        methods += _rows(f"{name} ({told})" if told else name, settings, groups[row], shown)
    return Comparison(columns, shown, methods, same_data)


def heading(metric: str) -> str:
    return HEADINGS.get(metric, metric)


def mean_and_error(name: str, mean: float, error: float) -> str:
    """A mean with two digits of its standard error, as 0.2034 ± 0.0021; four digits where there is none."""
    mean, error = shown(name, mean, error)
    if math.isnan(mean):
        return ABSENT
    if math.isnan(error):
        return f"{mean:#.4g}" if abs(mean) < 1000 else f"{mean:,.0f}"
    digits = 4 if error == 0 else min(12, max(0, 1 - math.floor(math.log10(error))))
    return f"{mean:,.{digits}f} ± {error:,.{digits}f}"


def shown(name: str, mean: float, error: float) -> tuple[float, float]:
    """Both in the units of the heading: an accuracy as the error in %, a share in %."""
    if name == "test/bma/accuracy":
        return 100 * (1 - mean), 100 * error
    return (100 * mean, 100 * error) if name == "test/bma/coverage_90" else (mean, error)


def in_short(comparison: Comparison) -> str:
    """Which method has the smallest NLL, in one sentence; empty where there are no two on the same data."""
    name = "test/bma/nll"
    scored = [m for m in comparison.methods if not math.isnan(m.scores.get(name, (math.nan,))[0])]
    if len(scored) < 2 or not comparison.same_data:
        return ""
    best, second = sorted(scored, key=lambda method: method.scores[name][0])[:2]
    (mean, error), (next_mean, next_error) = best.scores[name], second.scores[name]
    error = math.hypot(error, next_error)
    gap = f"{next_mean - mean:.4f}" + ("" if math.isnan(error) else f" ± {error:.4f}")
    return f"The smallest NLL is that of {best.label}, {gap} nats below {second.label}."


def _without_copies(runs: Sequence[ComparedRun]) -> list[ComparedRun]:
    kept: dict[str, ComparedRun] = {}
    for run in runs:
        twin = kept.setdefault(json.dumps([run.method, run.draw, run.settings], sort_keys=True), run)
        if twin is not run:
            warnings.warn(f"{run.path} is a copy of {twin.path} and is left out", BdlWarning, stacklevel=3)
    return list(kept.values())


def _differing(runs: Sequence[ComparedRun]) -> dict[str, list[str]]:
    """The settings that differ between runs of one method, each with those that change along with it."""
    alike: dict[tuple[int, ...], list[str]] = {}
    for key in dict.fromkeys(key for run in runs for key in run.settings):
        values = [run.setting(key) for run in runs]
        if len({(run.method, run.setting(key)) for run in runs}) > len({run.method for run in runs}):
            alike.setdefault(tuple(values.index(value) for value in values), []).append(key)
    return {keys[0]: keys[1:] for keys in alike.values()}


def _rows(
    label: str, settings: Mapping[str, str], runs: Sequence[ComparedRun], shown: Sequence[str]
) -> list[ComparedMethod]:
    """The row of a method, and that of the deep ensembles at which its chains began, if they all have one."""
    runs = sorted(runs, key=lambda run: (sort_key(run.seed), str(run.path)))
    rows = [ComparedMethod(label, settings, runs, _scores(runs, shown))]
    finished = rows[0].finished
    if finished and all("test/start/nll" in run.metrics for run in finished):
        start = f": its start, a deep ensemble of {finished[0].metrics['start/members']:.0f}"
        ensembles = [
            replace(run, metrics={k.replace("/start/", "/bma/"): v for k, v in run.metrics.items() if "/start/" in k})
            for run in finished
        ]
        settings = {**settings, "method": settings["method"] + start}
        rows.append(ComparedMethod(label + start, settings, ensembles, _scores(ensembles, shown), judged=False))
    return rows


def _scores(runs: Sequence[ComparedRun], names: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Mean and standard error of each metric over the runs that have it; NaN where there are too few."""
    table = pd.DataFrame([run.metrics for run in runs], columns=list(names), dtype=float)
    return dict(zip(names, zip(table.mean().tolist(), table.sem().tolist(), strict=True), strict=True))


def loss(name: str, value: float) -> float:
    """What the best method has least of; NaN for metrics of which neither more nor less is better."""
    score = name.rpartition("/")[2]
    if score == "coverage_90":
        return abs(value - 0.9)
    return value if score in SMALLER_IS_BETTER else -value if score == "accuracy" else math.nan


def sort_key(word: str) -> tuple[int, float, str]:
    """Numbers by their size, then words."""
    try:
        return 0, float(word), word
    except ValueError:
        return 1, 0.0, word
