"""Tests of `bdl.contrib.covariance_controlled`, `bdl.engine.noise_draws` and `bdl.lightning.noise`.

CCHMC has the law of a linear regression in every direction where batches bring as much noise as it injects; SGHMC,
SGNHT and a variance per coordinate have not. Draws have the covariance of batch gradients, by enumeration.
"""

import functools
import itertools

import logistic
import numpy as np
import pytest
import torch
import toys
from experiments.noise.problem import NOISE, SIXTH, D, Regression, lr_of
from logistic import NUTS
from oracles import Estimate

import bdl
from bdl.data import TensorBatches
from bdl.engine.noise_draws import contrasts, draws_of
from bdl.errors import ConfigError

Z = 4.5  # standard errors
D64 = torch.float64
ADAPT = 2000


def test_contrasts_are_orthonormal_and_sum_to_zero():
    for n in (2, 3, 8):
        rows = contrasts(n)
        torch.testing.assert_close(rows @ rows.T, torch.eye(n - 1, dtype=D64))
        torch.testing.assert_close(rows.sum(1), torch.zeros(n - 1, dtype=D64))


@pytest.mark.parametrize("items, groups", [(4, 2), (4, 4), (5, 2)])
def test_draws_have_the_covariance_of_a_batch(items: int, groups: int):
    """By enumeration of all batches of independent items out of 3, to rounding; at a θ that is no mode.

    Control: the mean square of the batch's gradient itself holds the square of its mean, too.
    """
    net = torch.nn.Linear(2, 1).double()
    x, y = torch.randn(3, 2, dtype=D64), torch.randn(3, 1, dtype=D64)
    second, means = torch.zeros(3, 3, dtype=D64), []
    for rows in map(list, itertools.product(range(3), repeat=items)):
        draws = bdl.noise_draws(net, torch.nn.functional.mse_loss, x[rows], y[rows], groups)
        second += draws.T @ draws / len(draws) / 3**items
        gradients = torch.autograd.grad(torch.nn.functional.mse_loss(net(x[rows]), y[rows]), list(net.parameters()))
        means.append(torch.cat([g.flatten() for g in gradients]))
    covariance = torch.cov(torch.stack(means).T, correction=0)
    torch.testing.assert_close(second, covariance, rtol=1e-10, atol=1e-12)
    assert not torch.allclose(second, torch.stack(means).T @ torch.stack(means) / 3**items, rtol=0.1)


def test_a_batch_of_one_item_shows_no_noise():
    net = torch.nn.Linear(2, 1)
    with pytest.raises(ConfigError, match="it has 1 item"):
        bdl.noise_draws(net, torch.nn.functional.mse_loss, torch.zeros(1, 2), torch.zeros(1, 1))


def losses_of(module, stack, x, y):
    return module.batch_loss(stack(x), y)


def test_draws_of_a_stack_are_those_of_its_networks():
    """Each chain's by itself, to rounding, where chains have batches of their own and where they share one."""
    for shared in (False, True):
        stack = bdl.ChainStack(torch.nn.Linear(toys.D, toys.K).double(), 3, shared=shared)
        x, y = toys.tensors(8)
        x, y = x.double(), y
        module = bdl.BayesianModule(stack, functools.partial(bdl.Sampler, dynamics=bdl.SGLD(), num_data=8, lr=0.1))
        params = list(stack.parameters())
        own = (x, y) if shared else (x.expand(3, *x.shape), y.expand(3, *y.shape))
        losses = functools.partial(losses_of, module, stack)
        together = draws_of(losses, params, *own, 3, 0 if shared else 1)
        for c, network in enumerate(stack.networks()):
            net = torch.nn.Linear(toys.D, toys.K).double()
            net.load_state_dict({name: value.detach() for name, value in network.items()})
            torch.testing.assert_close(together[c], bdl.noise_draws(net, bdl.CategoricalNLL(), x, y))


def fitted(net, replacement: bool, batch: int = 8, **options):
    """A module after 20 steps of CCHMC through a Trainer."""
    x, y = toys.tensors()
    build = functools.partial(bdl.Sampler, dynamics=bdl.CCHMC(rank=3, adapt_steps=20), num_data=toys.N, lr=0.01)
    module = bdl.BayesianModule(net, build)
    toys.trainer("unused", 20, [], **options).fit(module, TensorBatches(x, y, batch, replacement=replacement))
    return module


