"""Tests of `bdl.contrib.control.variate`, `bdl.samplers.batch_gradient`, `.estimator` and `.explanation`."""

import io
import itertools
from dataclasses import replace

import pytest
import torch
from closures import closure_of
from experiments.control_variates.problem import (
    AXES,
    BATCH,
    COVARIANCE,
    D64,
    NOISE,
    D,
    H,
    N,
    Regression,
    X,
    Y,
    controlled_noise,
)
from oracles import linear_step
from repeats import slow_where

import bdl
from bdl.errors import ConfigError
from bdl.samplers.batch_noise import EVERY

Z = 4.5  # standard errors
FIXED = bdl.ControlVariate(every=10**9)
CHAINS = 100


class Items:
    """One chain of a logistic regression on 6 items, whose gradients can be enumerated."""

    x = torch.randn(6, 2, dtype=D64, generator=torch.Generator().manual_seed(1))
    y = torch.tensor([0, 1, 1, 0, 1, 0], dtype=D64)

    def __init__(self, every: int = 100):
        self.theta = torch.tensor([0.3, -0.2], dtype=D64, requires_grad=True)
        control = bdl.ControlVariate(every)
        self.sampler = bdl.Sampler([self.theta], bdl.SGLD(), num_data=6, lr=0.01, gradient=control)
        self.sampler.full_gradient = self.closure(range(6))

    def loss(self, rows) -> torch.Tensor:
        return torch.nn.functional.binary_cross_entropy_with_logits(self.x[rows] @ self.theta, self.y[rows])

    def closure(self, rows):
        rows = list(rows)
        return closure_of(self.sampler, lambda: self.loss(rows))

    @torch.no_grad()
    def estimate(self, rows) -> tuple[torch.Tensor, torch.Tensor]:
        """Loss () and gradient (2,) that a step on these rows takes."""
        loss = self.sampler.evaluation.loss(self.closure(rows))
        e = self.sampler.evaluation.evaluate(loss, True)
        return e.loss, e.g.clone()

    def move(self) -> None:
        with torch.no_grad():
            self.theta.add_(torch.tensor([0.4, 0.7], dtype=D64))
        self.sampler.chain.steps = 1


def test_the_mean_over_batches_is_the_full_loss_and_its_gradient():
    """By enumeration, to rounding. Control: single batches differ by far more."""
    items = Items()
    items.estimate([0, 1])
    items.move()
    losses, gradients = zip(*[items.estimate(rows) for rows in itertools.combinations(range(6), 2)], strict=True)
    full = items.loss(range(6))
    (gradient,) = torch.autograd.grad(full, items.theta)
    torch.testing.assert_close(torch.stack(losses).mean(), full.detach(), rtol=1e-13, atol=0)
    torch.testing.assert_close(torch.stack(gradients).mean(0), gradient, rtol=1e-12, atol=0)
    assert torch.stack(gradients).std(0).min() > 1e-3


def test_at_the_anchor_every_batch_has_full_loss_and_gradient():
    items = Items()
    full = items.loss(range(6))
    (gradient,) = torch.autograd.grad(full, items.theta)
    for rows in ([0, 1], [2, 5], [4]):
        loss, g = items.estimate(rows)
        torch.testing.assert_close(g, gradient, rtol=1e-13, atol=0)
        torch.testing.assert_close(loss, full.detach(), rtol=1e-13, atol=0)


def test_the_energy_of_a_step_is_that_of_the_controlled_loss():
    items = Items()
    items.sampler.step(items.closure([0, 1]))
    at = items.theta.detach().clone()
    loss = items.sampler.step(items.closure([2, 3]))
    torch.testing.assert_close(items.sampler.energy, 6 * loss + at.square().sum() / 2)


@pytest.mark.parametrize("every", [1, 7, 10, 20, 30, 100, 1000])
def test_batch_noise_is_estimated_at_anchors_of_all_ages(every: int):
    """Its steps 1, 21, 41, ... in the middle see anchors whose mean age is that over all steps, to half of a step."""
    regression = Regression(bdl.SGLD(), 0.01, chains=1, gradient=bdl.ControlVariate(every=every))
    evaluation, ages = regression.sampler.evaluation, []
    evaluation._over_all_data = lambda: (torch.zeros(1), torch.zeros(1, D))  # the renewals alone are of interest
    for step in range(3 * EVERY * every):
        regression.sampler.chain.steps = step
        evaluation._renew_when_due()
        ages.append(step - evaluation.anchored_at)
    settled = ages[EVERY * every :]
    seen = settled[1::EVERY]
    assert max(settled) == every - 1
    assert abs(sum(seen) / len(seen) - (every - 1) / 2) <= 0.5


