"""Tests of `bdl.sklearn.rows`, and of messages under `naming`: what X and y hold, in the words of an estimator."""

import re
import warnings

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_matrix

import bdl
from bdl.errors import BdlWarning, ConfigError
from bdl.sklearn import BayesianMLPClassifier, BayesianMLPRegressor

random = np.random.default_rng(0)
N = 60
X = random.normal(size=(N, 2))
NUMBERS = X[:, 0] + 0.1 * random.normal(size=N)
CLASSES = (X[:, 0] > 0).astype(int)
WORDS = np.where(CLASSES, "b", "a").astype(object)
PROBS = np.stack([1 / (1 + np.exp(X[:, 0])), 1 / (1 + np.exp(-X[:, 0]))], 1)
SMALL = dict(
    hidden_layer_sizes=3, start=None, chains=2, samples=4, steps=20, lr=1e-3, prior_std=1.0, temperature=1.0,
    sampler="mclmc", random_state=0,
)  # fmt: skip


def classifier(y, x=X, **arguments):
    return BayesianMLPClassifier(**SMALL).fit(x, y, **arguments)


def regressor(y, x=X, **arguments):
    return BayesianMLPRegressor(**SMALL, **arguments).fit(x, y)


def with_first(y, value, dtype: object = object):
    changed = np.array(y, dtype=dtype)
    changed[0] = value
    return changed


def frame(**columns):
    return pd.DataFrame({"a": NUMBERS, **columns})


GAP = "y has 1 missing value, the first in row 0: leave these rows out"
REFUSED = {
    "None among words": (lambda: classifier(with_first(WORDS, None)), GAP),
    "NaN among words": (lambda: classifier(with_first(WORDS, np.nan)), GAP),
    "NA": (lambda: classifier(pd.Series([None, *WORDS[1:]], dtype="string")), GAP),
    "NA among truth values": (lambda: classifier(pd.Series([None, *(CLASSES[1:] > 0)], dtype="boolean")), GAP),
    "words and numbers": (lambda: classifier(with_first(WORDS, 3)), "y holds words and numbers, such as 3: write"),
    "dates as classes": (lambda: classifier(pd.date_range("2020", periods=N)), "y holds dates or times: give"),
    "one class": (lambda: classifier(np.zeros(N)), "y has one class only, 0.0, in 60 rows"),
    "one class by weights": (lambda: classifier(CLASSES, sample_weight=CLASSES), "one class only, 1, in"),
    "weights of words": (lambda: classifier(CLASSES, sample_weight=WORDS), "sample_weight must have one finite number"),
    "no weights": (lambda: classifier(CLASSES, sample_weight=np.zeros(N)), "sample_weight is zero in all"),
    "text": (lambda: regressor(WORDS), "y holds text .'[ab]'., and .* numbers: BayesianMLPClassifier predicts classes"),
    "dates": (lambda: regressor(pd.date_range("2020", periods=N)), "y holds dates or times, and .* give numbers"),
    "gamma": (
        lambda: regressor(NUMBERS, loss="gamma"),
        "^loss='gamma' takes positive numbers, and y has .*: loss='auto' finds .* loss='normal' takes all numbers$",
    ),
    "lognormal": (lambda: regressor(with_first(np.exp(NUMBERS), 0, float), loss="lognormal"), "^loss='lognormal' .*y"),
    "hurdle": (lambda: regressor(NUMBERS, loss="hurdle"), "^loss='hurdle' needs a value .*: loss='auto' finds"),
    "ordinal": (lambda: regressor(NUMBERS, loss="ordinal"), "^loss='ordinal' is a law of a few .*: loss='auto' finds"),
    "text in X": (lambda: regressor(NUMBERS, frame(b=WORDS)), "X: column 'b' holds text ..*OneHotEncoder"),
    "dates in X": (lambda: regressor(NUMBERS, frame(b=pd.date_range("2020", periods=N))), "column 'b' holds dates"),
    "names twice": (lambda: regressor(NUMBERS, pd.DataFrame(X, columns=["a", "a"])), "X has several columns named 'a'"),
    "batch size": (
        lambda: BayesianMLPRegressor(**{**SMALL, "sampler": "sghmc", "batch_size": 0}).fit(X, NUMBERS),
        "^batch_size must be between 1 and the 60 training items, got 0",
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_in_words_of_the_estimator(name):
    call, words = REFUSED[name]
    with pytest.raises(ConfigError, match=words) as refused:
        call()
    assert "\n" not in str(refused.value) and not re.search(
        r"(?<!bdl\.)\b(data|model|sampler|tune)\.", str(refused.value)
    )


@pytest.mark.filterwarnings("ignore")
def test_the_remedy_for_probabilities_runs_and_is_their_cross_entropy():
    with pytest.raises(ConfigError, match="y holds probabilities of 2 classes") as refused:
        classifier(PROBS)
    remedy = str(refused.value).partition("weighted: ")[2]
    one_hot = np.eye(2)[CLASSES]
    for y, law in ((PROBS, None), (one_hot, classifier(CLASSES))):  # the second one is the fit of its classes
        soft = eval(remedy, {"fit": BayesianMLPClassifier(**SMALL).fit, "np": np, "X": X, "y": y})
        assert law is None or np.array_equal(soft.predict_proba(X), law.predict_proba(X))


def fitted_words(call):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        call()
    told = [w for w in said if issubclass(w.category, BdlWarning) and not issubclass(w.category, bdl.VerdictWarning)]
    assert all(w.filename == __file__ for w in told)
    return [str(w.message) for w in told]


@pytest.mark.parametrize("what", ["y", "X"])
def test_codes_for_missing_values_are_told(what):
    coded = np.where(np.arange(N) % 5 == 0, -200.0, NUMBERS)
    call = (lambda: regressor(coded)) if what == "y" else (lambda: regressor(NUMBERS, frame(b=coded)))
    (line,) = fitted_words(call)
    name = "y: y" if what == "y" else "X: b"
    assert line.startswith(f"{name} is -200 in 12 of 60 rows (20 %)")
    assert "SimpleImputer" in line and "data." not in line


def test_zeros_of_a_sparse_matrix_are_no_codes():
    zeros = np.where(np.arange(N) % 2, 0.0, 50 + NUMBERS)
    x = np.stack([X[:, 1], zeros], 1)
    assert len(fitted_words(lambda: regressor(NUMBERS, x))) == 1
    assert fitted_words(lambda: regressor(NUMBERS, csr_matrix(x))) == []


def test_zeros_that_have_a_mass_are_no_codes():
    assert fitted_words(lambda: regressor(np.where(np.arange(N) % 3, np.exp(NUMBERS) + 50, 0.0))) == []
    (line,) = fitted_words(lambda: regressor(np.where(np.arange(N) % 3, NUMBERS, -200.0)))
    assert "y is -200 in 20 of 60 rows" in line


def test_one_hot_classes_are_told_and_labels_are_not():
    (line,) = fitted_words(lambda: classifier(np.eye(2, dtype=int)[CLASSES]))
    assert "one-hot classes, give y.argmax(1)" in line
    assert fitted_words(lambda: classifier(np.stack([CLASSES, X[:, 1] > 0], 1).astype(int))) == []


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "y", [CLASSES > 0, CLASSES.astype(object), pd.Series(WORDS, dtype="category"), pd.Series(CLASSES, dtype="Int64")]
)
def test_classes_of_any_dtype_are_those_of_plain_ones(y):
    np.testing.assert_array_equal(classifier(y).predict_proba(X), classifier(CLASSES).predict_proba(X))
