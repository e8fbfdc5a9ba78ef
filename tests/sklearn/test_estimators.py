"""Tests of `bdl.sklearn.estimators`, `.base`, `.columns_of_y`, `.sampling` and `.rows`.

What estimators are used for: seeds, pickles, pipelines, searches, tables, messages.
"""

import contextlib
import io
import signal
import subprocess
import sys
import tempfile

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from forked import Forked
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

import bdl
from bdl.data.split import hold_out
from bdl.errors import BdlWarning, ConfigError
from bdl.sklearn import BayesianMLPClassifier, BayesianMLPRegressor
from bdl.sklearn.sampling import NotConverged

START = bdl.AdamWStart(lr=0.02, epochs=30)
SMALL = dict(
    hidden_layer_sizes=(8,), start=START, chains=2, samples=4, steps=20, lr=1e-3, prior_std=1.0, random_state=0
)  # fmt: skip


def rows(n: int = 60, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    """A table of numbers, and a target in large units."""
    random = np.random.default_rng(seed)
    X = pd.DataFrame({"size": random.normal(100, 20, n), "age": random.uniform(0, 50, n)})
    return X, (1000 + 5 * X["size"] - 4 * X["age"] + 10 * random.normal(size=n)).to_numpy()


@pytest.fixture(scope="module")
def regressor():
    return BayesianMLPRegressor(**SMALL).fit(*rows())


@pytest.fixture(scope="module")
def classifier():
    X, y = rows()
    return BayesianMLPClassifier(**SMALL).fit(X, np.where(y > 1400, "dear", "cheap"))


def test_several_columns_of_classes_are_predicted_each():
    X, y = rows()
    dear, old = np.where(y > 1400, "dear", "cheap"), np.digitize(X["age"], [15, 35]).astype(str)
    model = BayesianMLPClassifier(**SMALL).fit(X, np.column_stack([dear, old]))
    assert [list(classes) for classes in model.classes_] == [["cheap", "dear"], ["0", "1", "2"]]
    probs, classes = model.predict_proba(X), model.predict(X)
    assert [p.shape for p in probs] == [(60, 2), (60, 3)] and classes.shape == (60, 2)
    for j, p in enumerate(probs):
        np.testing.assert_allclose(p.sum(1), 1, rtol=1e-12)
        assert (classes[:, j] == model.classes_[j][p.argmax(1)]).all()
    assert (classes[:, 0] == dear).mean() > 0.8
    with pytest.raises(ConfigError, match="conformal_set is made for one column"):
        model.conformal_set(X, X, dear)
    with pytest.raises(ConfigError, match=r"y\[:, 1\] has one class only"):
        BayesianMLPClassifier(**SMALL).fit(X, np.column_stack([dear, dear == "no"]))


def test_levels_in_an_order_are_predicted_by_their_probabilities():
    X, y = rows()
    model = BayesianMLPRegressor(loss="ordinal", **SMALL).fit(X, np.digitize(y, [1300, 1400, 1500]) + 1)
    frame = model.predictive(X).to_frame()
    np.testing.assert_allclose(frame[["p_1", "p_2", "p_3", "p_4"]] @ [1, 2, 3, 4], model.predict(X), rtol=1e-5)
    low, high = model.predict_interval(X)
    assert set(low) | set(high) <= {1.0, 2.0, 3.0, 4.0}


def test_one_seed_gives_the_same_bits_and_moves_no_other_stream(regressor):
    X, y = rows()
    torch.manual_seed(3)
    np.random.seed(3)
    states = torch.get_rng_state(), np.random.get_state()[1].copy()
    again = clone(regressor).fit(X, y)
    assert torch.equal(torch.get_rng_state(), states[0]) and (np.random.get_state()[1] == states[1]).all()
    assert np.array_equal(again.predict(X, return_std=True), regressor.predict(X, return_std=True))
    other = clone(regressor).set_params(random_state=1).fit(X, y)
    assert not np.array_equal(other.predict(X), regressor.predict(X))


def test_a_row_has_one_prediction_whatever_the_other_rows_are(classifier):
    X, _ = rows()
    whole = classifier.predict_proba(X)
    assert np.abs(np.vstack([classifier.predict_proba(X[i : i + 1]) for i in range(5)]) - whole[:5]).max() < 1e-7


def test_standardising_what_is_standardised_changes_nothing():
    """Columns of ±1 have mean 0 and standard deviation 1 exactly."""
    X = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]] * 10, dtype=float)
    y = X[:, 0] * X[:, 1]
    plain, scaled = (BayesianMLPRegressor(**SMALL, standardize=s).fit(X, y).predict(X) for s in (False, True))
    assert np.array_equal(plain, scaled)