def linear(dynamics, lr: float, noise: torch.Tensor) -> torch.Tensor:
    """(D,) variances along AXES over those of the posterior, for gradients whose errors have this covariance."""
    covariance = torch.as_tensor(linear_step(dynamics, H, lr, 1 / N).theta_covariance(noise.numpy()))
    return (AXES @ covariance @ AXES.T).diagonal() / (AXES @ COVARIANCE @ AXES.T).diagonal()


@pytest.mark.parametrize(
    "dynamics, lr",
    slow_where(lambda dynamics, lr: lr == 0.05, [(bdl.SGLD(), 0.05), (bdl.SGHMC(0.2), 0.01)]),
    ids=["SGLD", "SGHMC"],
)
def test_sgld_and_sghmc_have_the_posterior_under_uneven_batches(dynamics, lr: float):
    """With the mode as the anchor: variances as by Lyapunov's equation with the noise that is left, within Z errors.

    The equation puts them within 8 % of the posterior's. The mean over directions is known to 1 %, each to 3 %. The
    controls by the same equation, and by a run without anchor: 50 and more times too large.
    """
    expected, plain = linear(dynamics, lr, controlled_noise(COVARIANCE)), linear(dynamics, lr, NOISE)
    assert (expected - 1).abs().max() < 0.08 and plain[0] > 50
    regression = Regression(dynamics, lr, at_mode=True, gradient=FIXED)
    v = regression.run(800, 150)
    assert (abs(v.mean(0) - expected) < Z * v.std(0) / CHAINS**0.5).all()
    mean, error = v.mean(), float(v.mean(1).std()) / CHAINS**0.5
    assert error < 0.012 and abs(mean - expected.mean()) < Z * error
    hot = Regression(dynamics, lr).run(200, 150).mean(0)
    assert hot[0] > 50


def test_smile_has_the_posterior_where_one_direction_is_heated():
    """Variances to 10 %. Control: without the anchor the loud direction is too hot by more than a third.

    `heat` lets batches heat, where the default would lower lr until they do not. At T = 100 the plain chains mix soon.
    """
    smile, t = bdl.SMILE(adapt_steps=240, heat=100.0), 100.0
    v = Regression(smile, 0.01, temperature=t, gradient=bdl.ControlVariate(every=200)).run(400, 280) / t
    assert (Z * v.std(0) / CHAINS**0.5 < 0.1).all()
    assert (abs(v.mean(0) - 1) < 0.1).all()
    v = Regression(smile, 0.01, temperature=t).run(400, 280) / t
    assert v.mean(0)[0] - Z * v.std(0)[0] / CHAINS**0.5 > 1.33


def test_the_noise_that_is_left_is_measured():
    """noise_ratio as by the covariance of what is left, and what it is without the anchor.

    The anchor is the mode. The estimate has the standard error of some 25 times and 100 chains, and (lr h)²/3 more for
    what a step changes: see `BatchNoise`.
    """
    regression = Regression(bdl.SGLD(), 0.05, at_mode=True, gradient=FIXED)
    regression.run(600)
    sampler = regression.sampler
    left = controlled_noise(COVARIANCE).trace() / D
    ratio = float(sampler.noise_ratio.mean()) / (0.05 * N / 2)
    path = (0.05 * H.diagonal()).square().mean() / 3 / (0.05 * N / 2)
    assert abs(ratio - float(path) - float(left)) < 0.15 * float(left + path)
    assert abs(float(sampler.evaluation.plain.mean()) / float(NOISE.trace() / D) - 1) < 0.1
    assert float(sampler.noise_ratio.mean()) < 0.1
    plain = Regression(bdl.SGLD(), 0.05)
    plain.run(200)
    assert float(plain.sampler.noise_ratio.mean()) > 20
    assert "larger batch" not in sampler.explain() and "renewed every" in sampler.explain()


