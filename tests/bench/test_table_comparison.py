"""scripts/experiments/tables.py and scripts/tabular: scores and ranks against their formulas, folds, and the resume."""

import json
import math

import numpy as np
import pandas as pd
import pytest
import torch
from experiments import tables as comparison
from scipy.integrate import quad
from scipy.stats import f as f_law
from scipy.stats import friedmanchisquare, norm
from tabular.methods import METHODS, Method, predicted
from tabular.ranks import critical_difference, draw, ranks_of
from tabular.scores import (
    LEVELS,
    Law,
    crps,
    interval_score,
    mixture,
    of_prediction,
    scores_of_classes,
    scores_of_numbers,
)
from tabular.sources import TABLES, Fold, Source, fold_of, rows_of, sources_of

import bdl
from bdl.posterior.mixture import PredictiveMixture
from bdl.posterior.prediction import of_mixture
from bdl.posterior.stored_outputs import StoredOutputs

MEAN, STD = np.array([[0.0, 1.0], [2.0, -1.0], [0.5, 0.0]]), np.array([[1.0, 0.3], [0.5, 2.0], [0.2, 0.1]])
Y = np.array([0.7, -1.5])


def test_a_mixture_has_its_density_and_its_quantiles():
    law = mixture(MEAN, STD, Y)
    assert law.log_density is not None
    for j, y in enumerate(Y):
        assert math.exp(law.log_density[j]) == pytest.approx(norm.pdf(y, MEAN[:, j], STD[:, j]).mean())
        for level, quantile in zip(LEVELS, law.quantiles[:, j], strict=True):
            assert norm.cdf(quantile, MEAN[:, j], STD[:, j]).mean() == pytest.approx(level, abs=1e-9)


def test_one_normal_law_and_a_prediction_of_bdl_are_scored_as_the_mixture_that_they_are():
    one, twice = (mixture(np.repeat(MEAN[:1], n, 0), np.repeat(STD[:1], n, 0), Y) for n in (1, 2))
    outputs = StoredOutputs()
    outputs.add(torch.tensor(np.stack([MEAN, 2 * np.log(STD)], -1)))
    prediction = of_mixture(PredictiveMixture(outputs, bdl.HeteroscedasticNLL(), torch.ones(3))).rescaled(5.0, 10.0)
    of_bdl, same = of_prediction(prediction, 5 + 10 * Y), mixture(5 + 10 * MEAN, 10 * STD, 5 + 10 * Y)
    for law, expected in ((twice, one), (of_bdl, same)):
        np.testing.assert_allclose(law.mean, expected.mean, rtol=1e-6)
        np.testing.assert_allclose(law.quantiles, expected.quantiles, atol=1e-3)
        np.testing.assert_allclose(law.log_density, expected.log_density, rtol=1e-5)


def test_a_law_with_masses_has_no_density_where_the_targets_have_them():
    outputs = StoredOutputs()
    outputs.add(torch.zeros(3, 2, 3))
    prediction = of_mixture(PredictiveMixture(outputs, bdl.HurdleNLL(points=(0.0,)), torch.ones(3))).rescaled(5.0, 10.0)
    assert of_prediction(prediction, np.array([5.0, 7.0])).log_density is None  # 5 is the point in these units
    assert of_prediction(prediction, np.array([0.0, 7.0])).log_density is not None


def test_crps_is_the_integral_of_the_squared_difference_of_distribution_functions():
    law = mixture(MEAN, STD, Y)
    for j, y in enumerate(Y):

        def squared(t: float, j: int = j, y: float = y) -> float:
            return (norm.cdf(t, MEAN[:, j], STD[:, j]).mean() - (t >= y)) ** 2

        exact = quad(squared, -12, y)[0] + quad(squared, y, 12)[0]
        # the trapezoid rule of 20 parts leaves out a part of both tails
        assert crps(law.quantiles[:, [j]], Y[[j]])[0] == pytest.approx(exact, rel=0.04)
    point = np.full((19, 1), 3.0)  # of a law that is one value it is the absolute error
    assert crps(point, np.array([5.0]))[0] == pytest.approx(2.0 * 19 / 20)


