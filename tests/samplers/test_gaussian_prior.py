"""Tests of `bdl.samplers.priors.gaussian_prior`: its density, and one posterior after another."""

import json
import math
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from oracles import Estimate
from torch import nn
from torch.distributions import MultivariateNormal

import bdl

Z = 4.5
D64 = torch.float64
NAMES, SHAPES, D = ("0.weight", "0.bias"), ((2, 3), (2,)), 8


@dataclass
class Drawn:
    """What a prior reads of a posterior: draws x (chains, n, 8) of the two tensors of a Linear layer, at T."""

    x: torch.Tensor
    temperature: float | list[float] = 1.0
    zeta: float = 0.0
    net: nn.Module = field(default_factory=lambda: nn.Sequential(nn.Linear(3, 2)))

    @property
    def records(self):
        each = self.temperature if isinstance(self.temperature, list) else [self.temperature]
        return [SimpleNamespace(temperature=t, zeta=self.zeta) for t in each]

    def stream(self):
        for chain, rows in enumerate(self.x):
            for row in rows:
                tensors = {"0.weight": row[:6].view(2, 3), "0.bias": row[6:], "0.running_mean": torch.ones(2)}
                yield SimpleNamespace(chain=chain, weight=1.0, tensors=tensors)


def law(seed: int = 0) -> MultivariateNormal:
    """A Gaussian in eight dimensions of which two directions are far wider than the others."""
    draw = torch.Generator().manual_seed(seed)
    factors = 2 * torch.randn(8, 2, dtype=D64, generator=draw)
    covariance = factors @ factors.T + torch.diag(torch.rand(8, dtype=D64, generator=draw) + 0.5)
    return MultivariateNormal(torch.randn(8, dtype=D64, generator=draw), covariance)


def prior_of(law: MultivariateNormal, rank: int) -> bdl.GaussianPrior:
    values, vectors = torch.linalg.eigh(law.covariance_matrix)
    factors = (vectors[:, -rank:] * values[-rank:].sqrt()).T if rank else torch.zeros(0, 8, dtype=D64)
    own = law.covariance_matrix.diagonal() - factors.square().sum(0)
    return bdl.GaussianPrior(NAMES, SHAPES, law.loc, own, factors)


def dense(prior: bdl.GaussianPrior) -> MultivariateNormal:
    covariance = torch.diag(prior.variance) + prior.factors.T @ prior.factors
    return MultivariateNormal(prior.mean, covariance)


def draws(law: MultivariateNormal, chains: int, n: int) -> torch.Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return law.sample((chains, n))


