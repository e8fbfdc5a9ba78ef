"""Tests of `bdl.contrib.landscape.coefficient` and `.estimate`: local learning coefficients against exact values.

A value is compared with its expectation at the finite N of the chain, by Z of its own standard errors: for quadratic
losses by a formula, for linear networks of two layers by Gibbs sampling, which shares nothing with the chains.
"""

import functools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from literature.targets.reduced_rank import ReducedRank, regular
from repeats import slow_where
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bdl

Z = 4.5  # standard errors
D64 = torch.float64
N = 1000
T = math.log(N)
NLL = bdl.GaussianNLL(1.0)
MODELS = [(1, 1, 1, 0), (4, 3, 4, 1), (2, 2, 2, 0), (2, 2, 2, 1), (3, 2, 5, 1), (2, 5, 2, 1)]


class Hot(bdl.BAOAB):
    """BAOAB whose noise is that of 1.2 T: a negative control."""

    def step(self, s, g, lr, tau, z):
        return super().step(s, g, lr, 1.2 * tau, z)


def measured(model: ReducedRank, **settings) -> bdl.CoefficientEstimate:
    return bdl.learning_coefficient(model.network(), NLL, [model.items()], num_data=N, **settings)


def line(d: int = 4, n: int = 100) -> tuple[nn.Module, DataLoader, torch.Tensor]:
    """A regression that is linear in its 2 (d + 1) parameters, without noise, and the curvatures of its loss."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(n, d, dtype=D64, generator=draw) * torch.linspace(0.3, 2.0, d, dtype=D64)
    torch.manual_seed(0)
    net = nn.Linear(d, 2).double()
    ones = torch.cat([x, torch.ones(n, 1, dtype=D64)], 1)
    h = torch.linalg.eigvalsh(ones.T @ ones / n).repeat(2)
    return net, DataLoader(TensorDataset(x, net(x).detach()), 250, shuffle=True), h


@pytest.mark.parametrize("sizes", slow_where(lambda s: s != MODELS[1], [(s,) for s in MODELS]), ids=str)
def test_a_linear_network_of_two_layers_has_its_coefficient(sizes):
    """Within Z standard errors of the expectation at N = 1000, which lies below that of the limit N -> ∞.

    Power: a value that is off by 20 %, and on the larger models d/2, are more than Z errors away.
    """
    model = ReducedRank(*sizes)
    expected, error = model.expected(N, T, 1.0, chains=400, sweeps=300)
    found = measured(model)
    together = math.hypot(found.std_error, error)
    assert abs(found.value - expected) < Z * together and found.sound, str(found)
    assert Z * together < 0.2 * expected, "no power"
    assert found.parameters == model.parameters and expected < model.coefficient + Z * error
    assert model.parameters / 2 - found.value > Z * together


def test_published_coefficients():
    """Aoyagi & Watanabe 2005: one model from each of the four cases, by hand, and y = a b x."""
    values = {(1, 1, 1, 0): 0.5, (1, 1, 1, 1): 0.5, (2, 2, 2, 1): 2.0, (1, 1, 5, 0): 0.5, (5, 1, 1, 0): 0.5}
    values |= {(2, 5, 2, 1): 2.0, (2, 2, 2, 2): 2.0, (4, 3, 4, 1): 6.0}
    assert {sizes: ReducedRank(*sizes).coefficient for sizes in values} == values


def test_what_finite_data_leave_of_a_multiplicity():
    """y = a b x at a b = 0 has λ = 1/2 with multiplicity 2: E[λ̂] comes from below, about as 1/2 - 1 / log(N / T).

    At N = 10^3, 10^5 and 10^7 the expectation by Gibbs sampling rises and stays below 1/2.
    """
    model, values = ReducedRank(1, 1, 1, 0), []
    for n in (1e3, 1e5):
        values.append(model.expected(n, math.log(n), 1.0, chains=400, sweeps=900)[0])
    assert values[0] == pytest.approx(0.347, abs=0.01) and values[0] < values[1] < 0.45


@pytest.mark.parametrize(
    "dynamics",
    slow_where(lambda d: not isinstance(d, bdl.SGLD), [bdl.BAOAB(friction=0.3), bdl.SGLD(), bdl.SGHMC()]),
    ids=str,
)
def test_a_regular_model_has_half_its_dimension(dynamics):
    """λ̂ is Σ 1/2 less the localization's share, of curvatures that differ by 100. `held` is that share.

    Dynamics of first order are off by 2 % of the stiffest direction at most.
    """
    net, loader, h = line()
    found = bdl.learning_coefficient(net, NLL, loader, num_data=N, dynamics=dynamics, localization=5.0, steps=3000)
    expected = regular(h, N, T, 5.0)
    assert abs(found.value - expected) < Z * found.std_error + 0.02 * expected, str(found)
    assert expected < 4.97 and abs(found.held - (5 - expected)) < 0.1 * (5 - expected) + 0.05


@pytest.mark.slow  # docs/learning-coefficient.md measures with batches, and its blocks run
def test_mini_batches_give_the_same_value():
    """Batches of 50 of 200 items heat by less than 5 %, and the value is that of full batches, heated."""
    net, loader, h = line(n=200)
    draw = torch.Generator().manual_seed(1)
    x, y = loader.dataset.tensors
    noisy = y + torch.randn(y.shape, dtype=D64, generator=draw)
    ones = torch.cat([x, torch.ones(len(x), 1, dtype=D64)], 1)
    best = torch.linalg.lstsq(ones, noisy).solution.T
    with torch.no_grad():
        net.weight.copy_(best[:, :-1]), net.bias.copy_(best[:, -1])
    found = bdl.learning_coefficient(net, NLL, [(x, noisy)], num_data=N, batch_size=50, chains=4, steps=2000)
    expected = regular(h, N, T, 1.0)
    assert 0 < found.heat < 0.05
    assert -Z * found.std_error < found.value - expected < Z * found.std_error + 2 * found.heat * expected


def test_parts_are_measured_by_name():
    """The bias alone: two parameters of curvature 1."""
    net, loader, _ = line()
    found = bdl.learning_coefficient(net, NLL, loader, num_data=N, only="bias", steps=1000)
    assert found.parameters == 2
    assert abs(found.value - regular(torch.ones(2), N, T, 1.0)) < Z * found.std_error


def failed(found: bdl.CoefficientEstimate) -> set[str]:
    return {check.name for check in found.checks if check.passed is False}


def test_chains_that_are_too_hot_are_seen():
    found = measured(ReducedRank(4, 3, 4, 1), dynamics=Hot(friction=0.1))
    expected, error = ReducedRank(4, 3, 4, 1).expected(N, T, 1.0, chains=200, sweeps=200)
    assert "temperature" in failed(found) and not found.sound
    assert found.value - expected > Z * math.hypot(found.std_error, error)


def test_a_network_off_its_minimum_is_seen():
    net, loader, _ = line()
    with torch.no_grad():
        net.weight.add_(0.5)
    found = bdl.learning_coefficient(net, NLL, loader, num_data=N, steps=1000)
    assert "minimum" in failed(found) and "train on" in str(found)


def test_chains_still_on_their_way_are_seen():
    """With a step size a thousand times too small, and no burn-in, λ̂ rises all the way."""
    found = measured(ReducedRank(4, 3, 4, 1), lr=1e-5, burn_in=0, steps=1000)
    assert "rest" in failed(found)
    expected, _ = ReducedRank(4, 3, 4, 1).expected(N, T, 1.0, chains=200, sweeps=200)
    assert found.value < 0.8 * expected


def estimate_of(trace: torch.Tensor) -> bdl.CoefficientEstimate:
    """An estimate with this trace, whose chains are in equilibrium."""
    return bdl.CoefficientEstimate(
        trace=trace, loss=1.0, num_data=N, temperature=T, localization=1.0, parameters=4, lr=0.1, held=0.0, heat=0.0,
        configurational=torch.ones(len(trace), dtype=D64),
    )  # fmt: skip


@functools.cache
def correlated(seed: int = 0, chains: int = 8, draws: int = 3000, rho: float = 0.9) -> torch.Tensor:
    """(chains, draws) a stationary autoregression of mean 5 and variance 1."""
    z = torch.randn(chains, draws, dtype=D64, generator=torch.Generator().manual_seed(seed)).numpy()
    x = np.empty_like(z)
    x[:, 0] = z[:, 0]
    for t in range(1, draws):
        x[:, t] = rho * x[:, t - 1] + math.sqrt(1 - rho**2) * z[:, t]
    return 5 + torch.from_numpy(x)


def test_the_error_is_that_of_correlated_draws():
    """The true one is sqrt((1 + ρ) / (1 - ρ) / (C n)). Between 8 chains it scatters by 27 %; the larger of two is kept.

    Over 40 repetitions the mean lies within three of its errors in nearly all, and the error is not far too large.
    """
    true, each = math.sqrt(1.9 / 0.1 / (8 * 3000)), [estimate_of(correlated(seed, draws=3000)) for seed in range(40)]
    errors = np.array([one.std_error for one in each])
    z = np.array([abs(one.value - 5) / one.std_error for one in each])
    assert 0.9 * true < errors.mean() < 1.5 * true
    assert (z < 3).mean() > 0.9 and np.median(z) > 0.3
    draws = np.mean([one.effective_draws for one in each])
    assert draws == pytest.approx(8 * 3000 * 0.1 / 1.9, rel=0.1)
    assert all(one.sound for one in each)


@pytest.mark.parametrize(
    "name, change",
    [
        ("chains", lambda x: x + torch.linspace(-0.5, 0.5, 8, dtype=D64).unsqueeze(1)),
        ("rest", lambda x: x + torch.linspace(-1, 1, x.shape[1], dtype=D64)),
        ("minimum", lambda x: x - 4),
        ("draws", lambda x: x[:, ::600]),
    ],
)
def test_each_check_sees_its_fault(name, change):
    found = estimate_of(change(correlated()))
    assert name in failed(found) | {c.name for c in found.checks if not c.passed} and not found.sound
    assert f"{name}: " in str(found)


def test_what_is_not_known_is_not_sound():
    one = estimate_of(correlated())
    assert one.sound and "verdict: sound" in str(one)
    alone = estimate_of(correlated()[:1])
    assert not alone.sound and "one chain cannot disagree" in str(alone)
    assert not replace(one, heat=math.nan).sound
    assert "temperature" in failed(replace(one, configurational=torch.full((8,), 1.2, dtype=D64)))
    assert "temperature" in failed(replace(one, heat=0.2))


class TwoInputs(nn.Module):
    """A network with two inputs by name, dropout and BatchNorm."""

    def __init__(self):
        super().__init__()
        self.body, self.norm = nn.Linear(3, 4), nn.BatchNorm1d(4)
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(5, 3)

    def forward(self, values, shift):
        return self.head(torch.cat([self.drop(self.norm(self.body(values)).tanh()), shift], 1))


def test_any_network_loss_and_loader(monkeypatch):
    """Batches are dicts, the loss is a function. Network, mode and random stream stay; one seed gives one value."""
    torch.manual_seed(0)
    draw = torch.Generator().manual_seed(0)
    rows = [
        {"values": torch.randn(3, generator=draw), "shift": torch.randn(1, generator=draw), "labels": i % 3}
        for i in range(60)
    ]
    net, loader = TwoInputs().train(), DataLoader(rows, batch_size=16, shuffle=True)
    before, stream = {k: v.clone() for k, v in net.state_dict().items()}, torch.get_rng_state()
    settings = {"steps": 60, "chains": 3, "localization": 50.0}
    found = [
        bdl.learning_coefficient(net, nn.CrossEntropyLoss(), loader, seed=seed, batch_size=size, **settings)
        for seed, size in ((0, 20), (0, 20), (1, 20), (0, None))
    ]
    assert torch.equal(torch.get_rng_state(), stream) and net.training and net.norm.training
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    assert torch.equal(found[0].trace, found[1].trace) and not torch.equal(found[0].trace, found[2].trace)
    assert found[0].trace.shape == (3, 60) and found[3].heat == 0 and found[0].num_data == 60


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"temperature": 0.0}, "temperature must be > 0, got 0"),
        ({"localization": -1.0}, "localization must be > 0, got -1"),
        ({"lr": math.nan}, "lr must be > 0, got nan"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"dynamics": bdl.SGD()}, "needs a sampler that does not adapt"),
        ({"dynamics": bdl.PSGLD(adapt_steps=50)}, "needs a sampler that does not adapt"),
        ({"dynamics": bdl.PSGLD()}, r"lr of PSGLD.* cannot be found, because it preconditions its step: give lr"),
        ({"num_data": 1}, "at least 2 items"),
        ({"only": "head.*"}, "matches no parameter"),
    ],
)
def test_bad_values_are_refused(settings, words):
    model = ReducedRank(1, 1, 1, 0)
    with pytest.raises(bdl.ConfigError, match=words) as error:
        bdl.learning_coefficient(model.network(), NLL, [model.items()], **{"num_data": N, **settings})
    assert "\n" not in str(error.value)


def test_a_loader_without_labels_is_refused():
    for batches, words in (([], "no batch"), ([torch.zeros(3, 1, dtype=D64)], "needs labelled batches")):
        with pytest.raises(bdl.ConfigError, match=words):
            bdl.learning_coefficient(ReducedRank(1, 1, 1, 0).network(), NLL, batches)