def test_module_gives_draws_and_leaves_statistics_and_gradients():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(toys.D, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, toys.K))
    module = fitted(net, replacement=True)
    buffers = [b.clone() for b in net.buffers()]
    grads = [p.grad.clone() for p in net.parameters()]
    draws = module.sampler.host.noise_draws()
    assert draws.shape == (1, module.sampler.chain.theta.numel()) and draws.abs().max() > 0  # halves
    assert all(torch.equal(a, b) for a, b in zip(buffers, net.buffers(), strict=True))
    assert all(torch.equal(a, p.grad) for a, p in zip(grads, net.parameters(), strict=True))
    assert module.sampler.chain.state.readings > 0 and module.sampler.chain.state.measurements > 0


def test_batches_of_different_items_have_less_noise():
    """1 - n/N times that of independent items: of all data none."""
    torch.manual_seed(0)
    net = torch.nn.Linear(toys.D, toys.K)
    shuffled = fitted(net, replacement=False)
    lower = shuffled.sampler.host.noise_draws()
    x, y = shuffled._current.batch
    assert torch.allclose(lower, bdl.noise_draws(net, bdl.CategoricalNLL(), x, y) * (1 - 8 / toys.N) ** 0.5, rtol=1e-4)
    module = fitted(torch.nn.Linear(toys.D, toys.K), replacement=False, batch=toys.N)
    assert module.sampler.chain.state.variance.max() == 0


def test_it_finds_the_strongest_directions_and_their_variances():
    """The largest variance to 10 %, by the mean over chains; the span of 10 holds as much noise as the best to 3 %."""
    regression = Regression(bdl.CCHMC(rank=10, adapt_steps=ADAPT), lr_of(1.0))
    for _ in range(ADAPT):
        regression.step()
    s = regression.sampler.chain.state
    eye = torch.eye(10, dtype=D64).expand(48, 10, 10)
    torch.testing.assert_close(s.basis @ s.basis.mT, eye, rtol=0, atol=1e-10)
    best = torch.linalg.eigvalsh(NOISE).flip(0)
    held = (s.basis @ NOISE @ s.basis.mT).diagonal(dim1=1, dim2=2).sum(1)
    assert (held > 0.97 * best[:10].sum()).all()
    assert s.variance.sum((1, 2)).mean() == pytest.approx(best[:10].sum().item(), rel=0.05)
    assert s.outside.mean() == pytest.approx(best[10].item(), rel=0.2)
    assert s.sketch.numel() == 0  # memory is given back
    frozen = s.basis.clone(), s.variance.clone()
    for _ in range(50):
        regression.step()
    assert torch.equal(s.basis, frozen[0]) and torch.equal(s.variance, frozen[1])
    assert not regression.sampler.dynamics.reads_extra(s)


def sixths(v: torch.Tensor) -> tuple[float, float]:
    return v[:, :SIXTH].mean().item(), v[:, -SIXTH:].mean().item()


def test_every_direction_of_a_regression_is_at_t():
    """Variances over the posterior's where batches bring as much noise as SGHMC injects; 5 % of it is seen.

    The stiffest have 2 % from the size of the step. Controls at the same lr: SGHMC 4.4 in the stiff sixth, SGNHT 0.5 in
    the soft and 1.9 in the stiff one.
    """
    v = Regression(bdl.CCHMC(rank=D, adapt_steps=ADAPT, every=5), lr_of(1.0)).run(2500, ADAPT)
    estimate, (soft, stiff) = Estimate.over_chains(v), sixths(v)
    assert estimate.se.max() < 0.05
    assert (abs(estimate.mean - 1) < 0.07 + 3 * estimate.se).all()
    assert 0.95 < soft < 1.05 and 0.95 < stiff < 1.06
    assert sixths(Regression(bdl.SGHMC(), lr_of(1.0)).run(1000, 300))[1] > 3
    soft, stiff = sixths(Regression(bdl.SGNHT(), lr_of(1.0)).run(1500, 1500))
    assert soft < 0.7 and stiff > 1.5