def test_an_interval_pays_twenty_times_what_is_outside():
    low, high = np.array([0.0, 0.0, 0.0]), np.array([1.0, 2.0, 1.0])
    assert interval_score(low, high, np.array([0.5, 2.1, -0.3]), 0.9) == pytest.approx([1.0, 2.0 + 2.0, 1.0 + 6.0])


def test_scores_of_numbers_do_not_depend_on_units():
    first = scores_of_numbers(mixture(MEAN, STD, Y), Y, 1.0)
    second = scores_of_numbers(mixture(1000 * MEAN, 1000 * STD, 1000 * Y), 1000 * Y, 1000.0)
    assert second == pytest.approx(first)
    assert "nll" not in scores_of_numbers(Law(MEAN[0], mixture(MEAN, STD, Y).quantiles), Y, 1.0)
    crossed = mixture(MEAN, STD, Y).quantiles[::-1]
    assert scores_of_numbers(Law(MEAN.mean(0), crossed), Y, 1.0)["coverage_90"] == first["coverage_90"] == 1.0


def test_scores_of_classes_by_hand():
    scores = scores_of_classes(np.array([[0.9, 0.1], [0.4, 0.6], [1.0, 0.0]]), np.array([0, 0, 1]))
    assert scores["accuracy"] == pytest.approx(1 / 3)
    assert scores["nll"] == pytest.approx(-(math.log(0.9) + math.log(0.4) + math.log(1e-12)) / 3)
    assert scores["brier"] == pytest.approx((0.02 + 0.72 + 2.0) / 3)
    assert scores["ece"] == pytest.approx((0.1 + 0.6 + 1.0) / 3)


def test_ranks_are_those_of_demsar():
    assert critical_difference(4, 14) == pytest.approx(1.25, abs=0.005)  # Demsar 2006, section 3.2.3
    scores = np.random.default_rng(0).normal(size=(14, 4)) + [0.0, 0.3, 0.9, 1.2]
    ranks = ranks_of("abcd", scores)
    chi2 = friedmanchisquare(*scores.T).statistic
    assert ranks.p == pytest.approx(f_law.sf(13 * chi2 / (14 * 3 - chi2), 3, 39))
    assert ranks.mean.sum() == pytest.approx(10)


def test_equal_scores_share_ranks_and_failures_are_last():
    scores = np.array([[1.0, 1.0, 2.0, np.inf], [0.0, np.inf, 1.0, np.inf]])
    assert ranks_of("abcd", scores).mean.tolist() == [(1.5 + 1) / 2, (1.5 + 3.5) / 2, (3 + 2) / 2, (4 + 3.5) / 2]


def test_bars_cover_the_longest_runs_of_methods_that_do_not_differ(tmp_path):
    ranks = ranks_of("abcde", np.tile(np.arange(5.0), (30, 1)))
    assert ranks.critical == pytest.approx(1.11, abs=0.01)  # so neighbours do not differ, and others do
    assert ranks.groups() == [(0, 1), (1, 2), (2, 3), (3, 4)]
    few = ranks_of("abcde", np.tile(np.arange(5.0), (2, 1)))
    assert few.groups() == [(0, 4)]
    draw({"NLL": ranks, "CRPS": few, "Brier": few}, tmp_path / "a" / "ranks.png")
    assert (tmp_path / "a" / "ranks.png").stat().st_size > 10_000


@pytest.fixture
def folder(tmp_path):
    """A table of numbers with a word and a gap, and one of three classes."""
    rng, folder = np.random.default_rng(0), tmp_path / "folder"
    folder.mkdir()
    x = rng.normal(size=(90, 2))
    colour = np.where(rng.random(90) < 0.5, "red", "blue")
    frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "colour": colour, "y": 3 * x[:, 0] + rng.normal(size=90)})
    frame.loc[4, "a"] = np.nan
    frame.to_csv(folder / "made.csv", index=False)
    kind = np.argsort(np.argsort(x[:, 1])) // 8 // 4  # 32, 32 and 26 rows
    pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": np.array(["x", "y", "z"])[kind]}).to_csv(
        folder / "kinds.csv", index=False
    )
    return folder