def test_an_anchor_too_far_away_is_spoken_of():
    regression = Regression(bdl.SGLD(), 0.001, gradient=FIXED)
    regression.step()
    with torch.no_grad():
        regression.theta.add_(20.0)
    regression.run(40)
    assert "a larger batch at the same cost gives less" in regression.sampler.explain()


def copy_of(state):
    torch.save(state, file := io.BytesIO())
    return torch.load(io.BytesIO(file.getvalue()), weights_only=True)


@pytest.mark.parametrize("steps", [3, 15])
def test_a_resumed_chain_takes_the_same_steps(steps: int):
    """Before and after a renewal, to the byte."""
    control = bdl.ControlVariate(every=7)
    whole, second = (Regression(bdl.SGHMC(), 0.01, chains=3, gradient=control) for _ in range(2))
    for _ in range(steps):
        whole.step()
    second.sampler.load_state_dict(copy_of(whole.sampler.state_dict()))
    with torch.no_grad():
        second.theta.copy_(whole.theta)
    second.draw.set_state(whole.draw.get_state())
    for _ in range(25):
        assert torch.equal(whole.step(), second.step())
    assert torch.equal(whole.theta, second.theta)
    assert torch.equal(whole.sampler.noise_ratio, second.sampler.noise_ratio)
    assert whole.sampler.explain() == second.sampler.explain()


def test_a_checkpoint_of_another_gradient_is_refused():
    plain, other = Regression(bdl.SGHMC(), 0.01, chains=3), Regression(bdl.SGHMC(), 0.01, chains=3, gradient=FIXED)
    plain.step(), other.step()
    for one, two in ((plain, other), (other, plain)):
        with pytest.raises(ConfigError, match="saved with gradient = "):
            one.sampler.load_state_dict(copy_of(two.sampler.state_dict()))


def test_a_checkpoint_from_before_the_choice_is_of_plain_batches():
    old, new = (Regression(bdl.SGHMC(), 0.01, chains=3) for _ in range(2))
    old.step()
    state = old.sampler.state_dict()
    del state["bdl"]["identity"]["gradient"]
    new.sampler.load_state_dict(copy_of(state))


def test_a_stack_moves_as_its_chains_do_alone():
    """Without noise, on the batches of each chain."""
    stack = Regression(bdl.SGD(0.9), 0.01, chains=3, temperature=0.0, gradient=bdl.ControlVariate(every=5))
    start, rows = stack.theta.detach().clone(), []
    stack.mean, mean = lambda r, out: (rows.append(r), mean(r, out))[1], stack.mean
    for _ in range(12):
        stack.step()
    assert len(rows) == 24 and all(map(torch.equal, rows[::2], rows[1::2]))
    for c in range(3):
        theta = start[c].clone().requires_grad_()
        control = bdl.ControlVariate(every=5)
        sampler = bdl.Sampler([theta], bdl.SGD(0.9), num_data=N, lr=0.01, temperature=0.0, gradient=control)

        def closure(x=X, y=Y, theta=theta, sampler=sampler) -> torch.Tensor:
            sampler.zero_grad()
            loss = (x @ theta - y).square().mean() / 2
            loss.backward()
            return loss

        sampler.full_gradient = closure
        for each in rows[::2]:
            sampler.step(lambda each=each, c=c, closure=closure: closure(X[each[c]], Y[each[c]]))
        torch.testing.assert_close(theta, stack.theta[c], rtol=1e-9, atol=1e-9)


def test_anchors_swap_with_the_replicas():
    """Each chain keeps an anchor whose gradient is that of all the data there, and that it is near to."""
    exchange = bdl.Exchange((1.0, 1.0001), every=2, energy_var=0.0)
    regression = Regression(bdl.SGLD(), 0.0001, chains=2, gradient=FIXED, exchange=exchange)
    with torch.no_grad():
        regression.theta[1].add_(0.2)  # far from the other chain, in units of a step
    sampler = regression.sampler
    while sampler.replicas.done.sum() < 1:
        regression.step()
    near = (regression.theta.detach() - sampler.evaluation.anchor).norm(dim=1)
    assert near.max() < 0.1 < (regression.theta[0] - regression.theta[1]).norm()
    with torch.no_grad():
        anchors = sampler.evaluation.anchor
        torch.testing.assert_close(sampler.evaluation.gradient, (anchors @ X.T - Y) @ X / N)