def test_predictions_are_in_the_units_of_the_target(regressor):
    X, y = rows()
    same = clone(regressor).fit(X, 8 * y - 4096)  # exact in floating point, up to the mean
    mean, std = same.predict(X, return_std=True)
    expected = regressor.predict(X, return_std=True)
    np.testing.assert_allclose(mean, 8 * expected[0] - 4096, rtol=0, atol=8 * 0.2 * expected[1].min())
    np.testing.assert_allclose(std, 8 * expected[1], rtol=0.2)
    assert regressor.score(X, y) > 0.8


def test_rows_far_from_all_training_rows_are_told(regressor, recwarn):
    """Another unit, or a slip of the hand; the rows of training are not far."""
    X, _ = rows()
    regressor.predict(X)
    assert not recwarn.list
    regressor.predict(X.assign(size=X["size"].where(X.index != 3, 1e6)))
    (told,) = recwarn.list
    assert told.category is BdlWarning
    assert "X: inputs are far from all training rows: size in 1 of 60 rows" in str(told.message)


@pytest.mark.parametrize("standardize", [True, False])
def test_a_column_in_another_unit_is_told(standardize, recwarn):
    X, y = rows()
    X = X.assign(size=X["size"] / X["size"].std() + 20)
    model = BayesianMLPRegressor(**SMALL, standardize=standardize).fit(X, y)
    recwarn.clear()
    model.predict(X)
    assert not recwarn.list
    model.predict(X.assign(size=X["size"] / 1.3))
    assert [str(w.message)[:52] for w in recwarn] == ["X: inputs are unlike those of training: size has the"]


def test_interval_quantiles_and_moments_come_from_one_law(regressor):
    X, _ = rows()
    low, high = regressor.predict_interval(X, coverage=0.9)
    quantiles = regressor.predict_quantiles(X)
    assert quantiles.shape == (60, 3)
    np.testing.assert_allclose(quantiles[:, [0, 2]], np.stack([low, high], 1), rtol=1e-9)
    assert np.array_equal(regressor.predict_quantiles(X, 0.5), quantiles[:, 1:2])
    law = regressor.predictive(X)
    mean, std = regressor.predict(X, return_std=True)
    np.testing.assert_allclose(std**2, (law.aleatoric**2 + law.epistemic**2)[:, 0], rtol=1e-5)
    assert ((low < mean) & (mean < high)).all()


@pytest.mark.parametrize("noise, outputs", [("input", 2), ("constant", 1), (10.0, 1)])
def test_noise_says_which_law_the_errors_have(noise, outputs):
    X, y = rows()
    model = BayesianMLPRegressor(**{**SMALL, "steps": 8, "start": None}, noise=noise).fit(X, y)
    aleatoric = model.predictive(X).aleatoric
    last = [p for p in model.posterior_.net.parameters() if p.ndim == 2][-1]
    assert len(last) == outputs
    assert (float(aleatoric.std()) > 1e-3) == (noise == "input")
    if noise == 10.0:
        np.testing.assert_allclose(aleatoric, 10.0, rtol=1e-5)


def test_the_law_of_y_follows_its_values_or_is_asked_for():
    X, y = rows()
    short = {**SMALL, "steps": 8, "start": None}
    some = np.where(X["age"] < 20, 0.0, y)
    model = BayesianMLPRegressor(**short).fit(X, some)
    law = model.predictive(X)
    assert isinstance(law.mixture.likelihood, bdl.HurdleNLL) and (law.quantile(0.001) >= 0).all()
    assert (model.predict_quantiles(X, 0.001) == 0).all() and law.crps(torch.tensor(some)).isfinite().all()
    for noise, loss in (("input", "normal"), ("constant", "auto"), (10.0, "auto")):
        with pytest.warns(BdlWarning, match="y is 0 in 16 of 60 rows"):  # for which such a law has no place
            plain = BayesianMLPRegressor(**short, loss=loss, noise=noise).fit(X, some).predictive(X)
        assert not isinstance(plain.mixture.likelihood, bdl.HurdleNLL)
    for loss, noise, standardize in (("lognormal", "input", True), ("gamma", "constant", False)):
        model = BayesianMLPRegressor(**short, loss=loss, noise=noise, standardize=standardize).fit(X, y)
        low, _ = model.predict_interval(X, 0.999)
        assert (low > 0).all() and model.target_.mean == 0
    with pytest.raises(ConfigError, match="takes positive numbers"):
        BayesianMLPRegressor(**short, loss="gamma").fit(X, some)


