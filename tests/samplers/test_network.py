"""A small Bayesian network: bdl's samplers against NUTS from blackjax, another algorithm in another implementation.

nuts.json holds the data and the moments of 1,500 draws of 64 chains of helpers/nuts.py; a slow test runs NUTS again.

The 2-12-1 network is symmetric under permutations and signs of its units. The comparison is therefore in function
space, where all chains of NUTS agree (checked). Standard errors come from the spread between chains, on both sides.
Every test checks its power: the law at T = 1.2 (NUTS reweighted) is more than 2 Z standard errors away, in the energy
and in the standard deviation of a prediction.
"""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from oracles import Estimate
from torch import Tensor
from torch.nn import functional as F

import bdl
from bdl.models import MLP

Z = 4.5  # standard errors, two-sided error 7e-6 per statistic
N, CHAINS, HOT = 100, 64, 1.2
POINTS = torch.tensor([[0.0, 0.0], [1.0, 0.0], [-1.0, 1.0], [2.0, -1.0], [0.0, -2.0], [3.0, 3.0]])  # the last: far out
K = len(POINTS)


STORED = json.loads(Path(__file__).with_name("nuts.json").read_text())
X, Y = torch.tensor(STORED["x"]), torch.tensor(STORED["y"])  # (N, 2), (N,) in {0, 1}


def nll(outputs: Tensor, y: Tensor) -> Tensor:
    """(..., B, 1) logits and y (..., B) -> (..., B) nats."""
    return F.softplus((1 - 2 * y) * outputs[..., 0])


def moments(values: Tensor, weights: Tensor | None = None) -> Estimate:
    """(2 k,) means and standard deviations of values (S, C, k) under weights (S, C), with standard errors."""
    values = values.double()
    w = torch.ones(values.shape[:2]).double() if weights is None else weights.double()
    w = (w / w.mean()).unsqueeze(-1)

    def mean(v: Tensor) -> tuple[Tensor, Tensor]:
        m = (w * v).mean((0, 1))
        return m, (w * (v - m)).mean(0).std(0) / v.shape[1] ** 0.5  # the delta method for a ratio

    m, se = mean(values)
    variance, se_variance = mean((values - m).square())
    std = variance.sqrt()
    return Estimate(torch.cat([m, std]).numpy(), torch.cat([se, se_variance / 2 / std]).numpy())


@dataclass(frozen=True)
class Reference:
    """Moments by NUTS, at T = 1 and T = 1.2, of the logits at POINTS, the negative log-likelihood and U."""

    true: Estimate
    hot: Estimate

    def z(self, estimate: Estimate) -> np.ndarray:
        return (estimate.mean - self.true.mean) / np.hypot(estimate.se, self.true.se)

    def agrees(self, estimate: Estimate) -> bool:
        power = np.abs(self.hot.mean - self.true.mean) / np.hypot(estimate.se, self.true.se)
        energy, predictive = power[K + 1], power[K + 2 : 2 * K + 2].max()
        assert min(energy, predictive) > 2 * Z, "no power: more steps"
        return bool((np.abs(self.z(estimate)) < Z).all())


def moments_at_both_temperatures(draws: Tensor) -> dict[str, Estimate]:
    """Moments at T = 1 and, by importance weights exp(U - U/1.2), at T = 1.2 of draws (S, C, K + 2)."""
    u = draws[..., -1] * (1 - 1 / HOT)
    return {"true": moments(draws), "hot": moments(draws, (u - u.max()).exp())}


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference(**{name: Estimate(*map(np.array, STORED[name])) for name in ("true", "hot")})


@pytest.mark.slow
def test_nuts_has_the_moments_that_are_stored(reference: Reference, tmp_path: Path):
    """120 draws of 64 chains, started from another seed than those of the file."""
    source, target = tmp_path / "data.npz", tmp_path / "draws.npz"
    np.savez(source, x=X.numpy(), y=Y.numpy(), points=POINTS.numpy())
    command = [sys.executable, str(Path(__file__).parents[1] / "helpers" / "nuts.py"), source, target, "120", "3"]
    subprocess.run(command, check=True)
    draws = torch.from_numpy(np.load(target)["draws"]).double()
    per_chain, pooled = draws.var(0).mean(0), draws.var((0, 1))
    assert (pooled / per_chain < 1.02).all(), "the chains of NUTS disagree"
    for name, estimate in moments_at_both_temperatures(draws).items():
        stored = getattr(reference, name)
        assert (np.abs(estimate.mean - stored.mean) < Z * np.hypot(estimate.se, stored.se)).all()


def sampled(
    dynamics, e: float, steps: int, burn_in: int = 600, batch: int | None = None, every: int = 5, **arguments
) -> tuple[Tensor, Tensor]:
    """Statistics (S, C, K + 2) and importance weights (S, C) of 64 chains at lr / N = e.

    batch: items that each chain draws for a step without replacement; None takes all the data. Burn-in is at
    lr / N = 2e-3, and ends with freezing the weighting.
    """
    stack = bdl.ChainStack(MLP((2, 12, 1)), CHAINS, shared=batch is None)
    sampler = bdl.Sampler(
        stack.named_parameters(),
        dynamics,
        num_data=N,
        lr=2e-3 * N,
        prior=bdl.Gaussian(1.0),
        chains=CHAINS,
        seed=1,
        **arguments,
    )
    draw = torch.Generator().manual_seed(1)

    def closure() -> Tensor:
        sampler.zero_grad()
        x, y = X, Y
        if batch is not None:
            i = torch.rand(CHAINS, N, generator=draw).argsort(1)[:, :batch]
            x, y = X[i], Y[i]
        loss = nll(stack(x), y).mean(1)
        loss.sum().backward()
        return loss

    @torch.no_grad()
    def statistics() -> Tensor:
        """(C, K + 2) logits at the points, negative log-likelihood, U."""
        outputs = stack.broadcast(torch.cat([POINTS, X]))
        likelihood = nll(outputs[:, K:], Y).sum(1, keepdim=True)
        theta = torch.cat([p.flatten(1) for p in stack.parameters()], 1)
        return torch.cat([outputs[:, :K, 0], likelihood, likelihood + theta.square().sum(1, keepdim=True) / 2], 1)

    for _ in range(burn_in):
        sampler.step(closure)
    assert sampler.reweighting.freeze() == sampler.weighting.needs_energy
    sampler.param_groups[0]["lr"] = e * N
    values, weights = [], []
    for k in range(steps):
        values += [statistics()] if k % every == 0 else []
        sampler.step(closure)
        weights += [sampler.log_weight.exp().expand(CHAINS)] if k % every == 0 else []  # at the θ before this step
    return torch.stack(values), torch.stack(weights)