def test_a_folder_brings_numbers_and_classes(folder):
    sources = sources_of(folder)
    assert set(sources) - set(TABLES) == {"made", "kinds"} and set(sources_of(None)) == set(TABLES)
    x, y = rows_of(sources["made"])
    assert x.shape == (89, 3) and set(x[:, 2]) == {0.0, 1.0} and y.dtype == np.float64
    fold, again, other = (fold_of(sources["kinds"], seed) for seed in (0, 0, 1))
    assert fold.classes == 3 and np.array_equal(fold.x_test, again.x_test) and len(fold.y_test) == 23
    assert not np.array_equal(fold.x_test, other.x_test)
    assert np.bincount(fold.y_test).tolist() == [8, 8, 7] and np.bincount(other.y_test).tolist() == [8, 8, 7]


def test_tables_of_sklearn_are_there_and_those_of_a_package_that_is_not_are_left_out(capsys, monkeypatch):
    assert rows_of(TABLES["diabetes"])[0].shape == (442, 10)
    sources = {"iris": TABLES["iris"], "absent": Source("no_such_package", "a", "b")}
    monkeypatch.setitem(METHODS, "new", Method("no_such_library", *2 * [lambda fold, seed: np.ones(1)]))
    assert comparison.there(["iris", "absent"], sources, ["GP", "new"]) == ["iris"]
    assert capsys.readouterr().out == "not installed, and left out: no_such_library, no_such_package\n"
    assert comparison.there(["iris"], sources, ["GP"]) == ["iris"] and capsys.readouterr().out == ""


def test_a_table_that_is_not_there_and_an_empty_folder_are_named(folder, tmp_path):
    with pytest.raises(bdl.errors.ConfigError, match="--tables nope: there are Cars93, .*, kinds, made, and those"):
        comparison.main(tables=["made", "nope"], folder=folder, out=tmp_path / "out")
    with pytest.raises(bdl.errors.ConfigError, match="has no file NAME.csv"):
        comparison.main(folder=tmp_path, out=tmp_path / "out")


@pytest.mark.parametrize("name", ["linear", "GP", "HGB", "MC dropout", "deep ensemble"])
def test_a_method_says_more_than_a_constant(name: str, folder, monkeypatch):
    monkeypatch.setattr("tabular.networks.EPOCHS", 30)
    law, fold = predicted(name, fold_of(sources_of(folder)["made"], 0), 0)
    assert isinstance(law, Law)
    constant = mixture(*np.full((2, 1, len(fold.y_test)), [[[0.0]], [[1.0]]]), fold.y_test)
    assert (
        0.1 < scores_of_numbers(law, fold.y_test, 1.0)["crps"] < scores_of_numbers(constant, fold.y_test, 1.0)["crps"]
    )
    probs, fold = predicted(name, fold_of(sources_of(folder)["kinds"], 0), 0)
    assert isinstance(probs, np.ndarray) and probs.shape == (len(fold.y_test), 3)
    np.testing.assert_allclose(probs.sum(1), 1)
    assert scores_of_classes(probs, fold.y_test)["nll"] < math.log(3)


def test_conformal_quantiles_cover_as_they_say():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 2))
    y = x[:, 0] + rng.normal(size=600)
    law, fold = predicted("HGB", Fold(x[:200], y[:200], x[200:], y[200:], 0), 0)
    assert isinstance(law, Law)
    below = (fold.y_test < law.quantiles).mean(1)
    np.testing.assert_allclose(below, LEVELS, atol=4 * math.sqrt(0.25 / 200))  # by the 200 rows of the residuals


FINE = {"crps": 0.3, "crps_se": 0.06, "nll": 0.5, "core_seconds": 1.0}


