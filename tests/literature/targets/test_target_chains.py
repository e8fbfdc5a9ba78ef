"""The bare loop: what it evaluates, what it keeps, and that its step is the canonical one."""

import math

import pytest
import torch
from literature.targets import Chains, GaussianLaw, LinearRegression, Rastrigin, Target
from literature.targets.base import curvature
from zoo import LINE, points

import bdl
from bdl.errors import ConfigError

GAUSSIAN = GaussianLaw([1.0, -2.0], [[1.0, 0.5], [0.5, 2.0]])
REGRESSION = LinearRegression(LINE[0][:, 1:], LINE[1])  # of a slope and the log of the noise variance
START = points(GAUSSIAN, 4)


def chains(target=GAUSSIAN, start=START, dynamics=None, lr=0.01, **settings):
    return Chains(target, dynamics or bdl.SGLD(), start, lr=lr, **settings)


def test_run_keeps_every_third_state_after_burn_in():
    made = chains()
    kept = made.run(10, every=3, burn_in=5)
    assert kept.shape == (3, 4, 2) and made.gradients == 15 and made.sampler.steps == 15
    again = chains()
    trace = []
    for _ in range(15):
        again.step()
        trace.append(again.theta.clone())
    assert torch.equal(kept, torch.stack([trace[i] for i in (7, 10, 13)]))
    assert torch.equal(made.theta, again.theta)


STREAMS = {
    "injected noise": {},
    "gradient noise": {"gradient_noise": 0.3, "temperature": 0.0},
    "batches": {"target": REGRESSION, "batch": 5, "temperature": 0.0},
}


@pytest.mark.parametrize("settings", STREAMS.values(), ids=STREAMS)
def test_each_stream_follows_the_seed(settings):
    runs = [chains(**settings, seed=seed).run(20) for seed in (0, 0, 1)]
    assert torch.equal(runs[0], runs[1]) and not torch.equal(runs[0], runs[2])


def test_start_is_left_alone():
    start = START.clone()
    chains(start=start).run(3)
    assert torch.equal(start, START)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_start_sets_the_dtype(dtype):
    made = chains(start=START.to(dtype))
    assert made.run(2).dtype == made.closure().dtype == dtype
    assert made.target.grad(made.theta).dtype == dtype


def test_closure_is_the_mean_potential():
    made = chains(REGRESSION)
    for _ in range(3):  # several times a step, as HMC does
        loss = made.closure()
    assert made.gradients == 3
    torch.testing.assert_close(loss, REGRESSION.energy(START) / 60)
    torch.testing.assert_close(made.sampler.param_groups[0]["params"][0].grad, REGRESSION.grad(START) / 60)
    made.theta += 1.0  # as an accept/reject step tries another state
    torch.testing.assert_close(made.closure(), REGRESSION.energy(START + 1) / 60)


def test_closure_survives_zero_grad():
    made = chains()
    made.sampler.zero_grad(set_to_none=True)
    made.closure()
    torch.testing.assert_close(made.sampler.param_groups[0]["params"][0].grad, GAUSSIAN.grad(START))


def test_one_step_is_the_canonical_step():
    """θ - e ∇U + sqrt(2 e T) z: mean and variance over 200,000 chains; 1 % of the variance is 3 standard errors."""
    e, t, n = 0.1, 1.5, 200_000
    made = chains(start=START[:1].expand(n, -1), lr=e, temperature=t)
    made.step()
    mean = START[0] - e * GAUSSIAN.grad(START[0])
    assert ((made.theta.mean(0) - mean).abs() < 4.5 * math.sqrt(2 * e * t / n)).all()
    assert ((made.theta.var(0) / (2 * e * t) - 1).abs() < 4.5 * math.sqrt(2 / n)).all()


def test_a_step_on_data_is_in_the_units_of_the_sampler():
    """lr = e N: the same canonical step, so at T = 0 the same state."""
    e = 0.001
    made = chains(REGRESSION, lr=e * 60, temperature=0.0)
    made.step()
    torch.testing.assert_close(made.theta, START - e * REGRESSION.grad(START))


