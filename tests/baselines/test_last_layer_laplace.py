"""Tests of `bdl.contrib.baselines.last_layer`.

Last-layer Laplace against closed forms: the posterior of a linear regression, and of logits.
"""

import dataclasses
import importlib.util
import math

import pytest
import torch
from scipy.optimize import brentq
from test_swag import drawn, written
from torch import nn

import bdl
from bdl.data import TensorSlices
from bdl.errors import ConfigError
from bdl.posterior.store import SampleStore

N, DRAWS, STD, PRECISION = 40, 4000, 0.5, 2.0


def trained_on(folder, net: nn.Module, loss: dict, prior: dict | None = None) -> bdl.Posterior:
    written(folder, net, [{k: v.detach().unsqueeze(0).clone() for k, v in net.named_parameters()}])
    prior = prior or {"type": "bdl.Gaussian", "precision": PRECISION}
    SampleStore(folder).write_target({"num_data": N, "loss": loss, "prior": prior})
    return bdl.Posterior.load(folder, net)


def vectors(draws: dict[str, torch.Tensor]) -> torch.Tensor:
    """(draws, d) weights and bias of the last layer."""
    layer = max(name for name in draws if name.endswith("weight")).rpartition(".")[0]
    return torch.cat([draws[f"{layer}.{name}"].flatten(1) for name in ("weight", "bias")], 1)


def assert_normal(draws: torch.Tensor, mean: torch.Tensor, covariance: torch.Tensor) -> None:
    """Bounds: 5 standard errors of each mean and covariance; an error of 12 % of a variance is seen."""
    draws, variance = draws.double(), covariance.diagonal()
    assert bool(((draws.mean(0) - mean).abs() < 5 * (variance / len(draws)).sqrt()).all())
    error = ((torch.outer(variance, variance) + covariance.square()) / len(draws)).sqrt()
    assert bool(((draws.T.cov() - covariance).abs() < 5 * error).all())


@pytest.mark.parametrize("scale", ["known", "learned", "softplus"])
@pytest.mark.parametrize("temperature", [1.0, 0.25])
def test_on_a_linear_regression_it_is_the_posterior(tmp_path, temperature, scale):
    """N(θ*, T (X'X/σ² + δ)^-1), whose mean θ* is where the network was trained to, and σ what its constant was."""
    random = torch.Generator().manual_seed(0)
    x = torch.randn(N, 2, generator=random, dtype=torch.float64)
    X = torch.cat([x, torch.ones(N, 1, dtype=torch.float64)], 1)
    y = (
        X @ torch.tensor([[1.0], [-2.0], [0.5]], dtype=torch.float64)
        + STD * torch.randn(N, 1, generator=random).double()
    )
    strong = 100.0  # as strong as the data, so that its share of H counts
    H = X.T @ X / STD**2 + strong * torch.eye(3, dtype=torch.float64)
    best = torch.linalg.solve(H, X.T @ y / STD**2).flatten()
    net = nn.Sequential(nn.Linear(2, 1))
    with torch.no_grad():
        net[0].weight.copy_(best[:2]), net[0].bias.copy_(best[2:])
    loss = {"type": "bdl.GaussianNLL", "std": STD}
    if scale != "known":  # 0.3 of the 0.5 are min_std, 0.4 are predicted
        link = "softplus" if scale == "softplus" else "log_var"
        loss = {"type": "bdl.HeteroscedasticNLL", "link": link, "min_std": 0.3}
        start = math.log(math.expm1(0.4)) if link == "softplus" else math.log(0.4**2)
        net = bdl.with_constant_scale(net, start=start)
    trained = trained_on(tmp_path / "sgd", net, loss, {"type": "bdl.Gaussian", "precision": strong})
    loader = TensorSlices(x.float(), y.float(), batch_size=15)
    baseline = bdl.LastLayerLaplace(draws=DRAWS, temperature=temperature)
    assert_normal(vectors(drawn(baseline, trained, loader, DRAWS)), best, temperature * H.inverse())
    few = dataclasses.replace(baseline, draws=2).fit(trained, tmp_path / "laplace", train=loader)
    assert few.records[0].temperature == temperature and few.samples == 2