def test_cells_with_a_line_stay_and_failures_are_tried_again_when_asked(folder, tmp_path, monkeypatch):
    measured, out = [], tmp_path / "out"

    def run_cell(words, limit):
        measured.append(tuple(words[:3]))
        return {"failed": "ended by signal 9"} if words[1] == "GP" else FINE

    monkeypatch.setattr(comparison, "run_cell", run_cell)
    asked = {"only": ["linear", "GP"], "tables": ["made"], "folder": folder, "out": out}
    comparison.main(seeds=[0], **asked | {"only": ["linear"]})
    assert "Ranks need two methods" in (out / "ranks.md").read_text() and not (out / "ranks.png").exists()
    comparison.main(seeds=[0], **asked)
    assert "NaN" not in (out / "ranks.json").read_text()  # one table has no p
    assert measured == [("made", "linear", "0"), ("made", "GP", "0")]
    with (out / "cells.jsonl").open("a") as file:
        file.write('{"table": "made", "method": "linear", "se')  # a kill in the middle of a line
    comparison.main(seeds=[0, 1], **asked)
    assert measured[2:] == [("made", "linear", "1"), ("made", "GP", "1")]
    comparison.main(seeds=[0], again=True, **asked)
    assert measured[4:] == [("made", "GP", "0")]
    lines = comparison.lines_of(out / "cells.jsonl")
    assert len(lines) == 4 and all({"bdl", "device", "date", "library", "rows"} <= line.keys() for line in lines)
    record = json.loads((out / "ranks.json").read_text())
    assert record["failed"]["made / GP / 1"] == "ended by signal 9" and record["seeds"] == [0, 1]
    text = (out / "ranks.md").read_text()
    assert "| GP | 2 | failed |" in text and "| linear | 2 | 0.300 ± 0.042 | 0.500 | – |" in text  # 0.06 / sqrt(2)


@pytest.mark.parametrize(
    "code, found",
    [
        ("print('a word'); print('{\"nll\": 0.5}')", {"nll": 0.5}),
        ("print('{\"nll\": NaN}')", {"failed": "nll not finite"}),
        ("import os; os.kill(os.getpid(), 9)", {"failed": "ended by signal 9"}),
        ("import os; os.kill(os.getpid(), 24)", {"failed": "took more than 7 core-seconds"}),
        ("raise ValueError('no such thing')", {"failed": "ValueError: no such thing"}),
        ("import sys; sys.exit(3)", {"failed": "no message"}),
    ],
)
def test_a_process_that_dies_says_so(code: str, found: dict, tmp_path, monkeypatch):
    (tmp_path / "tabular").mkdir()
    (tmp_path / "tabular" / "cell.py").write_text(code)
    monkeypatch.setattr(comparison, "SCRIPTS", tmp_path)
    assert comparison.run_cell(["iris", "GP", "0", "7"], 7) == found


def test_ranks_are_of_tables_that_all_methods_have():
    def line(table, method, seed=0, **scores):
        return {"table": table, "method": method, "seed": seed, "classes": False, **(scores or {"failed": "x"})}

    lines = [
        line("a", "linear", crps=1.0, nll=2.0), line("a", "linear", 1, crps=3.0), line("a", "HGB", crps=4.0),
        line("b", "linear", crps=1.0, nll=1.0), line("b", "HGB"),
        line("c", "linear", crps=1.0, nll=1.0), line("c", "HGB", 1, crps=1.0),
    ]  # fmt: skip
    assert dict(comparison.complete(lines, "crps")) == {
        "a": {"linear": 1.0, "HGB": 4.0},  # seed 1 is not counted: one method lacks it
        "b": {"linear": 1.0, "HGB": math.inf},
    }
    assert set(dict(comparison.complete(lines, "nll"))) == {"a", "b", "c"}  # HGB has no density
    panels = comparison.panels_of(lines)
    assert list(dict(comparison.complete([*lines, line("a", "GP", crps=0.0)], "crps"))["a"]) == [
        "linear",
        "HGB",
    ]  # 1 of 3 tables
    record = {title: comparison.of_panel(*panel) for title, panel in panels.items()}
    text = comparison.rank_table({"ranks": record, "seconds": {"linear": 0.1}})
    assert "| linear | 1.0 (2) | 0.1 |" in text and "| HGB | 2.0 (0) | nan |" in text
    assert record["Numbers, CRPS"]["scores"]["b"] == {"linear": 1.0, "HGB": None}
    assert list(panels) == ["Numbers, CRPS"] and panels["Numbers, CRPS"][0].mean.tolist() == [1.0, 2.0]


def test_all_methods_are_named_with_their_library():
    assert len(METHODS) == 10 and comparison.versions("linear")["library"].startswith("scikit-learn ")
    assert comparison.installed(["GP", "linear"]) == ["linear", "GP"]