def test_a_row_of_weight_0_is_left_out():
    X, y = rows()
    groups, weights = np.arange(60) // 4, np.where(np.arange(60) % 3, 1.0, 0.0)
    some = BayesianMLPRegressor(**SMALL).fit(X[weights > 0], y[weights > 0], groups=groups[weights > 0])
    weighted = BayesianMLPRegressor(**SMALL).fit(X, y, sample_weight=weights, groups=groups)
    np.testing.assert_array_equal(some.predict(X), weighted.predict(X))


def test_a_row_of_weight_9_counts_nine_times():
    """Half of the answers are 1 by number, and 9 of 10 by weight; X says nothing of them."""
    X, y = np.tile([[-1.0], [1.0]], (40, 1)), np.repeat([0, 1], 40)
    linear, weights = SMALL | {"hidden_layer_sizes": (), "temperature": 1.0, "steps": 300}, 1.0 + 8.0 * y
    classifier, regressor = BayesianMLPClassifier(**linear), BayesianMLPRegressor(**linear, noise="constant")
    for w, share in ((None, 0.5), (weights, 0.9)):
        assert classifier.fit(X, y, sample_weight=w).predict_proba(X)[:, 1].mean() == pytest.approx(share, abs=0.1)
        assert regressor.fit(X, y, sample_weight=w).predict(X).mean() == pytest.approx(share, abs=0.1)


LOAD = """
import sys, joblib, numpy as np
model, X = joblib.load(sys.argv[1])
np.save(sys.argv[2], model.predict_proba(X))
"""


@pytest.fixture(scope="module")
def two_columns():
    """A regressor of two columns that differ in units by a factor of 1,000."""
    X, y = rows()
    return BayesianMLPRegressor(**SMALL).fit(X, np.column_stack([y, -0.001 * y]))


def test_predictions_of_several_columns_have_their_shape_and_units(two_columns):
    X, y = rows()
    mean, std = two_columns.predict(X, return_std=True)
    assert mean.shape == std.shape == (60, 2) and two_columns.score(X, np.column_stack([y, -0.001 * y])) > 0.5
    low, high = two_columns.predict_interval(X)
    quantiles = two_columns.predict_quantiles(X, [0.05, 0.5, 0.95])
    assert quantiles.shape == (60, 2, 3) and two_columns.predict_quantiles(X, 0.5).shape == (60, 2, 1)
    np.testing.assert_allclose(np.stack([low, high], -1), quantiles[..., [0, 2]], rtol=1e-6)
    held = two_columns.conformal_interval(X, X, np.column_stack([y, -0.001 * y]), coverage=0.8)
    inside = (held[0] <= np.column_stack([y, -0.001 * y])) & (np.column_stack([y, -0.001 * y]) <= held[1])
    assert held[0].shape == (60, 2) and (inside.mean(0) >= 0.8).all()


def test_one_column_of_y_keeps_its_axis():
    X, y = rows()
    flat, column = (BayesianMLPRegressor(**SMALL).fit(X, each) for each in (y, y[:, None]))
    np.testing.assert_array_equal(flat.predict(X)[:, None], column.predict(X))
    assert flat.predict_quantiles(X).shape == (60, 3) and column.predict_quantiles(X).shape == (60, 1, 3)


def test_draws_have_the_moments_of_the_prediction(regressor, two_columns):
    """The mean of n draws has the standard error std / sqrt(n), and their standard deviation std / sqrt(2 n)."""
    X, _ = rows(5)
    n = 4000
    for estimator, shape in ((regressor, (5, n)), (two_columns, (5, 2, n))):
        draws, (mean, std) = estimator.sample_y(X, n), estimator.predict(X, return_std=True)
        assert draws.shape == shape
        assert (np.abs(draws.mean(-1) - mean) < 5 * std / np.sqrt(n)).all()
        np.testing.assert_allclose(draws.std(-1), std, rtol=0.1)