def test_gradient_noise_has_its_size():
    n, std = 100_000, torch.tensor([0.5, 3.0])
    made = chains(start=START[:1].expand(n, -1), gradient_noise=std)
    made.closure()
    excess = made.sampler.param_groups[0]["params"][0].grad - GAUSSIAN.grad(START[0])
    assert ((excess.mean(0)).abs() < 4.5 * std / math.sqrt(n)).all()
    assert ((excess.var(0) / std**2 - 1).abs() < 4.5 * math.sqrt(2 / n)).all()
    first = excess.clone()
    made.closure()
    assert not torch.equal(first, made.sampler.param_groups[0]["params"][0].grad - GAUSSIAN.grad(START[0]))


def test_gradient_noise_on_data_is_of_u_not_of_its_mean():
    n = 50_000
    made = chains(REGRESSION, START[:1].expand(n, -1), gradient_noise=2.0)
    made.closure()
    added = 60 * made.sampler.param_groups[0]["params"][0].grad - REGRESSION.grad(START[0])
    assert ((added.var(0) / 4 - 1).abs() < 4.5 * math.sqrt(2 / n)).all()


def test_batches_are_unbiased_and_each_chain_has_its_own():
    n = 50_000
    made = chains(REGRESSION, START[:1].expand(n, -1), batch=3)
    loss = made.closure()
    grad = made.sampler.param_groups[0]["params"][0].grad
    assert ((grad.mean(0) - REGRESSION.grad(START[0]) / 60).abs() < 4.5 * grad.std(0) / math.sqrt(n)).all()
    assert abs(loss.mean() - REGRESSION.energy(START[0]) / 60) < 4.5 * loss.std() / math.sqrt(n)
    assert len(loss[:100].unique()) > 90
    singles = torch.arange(60)[:, None]
    item = REGRESSION.loss_and_grad(START[:1].expand(60, -1), singles)[1]
    assert ((grad.var(0) / (item.var(0, correction=0) / 3) - 1).abs() < 0.05).all()  # variance of a mean of 3 draws


def test_a_box_undoes_steps_that_leave_it():
    box = (-2.56, 5.12)
    start = 4.5 * torch.ones(500, 20)
    made = chains(Rastrigin(), start, temperature=4.0, box=box)
    free = chains(Rastrigin(), start, temperature=4.0)
    made.step(), free.step()
    gone = ((free.theta < box[0]) | (free.theta > box[1])).any(1)
    assert 0 < gone.sum() < 500
    assert torch.equal(made.theta[gone], start[gone])
    assert torch.equal(made.theta[~gone], free.theta[~gone])
    kept = made.run(50)
    assert kept.min() >= box[0] and kept.max() <= box[1]


class Bare:
    """An energy and nothing else, without the base class Target."""

    dim = 2

    def energy(self, x):
        return x.pow(4).sum(-1)


class Quartic(Bare, Target):
    """A target that a user writes."""


@pytest.mark.parametrize("target", [Quartic(), Bare()])
def test_an_energy_is_enough(target):
    made = chains(target)
    torch.testing.assert_close(made.closure(), START.pow(4).sum(-1))
    torch.testing.assert_close(made.sampler.param_groups[0]["params"][0].grad, 4 * START**3)
    assert made.run(3).shape == (3, 4, 2)


def test_full_energy_ignores_the_batch():
    made = chains(REGRESSION, batch=2)
    made.step()
    torch.testing.assert_close(made.sampler.full_energy(), REGRESSION.energy(made.theta))


def test_extras_are_gradients_per_example_and_curvatures():
    made = chains(REGRESSION, batch=7)
    made.closure()
    each = made.sampler.extras["per_example"]()
    assert each.shape == (4, 7, 2)
    torch.testing.assert_close(each.mean(1), made.sampler.param_groups[0]["params"][0].grad)
    torch.testing.assert_close(made.sampler.extras["curvature"](), curvature(REGRESSION, START) / 60)


def test_a_start_outside_the_box_is_refused():
    with pytest.raises(ConfigError, match="start must lie in the box"):
        chains(box=(-0.1, 0.1))