def along_one_axis(variance: float, d: int, chains: int, steps: int, burn_in: int, axis: int = 0, **settings):
    """A sampler that knows an axis of N(0, 1)^d, and (chains, d) mean squares under Gaussian noise along the first."""
    theta = torch.randn(chains, d, generator=torch.Generator().manual_seed(0), dtype=D64).requires_grad_()
    given = dict(dynamics=bdl.CCHMC(rank=1, adapt_steps=0), num_data=1, prior=bdl.Gaussian(1.0), chains=chains, seed=1)
    sampler = bdl.Sampler([theta], **given | settings)
    s, draw = sampler.chain.state, torch.Generator().manual_seed(2)
    s.basis[:, 0, axis], s.readings = 1.0, 1
    s.variance.fill_(variance)
    total = torch.zeros(chains, d, dtype=D64)
    for step in range(steps):
        theta.grad = torch.zeros_like(theta)
        theta.grad[:, 0] = variance**0.5 * torch.randn(chains, generator=draw, dtype=D64)
        sampler.step(lambda: torch.zeros(chains, dtype=D64))
        total += theta.detach().square() / (steps - burn_in) if step >= burn_in else 0
    return sampler, total


def test_noise_of_one_direction_is_removed_at_rank_one():
    """At lr c / (2 a tau) = 1; the control is rank 1 that knows another axis."""
    for axis, low, high in ((0, 0.9, 1.1), (1, 1.5, 3.0)):
        _, squares = along_one_axis(4.0, 4, 200, 1200, 300, axis, lr=0.05)
        assert low < squares[:, 0].mean() < high, axis


def test_where_no_friction_helps_lr_falls():
    """At ten times the noise that friction 1 would carry, the direction moves slower and stays at T: to 7 %."""
    sampler, squares = along_one_axis(200.0, 2, 300, 3000, 500, lr=0.1)
    s = sampler.chain.state
    assert s.factor.max().item() == pytest.approx(0.05) and s.friction.min().item() == pytest.approx(0.525)
    assert squares[:, 0].mean().item() == pytest.approx(1, abs=0.07)
    assert "lr down to 0.05 times" in sampler.explain()


def test_t_eff_and_the_temperature_of_momenta_count_what_is_left():
    """At rank 10 both lie within 0.15 of the mean temperature of directions; that of SGHMC is 1 above."""
    regression = Regression(bdl.CCHMC(rank=10, adapt_steps=ADAPT), lr_of(1.0))
    v = regression.run(2000, ADAPT).mean().item()
    assert regression.sampler.t_eff.mean().item() == pytest.approx(v, abs=0.15)
    assert regression.sampler.kinetic_temperature.mean().item() == pytest.approx(v, abs=0.15)
    assert 1.1 < v < 1.5
    assert "hottest of the other directions" in regression.sampler.explain()


def moved(dynamics, tau: float, steps: int = 30, noise: bool = False):
    """θ after steps of SGHMC's reduction, with the noise of batches drawn or zero."""
    theta = torch.zeros(2, 5, dtype=D64).requires_grad_()
    sampler = bdl.Sampler([theta], dynamics, num_data=10, lr=0.1, temperature=tau, chains=2, seed=1)
    draw = torch.Generator().manual_seed(3)
    sampler.extras["noise_draws"] = lambda: float(noise) * torch.randn(2, 3, 5, generator=draw, dtype=D64)
    for k in range(steps):
        theta.grad = torch.sin(theta.detach() * (k + 1)) + torch.tensor([[0.1], [0.2]], dtype=D64)
        sampler.step()
    return theta.detach().clone()


def test_without_noise_it_is_sghmc_and_at_t_0_sgd_to_the_bit():
    learning = bdl.CCHMC(rank=2, adapt_steps=20)
    assert torch.equal(moved(learning, 1.0), moved(bdl.SGHMC(), 1.0))
    assert torch.equal(moved(learning, 0.0, noise=True), moved(bdl.SGHMC(), 0.0))
    assert not torch.equal(moved(learning, 1.0, noise=True), moved(bdl.SGHMC(), 1.0))