def test_a_chain_that_takes_place_of_another_brings_its_anchor():
    regression = Regression(bdl.SGLD(), 0.01, chains=3, gradient=FIXED, on_divergence="drop")
    regression.step()
    with torch.no_grad():
        regression.theta[1] = torch.nan
    with pytest.warns(bdl.BdlWarning, match="chain 1 has diverged"):
        regression.step()
    anchor = regression.sampler.evaluation.anchor
    assert torch.equal(anchor[1], anchor[0]) and not torch.equal(anchor[2], anchor[0])
    regression.run(30)
    assert regression.theta.isfinite().all()


def test_where_a_batch_is_all_data_a_step_is_that_without_anchor():
    paths = []
    for settings in ({}, {"gradient": FIXED}):
        regression = Regression(bdl.SGHMC(), 0.01, chains=2, **settings)
        regression.sampler.host = replace(regression.sampler.host, sees_all_data=True)
        regression.run(5)
        paths.append(regression.theta.detach())
    assert torch.equal(*paths) and regression.gradients == 5 * BATCH
    assert "none, since every batch holds all the data" in regression.sampler.explain()


def test_parameters_that_move_to_another_type_take_anchor_along():
    net = torch.nn.Linear(D, 1)
    sampler = bdl.Sampler(net.parameters(), bdl.SGLD(), num_data=N, lr=0.01, gradient=FIXED)

    def closure(rows=slice(None)) -> torch.Tensor:
        sampler.zero_grad()
        dtype = net.weight.dtype
        loss = (net(X[rows].to(dtype)).squeeze(-1) - Y[rows].to(dtype)).square().mean() / 2
        loss.backward()
        return loss

    sampler.full_gradient = closure
    sampler.step(lambda: closure(slice(0, 20)))
    net.double()
    sampler.step(lambda: closure(slice(20, 40)))
    assert sampler.evaluation.anchor.dtype == D64 and net.weight.dtype == D64


def build(**settings) -> bdl.Sampler:
    theta = torch.zeros(2, requires_grad=True)
    return bdl.Sampler(
        [theta], **({"dynamics": bdl.SGLD(), "num_data": 9, "lr": 0.1, "gradient": "control"} | settings)
    )


@pytest.mark.parametrize(
    "settings, line",
    [
        ({"dynamics": bdl.HMC()}, "HMC evaluates all the data"),
        ({"dynamics": bdl.MeanField()}, "MeanField takes gradients at new draws"),
        ({"dynamics": bdl.SGFS()}, "SGFS measures batch noise by a batch alone"),
        ({"weighting": bdl.AdaptiveWeight(energy="control", refresh=5)}, "set the energy of the weighting"),
        ({"gradient": "controll"}, 'gradient must be null, "control" or a bdl.ControlVariate'),
        ({"gradient": bdl.SGLD()}, 'gradient must be null, "control" or a bdl.ControlVariate'),
    ],
)
def test_what_makes_no_sense_together_is_refused(settings, line: str):
    with pytest.raises(ConfigError, match=line):
        build(**settings)


def test_what_a_step_lacks_is_named():
    sampler = build()
    closure = closure_of(sampler, lambda: sampler.sampled[0].square().sum())
    with pytest.raises(ConfigError, match="call step"):
        sampler.step()
    with pytest.raises(ConfigError, match="does not know how many batches"):
        sampler.step(closure)
    sampler = build(gradient=FIXED)
    with pytest.raises(ConfigError, match="set sampler.full_gradient"):
        sampler.step(closure)
    sampler.full_gradient = closure
    with pytest.raises(ConfigError, match="returns the mean loss"):
        sampler.step(lambda: None)


def test_a_random_loss_is_refused():
    """Dropout in a plain loop, at the first step."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(D, 1))
    sampler = bdl.Sampler(net.parameters(), bdl.SGLD(), num_data=N, lr=0.01, gradient=FIXED)
    closure = closure_of(sampler, lambda: (net(X.float()).squeeze(-1) - Y.float()).square().mean() / 2)
    sampler.full_gradient = closure
    with pytest.raises(ConfigError, match="the loss is random"):
        sampler.step(closure)
    net.eval()
    sampler.step(closure)