@pytest.mark.parametrize("rank", [0, 2, 5])
@pytest.mark.parametrize("chains", [None, 3])
def test_density_is_that_of_torch(rank, chains):
    """With its constant; the gradient is that of autograd. The form with factors never builds a matrix d x d."""
    prior, lead = prior_of(law(), rank), () if chains is None else (chains,)
    theta = 3 * torch.randn(*lead, 8, dtype=D64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(-(prior.energy(theta) + prior.constant(8)), dense(prior).log_prob(theta))
    theta.requires_grad_()
    (expected,) = torch.autograd.grad(-dense(prior).log_prob(theta).sum(), theta)
    g = torch.ones_like(theta)
    prior.add_grad_(g, theta.detach(), 7)
    torch.testing.assert_close(g, 1 + expected / 7)


def test_single_precision_is_close():
    """The wide directions, of variance 40 beside 0.5, keep their energies to 1e-4 nats."""
    prior, theta = prior_of(law(), 2), draws(law(), 1, 100)[0]
    single = prior.centred(NAMES, SHAPES, theta.float())
    assert single.mean.dtype == torch.float32
    torch.testing.assert_close(single.energy(theta.float()).double(), prior.energy(theta), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("rank", [0, 2])
def test_samples_give_their_mean_and_covariance(rank):
    """Of 4 x 5000 independent draws: every mean and variance within Z errors; with rank 2 all covariances too."""
    true = law()
    prior = bdl.GaussianPrior.of(Drawn(draws(true, 4, 5000)), rank)
    assert prior.names == NAMES and prior.shapes == SHAPES and len(prior.factors) == rank
    covariance, c = dense(prior).covariance_matrix, true.covariance_matrix
    n = 20_000
    assert ((prior.mean - true.loc).abs() < Z * (c.diagonal() / n).sqrt()).all()
    errors = ((c.diagonal().outer(c.diagonal()) + c.square()) / n).sqrt()  # of the entries of a sample covariance
    wrong = (covariance - c).abs() > Z * errors + 0.05 * c.diagonal().outer(c.diagonal()).sqrt()
    assert not wrong.diagonal().any()
    assert wrong.any() == (rank == 0), "without factors the covariances are lost"


def test_the_temperature_of_the_samples_is_taken_out():
    """Samples of exp(-U/T) spread T times as far; the prior is exp(-U)."""
    x = draws(law(), 4, 200)
    wide = x.mean((0, 1)) + math.sqrt(0.3) * (x - x.mean((0, 1)))
    for rank in (0, 3):
        at_one, cold = (bdl.GaussianPrior.of(Drawn(x), rank), bdl.GaussianPrior.of(Drawn(wide, 0.3), rank))
        torch.testing.assert_close(dense(cold).covariance_matrix, dense(at_one).covariance_matrix)


def test_parameters_are_found_by_name():
    """Another order, and a part of them, whose marginal law it is; so a block may have it."""
    whole, prior = law(), prior_of(law(), 2)
    turned = prior.centred(NAMES[::-1], SHAPES[::-1], torch.zeros(8, dtype=D64))
    theta = draws(whole, 1, 5)[0]
    torch.testing.assert_close(turned.energy(torch.cat([theta[:, 6:], theta[:, :6]], 1)), prior.energy(theta))
    part = prior.centred(("0.bias",), ((2,),), torch.zeros(2, dtype=D64))
    torch.testing.assert_close(dense(part).covariance_matrix, dense(prior).covariance_matrix[6:, 6:])
    net = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2)).double()
    blocks = {"0.*": bdl.Block(prior=prior)}
    sampler = bdl.Sampler(net.named_parameters(), bdl.SGLD(), num_data=5, lr=0.1, blocks=blocks)
    at = torch.cat([p.detach().flatten() for p in net.parameters()])
    torch.testing.assert_close(sampler.prior.energy(at), prior.energy(at[:8]) + 0.5 * at[8:].square().sum())
    assert all(torch.equal(v.flatten(), m) for v, m in zip(prior.means.values(), prior.mean.split([6, 2]), strict=True))
    for names, shapes, words in ((("x",), ((2,),), "x has no place"), (("0.bias",), ((3,),), r"has the shape \(2,\)")):
        with pytest.raises(bdl.ConfigError, match=words):
            prior.centred(names, shapes, torch.zeros(2))


def test_it_is_sampled():
    """MALA without data: means and covariances, also along the wide directions, within Z errors of 1,000 chains."""
    prior, x = prior_of(law(), 2), draws(law(), 1, 1000)[0]
    weight, bias = x[:, :6].reshape(1000, 2, 3).clone().requires_grad_(), x[:, 6:].clone().requires_grad_()
    weight.grad, bias.grad = torch.zeros_like(weight), torch.zeros_like(bias)
    sampler = bdl.Sampler(
        [("0.weight", weight), ("0.bias", bias)], bdl.MALA(), num_data=10, lr=2.0, prior=prior, chains=1000
    )
    moments = torch.zeros(1000, 16, dtype=D64)
    for _ in range(300):
        sampler.step(lambda: torch.zeros(1000, dtype=D64))
        y = torch.linalg.solve_triangular(law().scale_tril, (sampler.chain.theta - law().loc).T, upper=False).T
        moments += torch.cat([y, y.square()], 1) / 300
    exact = dense(prior_of(law(), 2))
    own = torch.linalg.solve_triangular(law().scale_tril, exact.scale_tril, upper=False)
    expected = np.concatenate([np.zeros(8), (own @ own.T).diagonal().numpy()])
    assert (np.abs(Estimate.over_chains(moments).z(expected)) < Z).all()


