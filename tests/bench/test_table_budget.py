"""scripts/tabular/budget.py and `--budget` of scripts/experiments/tables.py: the rule by clocks that count calls."""

import json
import math
from itertools import count

import numpy as np
import pandas as pd
import pytest
from experiments import tables as comparison
from repeats import slow_where
from tabular.budget import (
    FIRST,
    LENGTHS,
    OF_NUMBERS,
    SPACES,
    Clock,
    OutOfTimeError,
    best_settings,
    drawn,
    longest,
    within,
)
from tabular.methods import METHODS, predicted
from tabular.scores import Law, scores_of_numbers
from tabular.sources import Fold

import bdl


class Time:
    """Core-seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds

    def clock(self, budget: float) -> Clock:
        return Clock(budget, now=self, began=0.0)


def counted(budget: float) -> Clock:
    """Each look at it takes a second."""
    return Clock(budget, now=count().__next__, began=0.0)


@pytest.fixture
def numbers() -> Fold:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 2))
    y = x[:, 0] + 0.5 * rng.normal(size=80)
    return Fold(x[:60], y[:60], x[60:], y[60:], 0)


@pytest.fixture
def classes(numbers) -> Fold:
    return Fold(numbers.x, (numbers.y > 0).astype(int), numbers.x_test, (numbers.y_test > 0).astype(int), 2)


def test_a_search_leaves_time_for_the_last_fit_and_begins_with_the_defaults():
    time, tried = Time(), []
    clock = time.clock(11)

    def loss(settings: dict) -> float:
        tried.append(settings)
        time.seconds += 3 if len(tried) == 2 else 2
        return (settings["C"] - 1) ** 2 if settings else 1e9

    best = best_settings(loss, {"C": (1e-3, 1e3)}, {}, clock, 0)
    assert tried[0] == {} and len(tried) == clock.told["trials"] == 3  # 11, 9 and 6 were left; 4 are less than 2 x 3
    assert best == min(tried[1:], key=lambda settings: abs(settings["C"] - 1))
    assert clock.left == 4


def test_a_trial_that_fails_does_not_win_and_one_that_takes_all_the_time_is_broken_off():
    def fails(settings: dict) -> float:
        if settings:
            raise np.linalg.LinAlgError("singular")
        return 5.0

    assert best_settings(fails, {"C": (1.0, 2.0)}, {}, counted(30), 0) == {}

    def hangs(settings: dict) -> float:
        while settings:
            pass
        return 5.0

    clock = Clock(0.05)
    assert best_settings(hangs, {"C": (1.0, 2.0)}, {}, clock, 0) == {} and clock.told["trials"] == 1
    with pytest.raises(OutOfTimeError), clock.at_most(0.01):
        hangs({"C": 1.0})


def test_turns_end_when_the_longest_would_not_fit():
    time = Time()
    clock = time.clock(10)
    turns = []
    for turn in clock.turns():
        turns.append(turn)
        time.seconds += (2, 4, 1, 9)[turn]
    assert turns == [0, 1, 2]  # 3 are left, and the longest took 4
    assert list(time.clock(0).turns()) == [0]  # never none


@pytest.mark.parametrize("budget, length", [(20, 11_150), (200, 40_000), (7, 4_000), (1, 4_000)])
def test_a_length_is_on_the_line_through_two_short_runs(budget: float, length: int):
    time, lengths = Time(), []
    clock = time.clock(budget)

    def run(length: int) -> int:
        time.seconds += 1 + length / 1000
        lengths.append(length)
        return length

    assert longest(run, "steps", (500, 4_000), clock) == pytest.approx(length, abs=1)  # 0.9 x 13.5 s for the first
    assert clock.told["steps"] == lengths[-1] and lengths[:2] == [500, 4_000] and len(lengths) <= 3
    assert budget != 20 or clock.left == pytest.approx(1.35, abs=0.01)


def test_random_settings_lie_in_their_ranges():
    rng = np.random.default_rng(0)
    values = [drawn({"a": (1e-2, 1e2), "b": (2, 30), "c": ["x", "y"]}, rng) for _ in range(400)]
    assert all(0.01 <= v["a"] <= 100 and isinstance(v["b"], int) and 2 <= v["b"] <= 30 for v in values)
    assert np.median([v["a"] for v in values]) == pytest.approx(1, abs=0.6)  # log-uniform; standard error 0.58
    assert {v["c"] for v in values} == {"x", "y"}


def test_all_methods_have_a_rule():
    assert SPACES.keys() | LENGTHS.keys() == METHODS.keys() and FIRST.keys() <= SPACES.keys()


@pytest.mark.parametrize("name", [*SPACES, *LENGTHS])
def test_only_training_rows_choose(name: str, numbers):
    asked = []

    def fit(fold: Fold, seed: int, members=(), **settings) -> Law:
        asked.append((fold, settings, len(list(members))))
        return Law(np.zeros(len(fold.y_test)), np.zeros((19, len(fold.y_test))))

    within(name, fit, numbers, 0, counted(40))
    *trials, (last, settings, members) = asked
    assert last is numbers and len(trials) >= 2
    if name in LENGTHS:
        assert [settings.keys() for _, settings, _ in asked] == 3 * [{LENGTHS[name][0]}]
        return
    assert settings in [settings for _, settings, _ in trials] and trials[0][1] == FIRST.get(name, {})
    rows = sorted(tuple(x) for x in numbers.x)
    for part, _, alone in trials:
        assert sorted(map(tuple, [*part.x, *part.x_test])) == rows and len(part.y_test) == 20
        assert (alone, members > 1) == ((1, True) if name == "deep ensemble" else (0, False))


def test_the_defaults_stand_in_where_the_best_settings_fail_on_all_rows(numbers):
    def fit(fold: Fold, seed: int, **settings: float) -> Law:
        C = sum(settings.values())
        if C and fold is numbers:
            raise np.linalg.LinAlgError("singular")
        return Law(np.full(len(fold.y_test), C), np.full((19, len(fold.y_test)), fold.y_test + (0.0 if C else 9.0)))

    law = within("linear", fit, Fold(*vars(numbers).values()), 0, counted(20))
    assert isinstance(law, Law) and law.mean.max() > 0  # found by the search
    law = within("linear", fit, numbers, 0, counted(20))
    assert isinstance(law, Law) and law.mean.max() == 0

    def never(fold: Fold, seed: int, **settings) -> Law:
        raise np.linalg.LinAlgError("singular")

    with pytest.raises(np.linalg.LinAlgError):
        within("linear", never, numbers, 0, counted(20))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    "name", slow_where(lambda name: name != "deep ensemble", ["linear", "GP", "HGB", "MC dropout", "deep ensemble"])
)
def test_methods_take_the_settings_of_their_search(name: str, numbers, classes, monkeypatch):
    monkeypatch.setattr("tabular.networks.EPOCHS", 5)
    clock = counted(14)
    law, fold = predicted(name, numbers, 0, clock)
    assert clock.told["trials"] >= 2
    assert isinstance(law, Law) and math.isfinite(scores_of_numbers(law, fold.y_test, 1.0)["crps"])
    probs, fold = predicted(name, classes, 0, counted(14))
    assert isinstance(probs, np.ndarray) and probs.shape == (20, 2)
    rng = np.random.default_rng(0)
    for part, space in (
        (numbers, OF_NUMBERS.get(name, SPACES[name])),
        (classes, SPACES[name]),
    ):  # and those at the ends of their ranges
        fit = METHODS[name].classes if part.classes else METHODS[name].numbers
        for _ in range(2):
            fit(part, 0, **drawn(space, rng))


def test_cells_at_a_budget_have_lines_and_ranks_of_their_own(tmp_path, monkeypatch):
    folder, out, measured = tmp_path / "folder", tmp_path / "out", []
    folder.mkdir()
    pd.DataFrame({"a": np.arange(40.0), "y": np.arange(40.0) ** 2}).to_csv(folder / "made.csv", index=False)

    def run_cell(words, limit):
        measured.append((words[1], float(words[4])))
        tuned = float(words[4]) > 0
        return {"crps": 0.2 if tuned == (words[1] == "linear") else 0.3, "nll": 0.5, "core_seconds": 1.0}

    monkeypatch.setattr(comparison, "run_cell", run_cell)
    asked = {"only": ["linear", "GP"], "tables": ["made"], "folder": folder, "out": out, "seeds": [0]}
    comparison.main(**asked)
    for _ in range(2):
        comparison.main(budget=20.0, **asked)
    assert measured == [("linear", 0.0), ("GP", 0.0), ("linear", 20.0), ("GP", 20.0)]
    record = json.loads((out / "ranks.json").read_text())
    assert record["cells"] == record["budgets"]["20"]["cells"] == 2
    assert record["ranks"]["Numbers, CRPS"]["mean"] == {"GP": 1.0, "linear": 2.0}
    assert record["budgets"]["20"]["ranks"]["Numbers, CRPS"]["mean"] == {"linear": 1.0, "GP": 2.0}
    assert (out / "ranks.png").exists() and (out / "ranks_20.png").exists()
    text = (out / "ranks.md").read_text()
    assert "## At 20 core-seconds" in text and "| linear, 20 core-s | 1 | 0.200" in text and "| GP | 1 | 0.200" in text
    assert record["seeds"] == [0] and record["seconds"] == {"linear": 1.0, "GP": 1.0}
    comparison.main(**asked | {"only": ["GP"], "seeds": [1]})  # a fold that one method lacks does not count
    assert json.loads((out / "ranks.json").read_text())["seeds"] == [0, 1]  # its own lines
    comparison.write(out)
    assert json.loads((out / "ranks.json").read_text())["seeds"] == [0]
    comparison.main(**asked | {"budget": 20.0, "out": tmp_path / "new"})  # without a line at the defaults
    assert json.loads((tmp_path / "new" / "ranks.json").read_text())["budgets"]["20"]["seeds"] == [0]
    for budget in (0.0, 300.0):
        with pytest.raises(bdl.errors.ConfigError, match=f"--budget {budget:g} must be above 0 and below --limit 300"):
            comparison.main(budget=budget, **asked)