def test_marglik_takes_precision_of_largest_marginal_likelihood(tmp_path):
    """The evidence of Laplace's approximation at θ*: -δ|θ*|²/2 + d/2 log δ - 1/2 log|X'X/σ² + δ|, up to a constant."""
    random = torch.Generator().manual_seed(0)
    x = torch.randn(N, 2, generator=random)
    X = torch.cat([x, torch.ones(N, 1)], 1).double()
    net = nn.Sequential(nn.Linear(2, 1))
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[0.1, -0.2]])), net[0].bias.fill_(0.1)
    theta = torch.tensor([0.1, -0.2, 0.1], dtype=torch.float64)
    H = X.T @ X / STD**2
    eigenvalues = torch.linalg.eigvalsh(H)

    def slope(log_precision: float) -> float:
        precision = math.exp(log_precision)
        return float(3 / precision - theta.square().sum() - (1 / (eigenvalues + precision)).sum())

    best = math.exp(brentq(slope, -5, 10))
    assert best > 20  # far from 1, where the search begins
    trained = trained_on(tmp_path / "sgd", net, {"type": "bdl.GaussianNLL", "std": STD})
    loader = TensorSlices(x, net(x).detach(), batch_size=15)
    baseline = bdl.LastLayerLaplace(draws=DRAWS, prior_precision="marglik")
    covariance = (H + best * torch.eye(3, dtype=torch.float64)).inverse()
    assert_normal(vectors(drawn(baseline, trained, loader, DRAWS)), theta, covariance)


def test_on_logits_it_is_the_gauss_newton_matrix_of_last_layer(tmp_path):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2))
    x = torch.randn(N, 2, generator=torch.Generator().manual_seed(1))
    loader = TensorSlices(x, torch.arange(N) % 2, batch_size=15)
    trained = trained_on(tmp_path / "sgd", net, {"type": "bdl.CategoricalNLL"})
    draws = drawn(bdl.LastLayerLaplace(draws=DRAWS), trained, loader, DRAWS)
    with torch.no_grad():
        h, p = net[1](net[0](x)).double(), net(x).softmax(-1).double()
    H = PRECISION * torch.eye(8, dtype=torch.float64)
    for features, q in zip(h, p, strict=True):
        curvature = torch.diag(q) - torch.outer(q, q)
        J = torch.cat([torch.kron(torch.eye(2).double(), features), torch.eye(2).double()], 1)  # (K, d)
        H += J.T @ curvature @ J
    last = torch.cat([net[2].weight.flatten(), net[2].bias]).detach().double()
    assert_normal(vectors(draws), last, H.inverse())
    assert bool((draws["0.weight"] == net[0].weight).all())  # only the last layer is drawn


def refused(tmp_path, net, loss, message, loader=None, prior=None, **settings) -> None:
    x = torch.randn(N, 2, generator=torch.Generator().manual_seed(1))
    loader = loader or TensorSlices(x, torch.arange(N) % 2)
    with pytest.raises(ConfigError, match=message) as error:
        trained = trained_on(tmp_path / str(len(list(tmp_path.iterdir()))), net, loss, prior)
        bdl.LastLayerLaplace(draws=2, **settings).fit(trained, tmp_path / "laplace", train=loader)
    assert "\n" not in str(error.value) and not (tmp_path / "laplace").exists()


def test_what_does_not_fit_is_refused_in_one_line(tmp_path):
    classes, x = {"type": "bdl.CategoricalNLL"}, torch.zeros(10, 2)
    refused(tmp_path, nn.Sequential(nn.Linear(2, 2), nn.Tanh()), classes, "ends with a Linear layer")
    refused(tmp_path, nn.Linear(2, 2), {"type": "bdl.StudentTNLL"}, "has no StudentTNLL")
    numbers = {"type": "bdl.HeteroscedasticNLL"}
    refused(tmp_path, nn.Linear(2, 2), numbers, "this network predicts it from the inputs: set loss.scale=learned")
    two = bdl.with_constant_scale(nn.Linear(2, 2), targets=2)
    refused(
        tmp_path,
        two,
        numbers,
        "takes one std, and there are 2 targets",
        TensorSlices(x.new_ones(N, 2), x.new_ones(N, 2)),
    )
    few = TensorSlices(x, torch.arange(10) % 2)
    refused(tmp_path, nn.Linear(2, 2), classes, "got 10 training items, and the run has N = 40: pass all", few)
    heavy = {"type": "bdl.StudentT", "df": 3.0, "scale": 1.0}
    refused(tmp_path, nn.Linear(2, 2), classes, "is no Gaussian with one precision", prior=heavy)
    elsewhere = {"type": "bdl.Gaussian", "precision": 1.0, "mean": 0.5}
    refused(tmp_path, nn.Linear(2, 2), classes, "is no Gaussian with one precision and mean 0", prior=elsewhere)
    with pytest.raises(ConfigError, match="prior_precision must be > 0, marglik or null"):
        bdl.LastLayerLaplace(prior_precision=0.0)


def test_without_the_package_one_line_names_the_extra(monkeypatch):
    known = importlib.util.find_spec
    absent = lambda name, *a: None if name == "laplace" else known(name, *a)  # noqa: E731
    monkeypatch.setattr("bdl.contrib.baselines.last_layer.find_spec", absent)
    with pytest.raises(ConfigError, match=r"needs the package laplace-torch: pip install 'bdl\[laplace\]'"):
        bdl.LastLayerLaplace()