def test_one_part_after_the_other_is_both_at_once():
    """Linear regression, where posteriors are normal: the second run's posterior is that of all rows.

    Its law under the prior of draws of the first is found by algebra. At full rank LEAST adds 5 % to the variances of
    the first part, which has half of the weight: that moves the mean by 0.05 / 4 of the difference between the parts'
    means, at most Z 2 standard deviations of the whole: 0.11. Power: without the first part, stds are 1.4 times these.
    """
    draw = torch.Generator().manual_seed(0)
    x, truth = torch.randn(400, 8, dtype=D64, generator=draw), torch.randn(8, dtype=D64, generator=draw)
    y = x @ truth + torch.randn(400, dtype=D64, generator=draw)
    a = x[:200].T @ x[:200] + torch.eye(8, dtype=D64)  # prior N(0, 1), noise 1
    first = MultivariateNormal(torch.linalg.solve(a, x[:200].T @ y[:200]), precision_matrix=a)
    prior = bdl.GaussianPrior.of(Drawn(draws(first, 4, 5000)), 8)
    precision = torch.linalg.inv(dense(prior).covariance_matrix)
    both = precision + x[200:].T @ x[200:]
    mean = torch.linalg.solve(both, precision @ prior.mean + x[200:].T @ y[200:])
    exact = x.T @ x + torch.eye(8, dtype=D64)
    std = torch.linalg.inv(exact).diagonal().sqrt()
    assert ((mean - torch.linalg.solve(exact, x.T @ y)).abs() < 0.15 * std).all()
    torch.testing.assert_close(torch.linalg.inv(both).diagonal().sqrt(), std, rtol=0.05, atol=0)


def test_identity_and_words():
    """Equal laws are equal; another number anywhere is another prior, and JSON keeps it."""
    prior = prior_of(law(), 2)
    assert prior.identity() == prior_of(law(), 2).identity() == json.loads(json.dumps(prior.identity()))
    others = [prior_of(law(1), 2), prior_of(law(), 1)]
    nudged = bdl.GaussianPrior(NAMES, SHAPES, prior.mean, prior.variance * (1 + 2**-40), prior.factors)
    assert all(other.identity() != prior.identity() for other in [*others, nudged])
    assert str(prior) == "Gaussian of 8 means and variances, rank 2"


@pytest.mark.parametrize(
    "drawn, rank, words",
    [
        (Drawn(draws(law(), 2, 5)), 9, "rank must be from 0 to 8 for 10 samples of 8 numbers, got 9"),
        (Drawn(draws(law(), 2, 5)), -1, "rank must be from 0"),
        (Drawn(draws(law(), 2, 5), [1.0, 0.5]), 0, "one temperature > 0, these have 0.5, 1"),
        (Drawn(draws(law(), 2, 5), 0.0), 0, "one temperature > 0, these have 0"),
        (Drawn(draws(law(), 2, 5), 1.0, 0.75), 0, "kept under a weighting"),
        (Drawn(torch.ones(2, 5, 8, dtype=D64)), 0, "0.weight is the same in all samples"),
    ],
)
def test_what_gives_no_prior_is_refused(drawn, rank, words):
    with pytest.raises(bdl.ConfigError, match=words) as error:
        bdl.GaussianPrior.of(drawn, rank)
    assert "\n" not in str(error.value)


def test_chains_in_different_modes_are_named():
    x = draws(law(), 2, 50)
    bdl.GaussianPrior.of(Drawn(x))
    x[1] += 40
    with pytest.warns(bdl.BdlWarning, match="the mean of networks in different modes is none of them"):
        bdl.GaussianPrior.of(Drawn(x))


def test_five_lines(tmp_path):
    """A run, its posterior as a prior, and the next run, which begins at its mean and records its checksum."""
    torch.manual_seed(0)
    x, y = torch.randn(80, 3), torch.randint(2, (80,))
    net = nn.Sequential(nn.Linear(3, 2))
    settings = {"steps": 40, "lr": 0.05, "chains": 2, "start": "given"}
    first = bdl.sample(net, None, bdl.data.TensorBatches(x[:40], y[:40], 20), tmp_path / "a", **settings)
    prior = bdl.GaussianPrior.of(first, rank=2)
    net.load_state_dict(prior.means, strict=False)
    loader = bdl.data.TensorBatches(x[40:], y[40:], 20)
    second = bdl.sample(net, None, loader, tmp_path / "b", prior=prior, **settings)
    single = prior.centred(("0.weight", "0.bias"), ((2, 3), (2,)), torch.zeros(8))
    assert second.target["prior"] == single.identity() and second.samples == 40
    again = bdl.sample(net, None, loader, tmp_path / "b", prior=bdl.GaussianPrior.of(first, rank=2), **settings)
    assert again.samples == 40
    with pytest.raises(bdl.BdlError):
        bdl.sample(net, None, loader, tmp_path / "b", prior=bdl.GaussianPrior.of(first), **settings)
