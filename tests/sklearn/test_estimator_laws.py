"""Predictions of linear models have a known law: closed forms for numbers, quadrature for classes.

Tolerances are 5 standard errors, which the 64 independent chains give. Their upper bounds say what power that is.
"""

import numpy as np
import pytest
from scipy.special import expit, softmax

import bdl
from bdl.sklearn import BayesianMLPClassifier, BayesianMLPRegressor

pytestmark = pytest.mark.filterwarnings("ignore:X. inputs are far from all training rows")  # the law holds there too
N, NOISE, PRIOR_STD = 12, 1.5, 0.4  # the prior and the noise both matter
CHAINS, SAMPLES = 64, 50
EXACT = dict(
    hidden_layer_sizes=(), sampler=bdl.HMC(4, adapt_steps=100), start=None, chains=CHAINS, samples=SAMPLES, steps=300,
    prior_std=PRIOR_STD, random_state=0,
)  # fmt: skip


def each_output(model, X: np.ndarray) -> np.ndarray:
    """(chains, samples, n, K) outputs of all networks, by hand, in the units that the networks see."""
    means, stds = (np.array([getattr(c, name) for c in model.encoding_.columns]) for name in ("mean", "std"))
    x = (X - means) / stds
    outputs: list[list[np.ndarray]] = [[] for _ in range(CHAINS)]
    for s in model.posterior_.stream():
        outputs[s.chain].append(x @ s.tensors["0.weight"].double().numpy().T + s.tensors["0.bias"].double().numpy())
    return np.array(outputs)


def standard_error(of_draws: np.ndarray) -> np.ndarray:
    """(n,) standard errors of the mean over draws (chains, samples, n), by the chains' own means."""
    return of_draws.mean(1).std(0, ddof=1) / np.sqrt(CHAINS)


@pytest.fixture(scope="module")
def linear():
    """A fitted linear model, rows X, and the exact predictive mean, epistemic std and std (n,) in the units of y."""
    random = np.random.default_rng(0)
    X = random.normal(3, 2, (N, 2))
    y = 10 + 4 * X[:, 0] - 2 * X[:, 1] + NOISE * random.normal(size=N)
    shift, scale = y.mean(), y.std()
    X_new = random.normal(3, 4, (300, 2))
    noise = NOISE / scale
    features, new = (np.column_stack([(x - X.mean(0)) / X.std(0), np.ones(len(x))]) for x in (X, X_new))
    precision = features.T @ features / noise**2 + np.eye(3) / PRIOR_STD**2
    weights = np.linalg.solve(precision, features.T @ ((y - shift) / scale)) / noise**2
    epistemic = scale * np.sqrt(np.einsum("nd,de,ne->n", new, np.linalg.inv(precision), new))
    model = BayesianMLPRegressor(noise=NOISE, lr=1e-3, **EXACT).fit(X, y)
    return model, X_new, shift + scale * (new @ weights), epistemic, np.hypot(epistemic, NOISE)


def test_mean_and_std_are_those_of_the_closed_form(linear):
    model, X, mean, epistemic, _ = linear
    draws = model.target_.mean + model.target_.std * each_output(model, X)[..., 0]
    of_mean, of_variance = standard_error(draws), standard_error((draws - mean) ** 2)
    assert (of_mean / epistemic).max() < 0.05 and (of_variance / epistemic**2).max() < 0.1
    predicted_mean, predicted_std = model.predict(X, return_std=True)
    assert (np.abs(predicted_mean - mean) < 5 * of_mean).all()
    assert (np.abs(predicted_std**2 - NOISE**2 - epistemic**2) < 5 * of_variance).all()
    assert epistemic.max() > NOISE, "the networks' disagreement must matter"


def test_intervals_hold_new_data_as_often_as_they_say(linear):
    model, X, mean, _, std = linear
    y = mean + std * np.random.default_rng(1).normal(size=(100, len(X)))
    for coverage in (0.5, 0.9):
        low, high = model.predict_interval(X, coverage)
        inside = ((y > low) & (y < high)).mean()
        # Ends that are wrong by .05 standard deviations on one side change the coverage by at most 2 %
        assert abs(inside - coverage) < 0.02 + 4 * np.sqrt(coverage * (1 - coverage) / y.size)


def test_quantiles_are_those_of_the_closed_form(linear):
    model, X, mean, epistemic, std = linear
    quantiles = model.predict_quantiles(X, [0.1, 0.5, 0.9])
    expected = mean[:, None] + std[:, None] * np.array([-1.2816, 0, 1.2816])
    # The error of a quantile's estimate is at most 1.8 times that of the mean
    assert (np.abs(quantiles - expected) < 5 * 1.8 * 0.03 * epistemic[:, None]).all()


def test_probabilities_are_those_of_quadrature():
    """Two logits a + b x under N(0, s²) each: their difference has two coefficients under N(0, 2 s²)."""
    random = np.random.default_rng(2)
    X = random.normal(5, 3, (N, 1))
    y = np.where(X[:, 0] + 2 * random.normal(size=N) > 5, "yes", "no")
    X_new = np.linspace(-5, 15, 21)[:, None]
    x, new = ((v[:, 0] - X.mean()) / X.std() for v in (X, X_new))
    grid = np.linspace(-4, 4, 161)
    a, b = (g.ravel() for g in np.meshgrid(grid, grid))
    sign = np.where(y == "yes", 1, -1)
    log_density = np.log(expit(sign * (a[:, None] + b[:, None] * x))).sum(1) - (a**2 + b**2) / (4 * PRIOR_STD**2)
    weights = np.exp(log_density - log_density.max())
    expected = weights @ expit(a[:, None] + b[:, None] * new) / weights.sum()
    model = BayesianMLPClassifier(lr=0.05, **EXACT).fit(X, y)
    assert list(model.classes_) == ["no", "yes"]
    error = standard_error(softmax(each_output(model, X_new), -1)[..., 1])
    assert error.max() < 0.01
    assert (np.abs(model.predict_proba(X_new)[:, 1] - expected) < 5 * error).all()
    assert expected[0] < 0.4 and expected[-1] > 0.6, "the data must matter"