@pytest.mark.parametrize(
    "dynamics, e",
    [
        pytest.param(bdl.SGHMC(0.1), 1e-3, id="SGHMC"),
        pytest.param(bdl.BAOAB(0.1), 2e-3, id="BAOAB", marks=pytest.mark.slow),
        pytest.param(bdl.SGNHT(0.1, rate=None), 1e-3, id="SGNHT", marks=pytest.mark.slow),
        pytest.param(bdl.SMILE(0.1, stiffness=0.05, adapt_steps=600), 2e-3, id="SMILE", marks=pytest.mark.slow),
    ],
)
def test_full_batch(reference: Reference, dynamics, e: float):
    """Curvatures of U reach 130, so SGHMC's variance is 3% too large in the stiffest direction. Halving e moves no
    statistic by a standard error."""
    assert reference.agrees(moments(*sampled(dynamics, e, 1000)))


@pytest.mark.slow
def test_hmc(reference: Reference):
    """bdl's HMC, which is exact at any lr."""
    assert reference.agrees(moments(*sampled(bdl.HMC(10, adapt_steps=60), 2e-3, 70, burn_in=80, every=1)))


@pytest.mark.slow
def test_temperature_off_by_a_fifth_is_seen(reference: Reference):
    """Negative control: at T = 1.2 injected noise is 1.1 times as large. The energy and the predictive deviations at
    several points then differ, and the law is the one that NUTS has at T = 1.2."""
    estimate = moments(*sampled(bdl.SGHMC(0.1), 1e-3, 1000, temperature=HOT))
    z = reference.z(estimate)
    assert z[K + 1] > Z and (z[K + 2 : 2 * K + 2] > Z).sum() > 2
    assert (np.abs(Reference(reference.hot, reference.true).z(estimate)) < Z).all()


@pytest.mark.slow  # test_reweighting.py recovers expectations of a double well by such weights
def test_adaptive_weighting_with_importance_weights(reference: Reference):
    """AWSGHMC samples another law, and with the weights psi(U)^zeta it agrees. Without them the energy is .8 standard
    deviations too low, and most predictive deviations are too small."""
    weighting = bdl.AdaptiveWeight(zeta=1.0, low=44.0, high=76.0, bins=16, shared=True, rate=lambda k: 0.01)
    values, weights = sampled(bdl.SGHMC(0.1), 1e-3, 1500, burn_in=1200, weighting=weighting)
    assert reference.agrees(moments(values, weights))
    z = reference.z(moments(values))
    assert z[K + 1] < -Z and (z[K + 2 : 2 * K + 2] < -Z).sum() > 2


@pytest.mark.slow  # test_batches.py has batch noise that is subtracted
@pytest.mark.parametrize("batch, agrees", [(75, True), (25, False)])
def test_mini_batches(reference: Reference, batch: int, agrees: bool):
    """SGHMC that subtracts the estimated batch noise. Batches of 75 out of 100 bring too little of it to be seen.

    Batches of 25 bring eight times as much, in the few directions in which all weights move the output together. Its
    mean over coordinates is small and is subtracted: the energy is right, but fit and predictive deviations are not.
    Neither `grad_var`, which is diagonal, nor a thermostat can correct that; SGNHT has the same errors.
    """
    estimate = moments(*sampled(bdl.SGHMC(0.1, grad_var="estimated"), 4e-4, 1200, batch=batch))
    assert reference.agrees(estimate) == agrees
    assert abs(reference.z(estimate)[K + 1]) < Z
    if not agrees:
        assert reference.z(estimate)[[K, K + 2]].min() > Z


@pytest.mark.slow
@pytest.mark.parametrize("heat, bounded", [(0.1, True), (2.0, False)])
def test_mini_batches_under_a_bound_of_their_heat(reference: Reference, heat: float, bounded: bool):
    """SMILE tunes lr so that the directions in which all weights move the output have T (1 + heat), the mean of them.

    At 0.1 batches of 25 make predictive deviations up to a sixth too large, and the fit by half a nat. At 2 they are
    about a half and three nats, at least twice these bounds: the mean over parameters of the share of batches is 0.14
    then.
    """
    dynamics = bdl.SMILE(0.1, heat=heat, adapt_steps=1000)
    estimate = moments(*sampled(dynamics, 2e-3, 1000, burn_in=1000, batch=25))
    excess = (estimate.mean / reference.true.mean - 1)[K + 2 : 2 * K + 2].max()
    fit = estimate.mean[K] - reference.true.mean[K]
    assert (excess < 1 / 6 and abs(fit) < 0.5) if bounded else (excess > 1 / 3 and fit > 1)