def test_known_noise_may_differ_between_columns():
    X, y = rows()
    Y = np.column_stack([y, -0.001 * y])
    fitted = BayesianMLPRegressor(noise=[20.0, 0.05], **SMALL).fit(X, Y)
    np.testing.assert_allclose(fitted.predictive(X).aleatoric, np.tile([20.0, 0.05], (60, 1)), rtol=1e-5)
    with pytest.raises(ConfigError, match="or one for each of 2 columns of y; got"):
        BayesianMLPRegressor(noise=[1.0, 2.0, 3.0], **SMALL).fit(X, Y)
    with pytest.raises(ConfigError, match="y1 is 3 in all 60 rows"):
        BayesianMLPRegressor(**SMALL).fit(X, np.column_stack([y, np.full(60, 3.0)]))


def test_a_fitted_estimator_needs_no_file_in_another_process(tmp_path, monkeypatch):
    X, y = rows()
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(scratch))
        model = BayesianMLPClassifier(**SMALL).fit(X, y > 1400)
    assert list(scratch.iterdir()) == []
    joblib.dump((model, X), tmp_path / "model.joblib")
    (tmp_path / "load.py").write_text(LOAD)
    process = Forked([str(tmp_path / "load.py"), str(tmp_path / "model.joblib"), str(tmp_path / "p.npy")], tmp_path)
    _, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    assert np.array_equal(np.load(tmp_path / "p.npy"), model.predict_proba(X))
    assert len((tmp_path / "model.joblib").read_bytes()) < 100_000


def test_text_and_gaps_in_a_pipeline_and_a_search():
    X, y = rows()
    X = X.assign(city=np.where(np.arange(60) % 3, "Bonn", "Kiel"))
    X.loc[[3, 17], "age"] = np.nan
    prepare = make_column_transformer((OneHotEncoder(), ["city"]), (SimpleImputer(), ["size", "age"]))
    pipeline = make_pipeline(prepare, BayesianMLPRegressor(**SMALL))
    search = GridSearchCV(pipeline, {"bayesianmlpregressor__temperature": [0.1, 1.0]}, cv=2).fit(X, y)
    assert search.best_score_ > 0.5
    _, std = search.best_estimator_.predict(X, return_std=True)
    assert std.shape == (60,)
    assert cross_val_score(BayesianMLPRegressor(**SMALL), X[["size"]], y, cv=2).shape == (2,)


def test_a_sparse_matrix_is_read_as_the_array_it_stands_for():
    """OneHotEncoder makes one of a column with many categories, and a column transformer hands it on."""
    X, y = OneHotEncoder().fit_transform(np.arange(40)[:, None] % 20), np.arange(40) % 2
    sparse, array = (BayesianMLPClassifier(**SMALL).fit(rows, y).predict_proba(rows) for rows in (X, X.toarray()))
    np.testing.assert_array_equal(sparse, array)


def test_names_of_columns_are_kept_and_compared(classifier):
    X, _ = rows()
    assert list(classifier.feature_names_in_) == ["size", "age"] and classifier.n_features_in_ == 2
    assert list(classifier.classes_) == ["cheap", "dear"]
    with pytest.raises(ValueError, match="feature names"):
        classifier.predict(X[["age", "size"]])


def test_verbose_shows_progress_findings_and_the_verdict():
    X, y = rows()
    shown, silent = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(shown):
        BayesianMLPRegressor(**{**SMALL, "prior_std": None}, verbose=True).fit(X, y)
    with contextlib.redirect_stdout(silent), pytest.warns(NotConverged) as told:
        BayesianMLPRegressor(**SMALL).fit(X, y)
    lines = shown.getvalue().splitlines()
    assert any(line.startswith("tune: prior") for line in lines)
    assert any(line.startswith("step 20 of 20") for line in lines)
    assert lines[-3].startswith("verdict: more samples. ") and lines[-1].startswith("next: predictive(X) has means")
    assert silent.getvalue() == "" and len(told) == 1