def test_a_rank_beyond_the_dimension_is_the_dimension():
    assert torch.equal(
        moved(bdl.CCHMC(rank=50, adapt_steps=20), 1.0, noise=True),
        moved(bdl.CCHMC(rank=5, adapt_steps=20), 1.0, noise=True),
    )


def replicas() -> torch.Tensor:
    """(2, 3) mean squares over T, at T = 1 and 4, of a Gaussian with noise along one axis, under swaps."""
    exchange, dynamics = bdl.Exchange((1.0, 4.0), every=2, energy_var=0.0), bdl.CCHMC(0.3, rank=1, adapt_steps=0)
    sampler, squares = along_one_axis(12.0, 3, 80, 3000, 300, lr=0.05, dynamics=dynamics, exchange=exchange)
    assert sampler.swap_rates.min() > 0.1
    return (squares / sampler.settings().temperature[:, None]).view(40, 2, 3).mean(0)


def test_replicas_keep_their_laws(monkeypatch):
    """To 6 %, 4 standard errors. Control: momenta that keep the size that they had at another T make it 12 %."""
    assert (abs(replicas() - 1) < 0.06).all()
    monkeypatch.setattr(bdl.CCHMC, "after_swap", lambda *arguments: None)
    assert (abs(replicas() - 1) > 0.09).any()


def test_bad_arguments_are_named():
    for wrong, words in (
        ({"rank": 0}, "rank"), ({"every": 0}, "every"), ({"adapt_steps": -1}, "adapt_steps"), ({"friction": 0}, "fric"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=words):
            bdl.CCHMC(**wrong)


def test_what_it_cannot_do_is_refused():
    theta = torch.zeros(3, requires_grad=True)
    sampler = bdl.Sampler([theta], bdl.CCHMC(adapt_steps=1), num_data=5, lr=0.1)
    theta.grad = torch.zeros(3)
    with pytest.raises(ConfigError, match=r"sampler.extras\['noise_draws'\]"):
        sampler.step()
    sampler.extras["noise_draws"] = lambda: torch.zeros(3)
    with pytest.raises(ConfigError, match="shape"):
        sampler.step()
    with pytest.raises(ConfigError, match="gradient null"):
        bdl.Sampler([theta], bdl.CCHMC(), num_data=5, lr=0.1, gradient=bdl.ControlVariate(every=3))
    with pytest.raises(ConfigError, match="one lr for all parameters"):
        bdl.Sampler([theta], bdl.CCHMC(), num_data=5, lr=0.1, blocks={"*": bdl.Block(lr_factor=0.1)})
    with pytest.raises(ConfigError, match="gradients of parts of the whole batch"):
        fitted(torch.nn.Linear(toys.D, toys.K), True, accumulate_grad_batches=2)


def variances(dynamics, lr: float) -> Estimate:
    """(10,) variances of the weights of a logistic regression over NUTS's, by 200 chains on 50 of 1,000 items."""
    chains = logistic.chains(dynamics, lr)
    each, rows = chains.sampler.extras["per_example"], contrasts(50) / 50**0.5
    chains.sampler.extras["noise_draws"] = lambda: rows @ each()
    w = chains.run(1500, every=3, burn_in=1200)
    return Estimate.over_chains((w - w.mean((0, 1))).square().mean(0) / torch.from_numpy(NUTS["std"]) ** 2)


@pytest.mark.slow  # the regression is the other law with the noise of batches
def test_logistic_regression_in_batches_beside_nuts():
    """Variances to 7 %, at an lr at which SGHMC's are more than a fifth too large, in every direction."""
    estimate = variances(bdl.CCHMC(rank=10, adapt_steps=1200), 0.04)
    error = Z * np.hypot(estimate.se, 2 * NUTS["std_se"] / NUTS["std"])
    assert (error < 0.1).all()
    assert (abs(estimate.mean - 1) < 0.07 + error).all() and abs(estimate.mean.mean() - 1) < 0.05
    assert (variances(bdl.SGHMC(0.1), 0.04).mean > 1.2).all()
