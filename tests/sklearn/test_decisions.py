"""Tests of `bdl.contrib.decisions.acquisition`, `.probly_predictor`, `.scoringbench_wrapper` and `.skpro_regressor`."""

import sys
import types
from importlib import resources

import numpy as np
import pandas as pd
import pytest
import torch
import toys
from linear_run import D64, NOISE, D, N, law, store
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import bdl
from bdl.contrib.decisions.acquisition import bald, disagreement, epistemic_variance, information
from bdl.contrib.decisions.probly_predictor import ProblyPredictor
from bdl.contrib.decisions.scoringbench_wrapper import ScoringBenchWrapper
from bdl.errors import ConfigError
from bdl.sklearn import BayesianMLPClassifier

SHORT = {"hidden_layer_sizes": 3, "start": None, "chains": 2, "samples": 10, "steps": 60, "prior_std": 1.0}
POOL = 2 * torch.randn(30, D, dtype=D64, generator=torch.Generator().manual_seed(5))


class Fitted:
    """An estimator whose predictive distribution is that of a posterior."""

    def __init__(self, posterior):
        self.predictive = posterior.predict


def test_information_and_disagreement_are_those_of_a_linear_regression(tmp_path):
    """I(y; θ) = log(1 + x'Σx / σ²) / 2, within five errors of a variance of 4,500 draws; the rows come in that order.

    Negative control: the posterior of four times as much noise is far away.
    """
    estimator = Fitted(store(tmp_path))
    _, spread = law(torch.ones(N, dtype=D64), 1.0)
    variance = ((POOL @ spread) * POOL).sum(1)
    exact = (1 + variance / NOISE**2).log().numpy() / 2
    error = 5 * (2 / 4500) ** 0.5
    found = disagreement(estimator, POOL)
    np.testing.assert_allclose(found, variance, rtol=error)
    np.testing.assert_allclose(information(estimator, POOL), exact, rtol=error)
    assert abs(found / (4 * variance.numpy()) - 1).min() > error
    for query in (bald, epistemic_variance):
        assert exact[query(estimator, POOL, 3)].min() >= np.sort(exact)[-5] > np.median(exact)


def test_a_pipeline_of_classes_is_asked(tmp_path):
    """BALD is the epistemic part of the entropy, of the inputs that the pipeline makes."""
    x, y = (t.numpy() for t in toys.tensors())
    fitted = make_pipeline(StandardScaler(), BayesianMLPClassifier(**SHORT, temperature=1.0, random_state=0))
    with pytest.warns(UserWarning):
        fitted.fit(x, y)
    prediction = fitted[-1].predictive(fitted[0].transform(x))
    assert information(fitted, x) == pytest.approx(prediction.epistemic.numpy())
    assert bald(fitted, x, 2).tolist() == prediction.epistemic.double().numpy().argsort()[::-1][:2].tolist()
    assert disagreement(fitted, x) == pytest.approx((prediction.std**2).sum(1).numpy(), rel=1e-5)


def test_probly_quantifies_what_bdl_does(tmp_path):
    """Its entropies of our representation are our parts of the uncertainty; and none is another."""
    toys.sample(tmp_path, 16)
    posterior = bdl.Posterior.load(tmp_path, toys.plain())
    x, prediction = toys.tensors(seed=2)[0], posterior.predict(toys.tensors(seed=2)[0])
    predictor = ProblyPredictor(posterior)
    probs = predictor.predict_representation(x)
    assert probs.shape == (len(x), posterior.samples, 3)
    torch.testing.assert_close(predictor(x), prediction.probs)
    torch.testing.assert_close(predictor.predict_representation(x, logits=True).softmax(-1), probs)
    quantification = pytest.importorskip("probly.quantification.classification", reason="needs probly 0.3: [probly]")
    parts = {"total_entropy": "entropy", "conditional_entropy": "aleatoric", "mutual_information": "epistemic"}
    for theirs, ours in parts.items():
        value = getattr(quantification, theirs)(probs.numpy(), base=np.e)
        np.testing.assert_allclose(value, getattr(prediction, ours), rtol=1e-3, atol=1e-6)
        others = [name for name in parts.values() if name != ours]
        assert all(not np.allclose(value, getattr(prediction, name), rtol=0.1) for name in others)


def test_probly_takes_means_and_variances_of_numbers(tmp_path):
    posterior = store(tmp_path, chains=3, files=4)
    found = ProblyPredictor(posterior).predict_representation(POOL)
    assert found.shape == (30, 12, 2)
    assert torch.allclose(found[..., 1], torch.tensor(NOISE**2, dtype=found.dtype))
    prediction = posterior.predict(POOL)
    torch.testing.assert_close(
        found[..., 0].std(1, correction=0), prediction.epistemic[:, 0].double(), rtol=1e-4, atol=0
    )