@pytest.mark.parametrize("settings, changed", [
    (dict(steps=40, prior_std=None), {"chains"}), (dict(steps=40, chains=4), {"steps"})
])  # fmt: skip
def test_the_next_fit_that_a_warning_names_runs_and_helps(settings, changed):
    """Its line is Python: it names arguments of the estimator, and can be run as it is printed."""
    X, y = rows()
    model = BayesianMLPRegressor(**{**SMALL, **settings})
    with pytest.warns(NotConverged, match="next: (sample [0-9]+ times as long|run 4 chains): set_params") as told:
        model.fit(X, y)
    before = model.get_params()
    call = str(told[0].message).rpartition(": ")[2]
    model.fit = lambda X, y: model  # as long as it says would take too long for a test
    assert eval(f"model.{call}") is model
    after = model.get_params()
    assert {name for name in after if after[name] != before[name]} == changed
    assert all(after[name] > before[name] for name in changed)


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_fit_that_is_stopped_is_no_success_and_no_exit_of_a_notebook(monkeypatch, sent):
    """Lightning ends the process with status 1 at Ctrl-C, without a word, and with 0 at SIGTERM."""
    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(bdl.Monitor, "on_train_batch_end", lambda *args: signal.raise_signal(sent))
    with pytest.raises(KeyboardInterrupt if sent == signal.SIGINT else SystemExit) as stopped:
        BayesianMLPRegressor(**SMALL).fit(*rows())
    assert signal.getsignal(signal.SIGINT) is before
    assert sent == signal.SIGINT or getattr(stopped.value, "code", None) == 143


def test_sghmc_takes_batches_and_finds_its_step_size():
    X, y = rows()
    settings = {**SMALL, "sampler": "sghmc", "lr": None, "prior_std": None, "steps": 100}
    model = BayesianMLPRegressor(**settings).fit(X, y)
    assert model.score(X, y) > 0.8
    assert model.posterior_.samples == 2 * 4


WRONG = {
    "sampler must be auto or one of mclmc": dict(sampler="nuts"),
    "start must be": dict(start="sgd"),
    "at least 7": dict(steps=5),
    "chains must be a whole number of at least 1, got 0": dict(chains=0),
    "samples must be a whole number of at least 1, got 2.5": dict(samples=2.5),
    "steps must be a whole number of at least 1, got 1000.0": dict(steps=1e3),
    "dynamics such as bdl.SGHMC.0.05.; got": dict(sampler=bdl.SGHMC),
    "units in hidden_layer_sizes must be a whole number of at least 1, got 0": dict(hidden_layer_sizes=(8, 0)),
    'hidden_layer_sizes must be "auto", got': dict(hidden_layer_sizes="wide"),
    'prior_std must be "fan_in".*, got .wide': dict(prior_std="wide"),
    "prior_std must be > 0": dict(prior_std=0.0),
    "noise must be": dict(noise=-1.0),
    "loss must be one of": dict(loss="cauchy"),
    "does not fit loss='lognormal'": dict(loss="lognormal", noise=2.0),
    "unknown activation": dict(activation="step"),
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_settings_are_refused_in_one_line(message):
    with pytest.raises(ConfigError, match=message) as refusal:
        BayesianMLPRegressor(**{**SMALL, **WRONG[message]}).fit(*rows())
    assert "\n" not in str(refusal.value)


def test_what_cannot_be_drawn_or_saved_is_refused_in_bdl_s_words(regressor):
    X, _ = rows()
    with pytest.raises(ConfigError, match="the number of draws must be a whole number of at least 1, got 0"):
        regressor.sample_y(X, 0)
    with pytest.raises(ConfigError, match="this posterior is in memory, and pickle keeps it"):
        regressor.posterior_.save("nowhere")
    assert "in memory" in repr(regressor.posterior_) and "/" not in repr(regressor.posterior_).splitlines()[1]


def test_wrong_data_are_refused():
    X, y = rows()
    with pytest.raises(ConfigError, match="one class only"):
        BayesianMLPClassifier(**SMALL).fit(X, np.ones(60))
    with pytest.raises(ConfigError, match="nothing can be learned"):
        BayesianMLPRegressor(**SMALL).fit(X, np.ones(60))
    for weights in (-np.ones(60), np.full(60, np.nan), np.ones(59), np.ones((60, 2))):
        with pytest.raises(ConfigError, match="sample_weight must have one finite number >= 0 for each of 60 rows"):
            BayesianMLPRegressor(**SMALL).fit(X, y, sample_weight=weights)
    with pytest.raises(ConfigError, match="sample_weight is zero in all rows"):
        BayesianMLPRegressor(**SMALL).fit(X, y, sample_weight=np.eye(60)[0])


def test_import_bdl_does_not_load_scikit_learn():
    code = "import sys, bdl; assert 'sklearn' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_conformal_sets_and_intervals_hold_unseen_rows(regressor, classifier):
    """400 new rows calibrate and 400 others judge: the share that is held has a standard error of at most 0.0212. Names
    of classes that the fit has not seen are refused."""
    X, y = rows(800, seed=5)
    names = np.where(y > 1400, "dear", "cheap")
    low, high = regressor.conformal_interval(X[400:], X[:400], y[:400], coverage=0.9)
    assert ((low <= y[400:]) & (y[400:] <= high)).mean() == pytest.approx(0.9, abs=4 * 0.0212)
    sets = classifier.conformal_set(X[400:], X[:400], names[:400], coverage=0.9)
    held = sets[np.arange(400), np.searchsorted(classifier.classes_, names[400:])]
    assert held.mean() >= 0.9 - 4 * 0.0212
    with pytest.raises(ValueError, match="'free', which fit has not seen"):
        classifier.conformal_set(X, X[:9], np.array(["free"] * 9))


def test_groups_stay_together_in_a_fit_and_in_intervals(regressor, monkeypatch):
    """Early stopping and the choice of the prior see whole groups; intervals for rows of new groups are wider."""
    X, y = rows(240, seed=5)
    groups, held = np.repeat([f"person {k}" for k in range(30)], 8), []

    def watched(*args, **keys):
        held.append((keys["groups"], hold_out(*args, **keys)))
        return held[-1][1]

    monkeypatch.setattr("bdl.start.hold_out", watched)
    monkeypatch.setattr("bdl.tune.find.hold_out", watched)
    BayesianMLPRegressor(**SMALL | {"prior_std": None, "steps": 2000}).fit(X, y, groups=groups)
    assert len(held) >= 2
    for codes, (kept, out) in held:
        assert len(out) and not set(codes[kept].tolist()) & set(codes[out].tolist())
    shifted = y + 200 * np.random.default_rng(0).normal(size=30)[np.repeat(np.arange(30), 8)]
    alone, grouped = (regressor.conformal_interval(X, X, shifted, groups_val=of) for of in (None, groups))
    assert (grouped[1] - grouped[0] > alone[1] - alone[0]).all()
    with pytest.raises(ValueError, match="groups has 3 values for 240 rows"):
        BayesianMLPRegressor(**SMALL).fit(X, y, groups=[1, 2, 3])


def test_fit_tells_a_verdict_that_is_not_trust_once_and_keeps_it():
    from sklearn.exceptions import ConvergenceWarning

    x = np.random.default_rng(0).uniform(0, 10, (60, 1))
    model = BayesianMLPRegressor(8, random_state=0, steps=60, chains=2, samples=5, prior_std=1.0, start=None)
    with pytest.warns(ConvergenceWarning, match="^verdict: ") as said:
        model.fit(x, np.sin(x[:, 0]))
    assert len([w for w in said if issubclass(w.category, bdl.VerdictWarning)]) == 1 and said[0].filename == __file__
    assert model.verdict_.outcome != "trust" and str(said[0].message).startswith(model.verdict_.line)


@pytest.mark.parametrize("dtype", [complex, object])
def test_complex_numbers_are_refused(regressor, dtype):
    X, y = rows()
    with pytest.raises(ConfigError, match="X: column 'size' holds complex numbers"):
        BayesianMLPRegressor(**SMALL).fit((X + 1j).astype(dtype), y)
    with pytest.raises(ConfigError, match="X: column 'size' holds complex numbers"):
        regressor.predict((X + 1j).astype(dtype))
    with pytest.raises(ConfigError, match="y holds complex numbers"):
        BayesianMLPRegressor(**SMALL).fit(X, (y + 1j).astype(dtype))