def airfoil(rows: int = 150) -> tuple[pd.DataFrame, pd.Series]:
    """Rows of a table that bdl brings, with a column of categories."""
    table = pd.read_csv(str(resources.files("bdl.data") / "files" / "airfoil.csv")).sample(rows, random_state=0)
    X, y = table.iloc[:, :-1], table.iloc[:, -1]
    return X.assign(kind=np.where(X.iloc[:, 0] > X.iloc[:, 0].median(), "high", "low")), y


@pytest.mark.filterwarnings("ignore")
def test_scoringbench_gets_quantiles_of_a_table(monkeypatch):
    """As its cross-validation calls a model; the quantiles rise, and hold about the share of y that they say."""
    X, y = airfoil()
    settings = SHORT | {"steps": 1500, "samples": 50, "random_state": 0}
    model = ScoringBenchWrapper(n_quantiles=19, **settings).fit(X[:100], y[:100])
    q, mean = model.predict_quantiles(X[100:]), model.predict(X[100:])
    assert q.shape == (50, 19) and (np.diff(q) > 0).all() and mean.shape == (50,)
    held = (y[100:].to_numpy()[:, None] < q).mean(0)
    assert abs(held - model.levels).max() < 0.25  # 50 rows: the deviation of an empirical share is 0.07
    assert np.sqrt(np.mean((mean - y[100:]) ** 2)) < y.std()
    if "scoringbench" not in sys.modules:
        with pytest.raises(ConfigError, match="needs ScoringBench"):
            model.predict_distribution(X[100:])
    given = {}
    fake = types.ModuleType("scoringbench.univariate.wrappers.base")
    fake.DistributionPrediction = types.SimpleNamespace(
        from_multi_quantile=lambda q, a, **k: given.update(q=q, a=a, **k)
    )
    for name in ("scoringbench", "scoringbench.univariate", "scoringbench.univariate.wrappers"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, fake.__name__, fake)
    model.predict_distribution(X[100:])
    assert given["train_range"] == (y[:100].min(), y[:100].max()) and np.array_equal(given["q"], q)


@pytest.mark.filterwarnings("ignore")
def test_skpro_has_the_mixture_itself():
    """Its distribution is the prediction of bdl, also of some of its rows: moments, density, and both directions."""
    pytest.importorskip("skpro", reason="needs the extra [skpro]")
    from bdl.contrib.decisions.skpro_regressor import SkproRegressor

    X, y = airfoil(60)
    X = X.drop(columns="kind").set_axis(range(5, 65))
    y = pd.DataFrame({"sound": y.to_numpy()}, index=X.index)
    fitted = SkproRegressor(SHORT | {"random_state": 0}).fit(X, y)
    found, prediction = fitted.predict_proba(X), fitted.regressor_.predictive(X.to_numpy())
    seen = torch.tensor(y.to_numpy())
    wanted = {"pdf": prediction.log_density_of_each(seen).exp(), "cdf": prediction.cdf(seen)}
    for name, values in wanted.items():
        frame = getattr(found, name)(y)
        assert frame.index.equals(X.index) and list(frame.columns) == ["sound"]
        np.testing.assert_allclose(frame, values, rtol=1e-5)
        np.testing.assert_allclose(getattr(found.iloc[[3, 1]], name)(y.iloc[[3, 1]]), values[[3, 1]], rtol=1e-5)
    np.testing.assert_allclose(found.ppf(found.cdf(y)), y, rtol=1e-3)
    np.testing.assert_allclose(fitted.predict_var(X), prediction.std**2, rtol=1e-5)
    np.testing.assert_allclose(
        fitted.predict_quantiles(X, [0.1, 0.9]), prediction.quantile([0.1, 0.9])[..., 0].T, rtol=1e-5
    )
    draws = found.sample(2000).to_numpy().reshape(2000, -1)
    np.testing.assert_allclose(draws.mean(0), prediction.mean[:, 0], atol=5 * float(prediction.std.max()) / 2000**0.5)
    from skpro.distributions.normal import Normal

    normal = Normal(found.mean(), found.var() ** 0.5, index=X.index, columns=found.columns)
    assert not np.allclose(normal.pdf(y), wanted["pdf"], rtol=0.01)  # what skpro would have made of mean and variance


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_skpro_checks_the_regressor():
    pytest.importorskip("skpro", reason="needs the extra [skpro]")
    from skpro.utils.estimator_checks import check_estimator

    from bdl.contrib.decisions.skpro_regressor import SkproRegressor

    results = check_estimator(SkproRegressor, verbose=False)
    assert len(results) > 50 and {name: r for name, r in results.items() if r != "PASSED"} == {}
