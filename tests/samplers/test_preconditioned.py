"""Tests of `bdl.samplers.dynamics.preconditioned`.

PSGLD, SGRLD and SGFS have the law that they claim; where they claim none, they have the bias of their docstrings.

Most laws here are those of the discretised chain as functions of lr, computed without random numbers by oracles.py.
"""

import itertools
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from curved import Banana
from literature.targets import Chains, GaussianLaw
from oracles import COVARIANCE, PRECISION, Estimate, first_order_law, linear_step, panels
from repeats import slow_where
from table import diagonal_metric, full_metric

import bdl
from bdl.errors import ConfigError
from bdl.samplers.dynamics.preconditioned import metric_and_divergence

Z = 4.5  # standard errors
D64 = torch.float64


def run(dynamics, grads, lr=0.1, temperature=1.0, extras=None, **arguments) -> list[torch.Tensor]:
    """The path of a sampler under given gradients (steps, d): a list of θ (d,). It starts at 1, with seed 0."""
    theta = torch.ones(grads.shape[1], dtype=D64, requires_grad=True)
    sampler = bdl.Sampler([theta], dynamics, num_data=7, lr=lr, temperature=temperature, prior=bdl.Uniform())
    sampler.extras |= extras or {}
    path = []
    for g in grads:
        theta.grad = g.clone()
        sampler.step()
        path.append(theta.detach().clone())
    return path


def gradients(steps=60, d=3) -> torch.Tensor:
    return torch.randn(steps, d, generator=torch.Generator().manual_seed(1), dtype=D64) * torch.tensor([0.1, 1.0, 3.0])


@dataclass(frozen=True)
class GammaTimes(bdl.Dynamics):
    """PSGLD at a = 0 with its Γ multiplied by k."""

    k: float
    damping: float = 0.1
    needs = frozenset(["curvature"])

    def init(self, theta):
        return bdl.PSGLD(a=0.0, damping=self.damping).init(theta)

    def step(self, s, g, lr, tau, z, extra):
        extra = {"curvature": self.k * extra["curvature"]}
        return bdl.PSGLD(a=0.0, damping=self.damping).step(s, g, lr, tau, z, extra)


def variance_on_a_gaussian(dynamics, lr: float, T: float = 1.0) -> float:
    """Variance, over T, of the discretised chain with U = x²/2, whose law is N(0, T)."""
    x, w = panels(np.linspace(-7, 7, 113) * T**0.5)
    law = first_order_law(dynamics, lambda x: x, x[:, None], w, lr, T, None, torch.ones_like)
    return law.mean(law.theta[:, 0] ** 2) / T


def variance_of(power: float, damping: float, T: float) -> float:
    """Variance, over T, of the law exp(-x²/2T) P^power with P = 1/(damping + |x|)."""
    x, w = panels(np.linspace(-12, 12, 97) * T**0.5)
    p = w * np.exp(-(x**2) / 2 / T) * (damping + np.abs(x)) ** -power
    return p @ x**2 / p.sum() / T


@pytest.mark.parametrize(
    "k, T",
    slow_where(lambda *case: case not in ((0, 1.0), (1, 3.0), (2, 0.5)), itertools.product((0, 1, 2), (0.5, 1.0, 3.0))),
)
def test_gamma_restores_the_law_of_psgld_without_memory(k: float, T: float):
    """With k Γ the law is exp(-U/T) P^(k - 1) as lr -> 0, the intended one at k = 1 alone. The error is of first order.
    At T = 1 the variance is 1.89 times the right one without Γ, and .36 times with twice Γ."""
    expected = variance_of(k - 1, 0.1, T)
    error, halved = (variance_on_a_gaussian(GammaTimes(k), lr, T) - expected for lr in (2e-3, 1e-3))
    assert error / halved == pytest.approx(2, abs=0.25)
    assert expected + 2 * halved - error == pytest.approx(expected, abs=0.03)
    assert k != 1 or expected == pytest.approx(1)
    assert T != 1 or expected == pytest.approx([1.889, 1.0, 0.364][k], abs=1e-3)


@pytest.mark.slow  # the exact bias of a drift without Γ stands above
@pytest.mark.parametrize(
    "a, lr, ratio",
    [(0.99, 0.03, 1.16), (0.99, 0.01, 1.31), (0.9, 0.01, 1.69)],
    ids=["fast", "slow", "slower"],
)
def test_bias_of_the_usual_psgld(a: float, lr: float, ratio: float):
    """On N(0, I) with λ = .1 variances are too large by as much as the docstring says, within .03.

    The bias grows, up to the 1.89 of a = 0 without Γ, as a chain forgets g² sooner than it moves.
    """
    target = GaussianLaw([0.0, 0.0], torch.eye(2))
    start = target.sample(4096, torch.Generator().manual_seed(3)).float()
    chains = Chains(target, bdl.PSGLD(a=a, damping=0.1), start, lr=lr)
    estimate = Estimate.over_chains(chains.run(3000, every=10, burn_in=1000).square().mean((0, 2)).unsqueeze(1))
    assert Z * estimate.se[0] < 0.03
    assert estimate.mean[0] == pytest.approx(ratio, abs=0.03)


@pytest.mark.parametrize("k", [20, 150])
def test_frozen_psgld_is_sgld(k: int):
    """After k steps it is SGLD with P = 1/(λ + sqrt V), and before it is not.

    V is the mean of g² over the first 1/(1 - a) = 100 steps, and an exponential mean afterwards.
    """
    g = gradients(200)
    v = g[:1].square().mean(0)
    for i in range(1, k):
        v = v + (g[i].square() - v) * max(0.01, 1 / (i + 1))
    if k == 20:
        torch.testing.assert_close(v, g[:20].square().mean(0))
    path = run(bdl.PSGLD(adapt_steps=k, damping=0.2), g)
    steps = torch.stack(path).diff(dim=0)
    fixed = torch.stack(run(bdl.SGLD(1 / (0.2 + v.sqrt())), g)).diff(dim=0)
    torch.testing.assert_close(steps[k - 1 :], fixed[k - 1 :])
    assert not torch.isclose(steps[: k - 2], fixed[: k - 2]).all(1).any()


def test_psgld_at_zero_temperature_is_rmsprop():
    """torch's RMSprop starts from the first g², as PSGLD does. At a = .5 both average the first two steps evenly."""
    g = gradients()
    theta = torch.ones(3, dtype=D64, requires_grad=True)
    rmsprop = torch.optim.RMSprop([theta], lr=0.1, alpha=0.5, eps=0.2)
    theta.grad = torch.zeros_like(theta)
    rmsprop.step()  # creates its state
    rmsprop.state[theta]["square_avg"].copy_(g[0].square())
    for step, ours in zip(g, run(bdl.PSGLD(a=0.5, damping=0.2), g, temperature=0.0), strict=True):
        theta.grad = step.clone()
        rmsprop.step()
        torch.testing.assert_close(ours, theta.detach())


def test_psgld_says_when_it_is_biased():
    assert bdl.PSGLD().caveat and not bdl.PSGLD(adapt_steps=5).caveat and not bdl.PSGLD(a=0.0).caveat


@dataclass(frozen=True)
class Mistaken(bdl.Dynamics):
    """SGRLD with a mistake: only its noise is preconditioned, as in Ji 2023, or Γ is missing."""

    metric: object
    how: str

    def init(self, theta):
        return bdl.Position(theta)

    def step(self, s, g, lr, tau, z):
        matrix, gamma = metric_and_divergence(self.metric, s.theta)
        matrix = torch.diag_embed(matrix) if matrix.ndim == 2 else matrix
        p = torch.linalg.inv(matrix)
        root = torch.linalg.cholesky(p)
        drift = g if self.how == "noise only" else (p @ g.unsqueeze(-1)).squeeze(-1)
        gamma = lr * tau * gamma if self.how == "right" else 0
        s.theta.add_(-lr * drift + gamma + (2 * lr * tau) ** 0.5 * (root @ z.unsqueeze(-1)).squeeze(-1))
        return s


LAWS = {  # target, box at T = 1, spacing of the grid at T = 1 and lr = .1
    "gaussian": (GaussianLaw([0.0, 0.0], COVARIANCE), [(-4.8, 4.8), (-4.8, 4.8)], 0.3),
    "banana": (Banana(bend=0.4, scale=1.0), [(-4.6, 4.6), (-8.5, 5.0)], 0.3),
}


def moments(x) -> np.ndarray:
    """(n, 2) -> (n, 5): x1, x2, x1², x2², x1 x2."""
    x = np.asarray(x)
    return np.concatenate([x, x**2, x[:, :1] * x[:, 1:]], 1)


def grid_moments(dynamics, name: str, lr: float, T: float) -> np.ndarray:
    target, box, spacing = LAWS[name]
    spacing = spacing * (lr / 0.1 * T) ** 0.5
    axes = [np.arange(low * T**0.5, high * T**0.5, spacing) for low, high in box]
    x = np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")], 1)
    law = first_order_law(dynamics, target.grad, x, np.full(len(x), spacing**2), lr, T)
    return law.mean(moments(law.theta))


def exact_moments(name: str, T: float) -> np.ndarray:
    mean, s = LAWS[name][0].mean(), LAWS[name][0].covariance(T)
    if name == "banana":
        mean = LAWS[name][0].mean(T)
    second = s + torch.outer(mean, mean)
    return torch.cat([mean, second.diagonal(), second[0, 1:]]).numpy()


def extrapolated(dynamics, name: str, T: float) -> float:
    """Largest error of the moments over T, extrapolated from lr = .1 and .05 to lr = 0."""
    moments = 2 * grid_moments(dynamics, name, 0.05, T) - grid_moments(dynamics, name, 0.1, T)
    return np.abs(moments - exact_moments(name, T)).max() / T


@pytest.mark.parametrize(
    "metric, name, T",
    [
        pytest.param(diagonal_metric, "gaussian", 1.0, marks=pytest.mark.slow),
        (full_metric, "gaussian", 1.0),
        pytest.param(diagonal_metric, "banana", 0.5, marks=pytest.mark.slow),
        pytest.param(full_metric, "banana", 0.5, marks=pytest.mark.slow),
    ],
)
def test_sgrld_has_the_law_in_two_dimensions(metric, name: str, T: float):
    """Means and second moments are right for any metric: extrapolated to lr = 0 their error is O(lr²), below .02."""
    assert extrapolated(bdl.SGRLD(metric), name, T) < 0.02


@pytest.mark.parametrize("name, T", [("gaussian", 1.0), pytest.param("banana", 0.5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("how", slow_where("no gamma".__eq__, ["noise only", "no gamma"]))
def test_mistaken_sgrld_is_seen(how: str, name: str, T: float):
    """Negative controls: preconditioning only the noise, as in Ji 2023, or leaving out Γ."""
    assert extrapolated(Mistaken(full_metric, how), name, T) > 0.025


@pytest.mark.parametrize("metric", [diagonal_metric, full_metric])
def test_divergence_is_that_of_the_inverse(metric):
    """Central differences give Γ_i = Σ_j ∂(G⁻¹)_ij/∂θ_j, too."""
    theta, h = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=D64), 1e-5

    def inverse(x):
        g = metric(x)
        return torch.linalg.inv(torch.diag(g) if g.ndim == 1 else g)

    expected = torch.zeros(5, 3, dtype=D64)
    for c, j in np.ndindex(5, 3):
        e = torch.eye(3, dtype=D64)[j] * h
        expected[c] += (inverse(theta[c] + e) - inverse(theta[c] - e))[:, j] / (2 * h)
    g, gamma = metric_and_divergence(metric, theta)
    torch.testing.assert_close(gamma, expected, rtol=1e-7, atol=1e-9)
    for row in range(5):
        one, gamma_one = metric_and_divergence(metric, theta[row])  # one chain without leading axis
        torch.testing.assert_close(one, metric(theta[row]))
        torch.testing.assert_close(g[row], one)
        torch.testing.assert_close(gamma[row], gamma_one)


G = torch.tensor([[2.0, 0.3, 0.1], [0.3, 1.0, -0.2], [0.1, -0.2, 0.5]], dtype=D64)


@pytest.mark.parametrize("metric", [G, G.diagonal()], ids=["dense", "diagonal"])
def test_constant_metric_is_preconditioned_sgld(metric):
    """P = G⁻¹. The two use different roots of P: the test compares paths without noise, and the covariance of noise."""
    g, p = gradients(), torch.linalg.inv(metric) if metric.ndim == 2 else 1 / metric
    dynamics = bdl.SGRLD(lambda theta: metric + 0 * theta.sum())
    for ours, theirs in zip(run(dynamics, g, temperature=0.0), run(bdl.SGLD(p), g, temperature=0.0), strict=True):
        torch.testing.assert_close(ours, theirs)
    step = linear_step(dynamics, torch.eye(3), 0.2, 0.7)
    torch.testing.assert_close(torch.from_numpy(step.B @ step.B.T), 2 * 0.2 * 0.7 * (p if p.ndim == 2 else p.diag()))


def test_fisher_metric_is_frozen_sgld():
    """After adapt_steps = 5 steps it is SGLD with P = 1 / (F / mean F + damping), F the average of the Fisher diagonal.
    From then on it asks for no per-example gradients."""
    each = torch.randn(60, 4, 3, generator=torch.Generator().manual_seed(2), dtype=D64) * torch.tensor([0.5, 1.0, 2.0])
    asked, g = [], gradients()

    def per_example():
        asked.append(len(asked))
        return each[asked[-1]]

    steps = torch.stack(
        run(bdl.SGRLD(adapt_steps=5, damping=0.2), g, temperature=0.0, extras={"per_example": per_example})
    ).diff(dim=0)
    fisher = each[:5].square().mean((0, 1))
    p = 1 / (fisher / fisher.mean() + 0.2)
    fixed = torch.stack(run(bdl.SGLD(p), g, temperature=0.0)).diff(dim=0)
    assert len(asked) == 5
    torch.testing.assert_close(steps[4:], fixed[4:])
    assert not torch.isclose(steps[:3], fixed[:3]).all(1).any()


@pytest.mark.parametrize("metric", [lambda x: x - 1.5, lambda x: torch.diag(x - 1.5), lambda x: x * math.nan])
def test_metric_that_is_not_positive_definite_is_refused(metric):
    """The parameters keep their values."""
    theta = torch.ones(2, dtype=D64, requires_grad=True)
    sampler = bdl.Sampler([theta], bdl.SGRLD(metric), num_data=7, lr=0.1)
    theta.grad = torch.ones(2, dtype=D64)
    with pytest.raises(ConfigError, match="not positive definite where the chain is"):
        sampler.step()
    assert torch.equal(theta, torch.ones(2, dtype=D64))


@pytest.mark.parametrize("chains", [None, 4])
@pytest.mark.parametrize("metric", [diagonal_metric, full_metric])
def test_noise_ratio_of_a_metric(metric, chains):
    """It is the mean of lr (G⁻¹)_ii Var(g_i) / (2 tau), for any shape of G."""
    lead = () if chains is None else (chains,)
    theta = torch.randn(*lead, 2, generator=torch.Generator().manual_seed(0), dtype=D64).requires_grad_()
    sampler = bdl.Sampler([theta], bdl.SGRLD(metric), num_data=7, lr=0.1, chains=chains)
    V = torch.tensor([0.3, 1.1], dtype=D64)
    for sign in (1, -1, 1):
        theta.grad = sign * (3 * V / 8).sqrt().expand(*lead, 2).clone()
        sampler.step()
    g, _ = metric_and_divergence(metric, theta.detach())
    inverse = 1 / g if g.ndim == theta.ndim else torch.linalg.inv(g).diagonal(dim1=-2, dim2=-1)
    torch.testing.assert_close(sampler.noise_ratio, (0.1 * inverse * V * 7 / 2).mean(-1))


def examples(H, n: int) -> torch.Tensor:
    """(n, d) gradients of n items whose covariance is H exactly."""
    d = len(H)
    columns = np.linalg.cholesky(H).T * ((n - 1) / 2) ** 0.5
    return torch.from_numpy(np.concatenate([columns, -columns, np.zeros((n - 2 * d, d))]))


@dataclass(frozen=True)
class GammaOne(bdl.Dynamics):
    """SGFS whose γ ignores batch noise: 1 instead of 1 + 1/(n tau)."""

    right: bdl.SGFS
    needs = frozenset(["per_example"])

    def init(self, theta):
        return self.right.init(theta)

    def step(self, s, g, lr, tau, z, extra):
        matrix = torch.cov(extra["per_example"].T)
        two = 2 * self.right.b / lr
        eta = (tau * two) ** 0.5 * z
        s.theta.sub_(2 * torch.linalg.solve(matrix + two * torch.eye(2, dtype=D64), (g + eta).T).T)
        return s


SCALES = np.diag([0.4, 3.0])  # a curvature of U/N that the diagonal form can equal


@pytest.mark.parametrize("form, H", [("diagonal", SCALES), ("full", SCALES), ("full", PRECISION.numpy())])
@pytest.mark.parametrize("lr", [1e-3, 0.1, 2.0])
@pytest.mark.parametrize("n, T", [(4, 1.0), (100, 1.0), (10, 0.25), (10, 4.0)])
def test_sgfs_is_right_at_any_lr(form: str, H, lr: float, n: int, T: float):
    """On a Gaussian whose curvature H is the covariance of per-example gradients, with the noise H/n of batches of n
    items, Cov(θ) = tau H⁻¹ exactly. Without the 1/(n tau) of γ it is not."""
    N, dynamics = 30, bdl.SGFS(form=form, b=0.7)
    tau, extra, d = T / N, {"per_example": examples(H, n)}, len(H)
    memory = {"mean": torch.from_numpy(H.diagonal().copy() if form == "diagonal" else H)}
    step = linear_step(dynamics, H, lr, tau, memory, extra)
    np.testing.assert_allclose(step.theta_covariance(H / n) / tau, np.linalg.inv(H), rtol=1e-9, atol=1e-9)
    wrong = linear_step(GammaOne(dynamics), H, lr, tau, {}, extra).theta_covariance(H / n) / tau
    ratio = np.trace(H @ wrong) / d
    assert abs(ratio - 1) > 1e-3 * (1 if lr < 0.01 else 5) / (n * tau)


def test_sgfs_at_small_lr_is_sgld():
    """It is SGLD with lr / b: drift and noise agree to O(lr)."""
    for form in ("diagonal", "full"):
        sgfs = linear_step(bdl.SGFS(form=form, b=2.0), SCALES, 1e-4, 0.3, {}, {"per_example": examples(SCALES, 4)})
        sgld = linear_step(bdl.SGLD(), SCALES, 5e-5, 0.3)
        np.testing.assert_allclose(sgfs.B @ sgfs.B.T, sgld.B @ sgld.B.T, rtol=2e-3)
        np.testing.assert_allclose(sgfs.M - np.eye(2), sgld.M - np.eye(2), rtol=2e-3, atol=1e-12)


@pytest.mark.parametrize("form", ["diagonal", "full"])
def test_sgfs_averages_the_fisher_matrix(form: str):
    """I is the mean over batches of their covariances, with n - 1 in the denominator. Each chain has its I and its T.
    At T = 0, γ = 1 and the step is 2 (I + 2 B/lr)⁻¹ g."""
    draw = torch.Generator().manual_seed(3)
    each = torch.randn(6, 3, 5, 2, generator=draw, dtype=D64)
    theta = torch.zeros(3, 2, dtype=D64, requires_grad=True)
    T = torch.tensor([0.0, 1.0, 2.0], dtype=D64)
    sampler = bdl.Sampler([theta], bdl.SGFS(form=form), num_data=9, lr=0.3, temperature=T, chains=3)
    for t in range(6):
        sampler.extras["per_example"] = lambda t=t: each[t]
        before, theta.grad = theta.detach().clone(), torch.ones(3, 2, dtype=D64)
        sampler.step()
    covariances = torch.stack([torch.stack([torch.cov(each[t, c].T) for t in range(6)]).mean(0) for c in range(3)])
    state = sampler.chain.state
    if form == "diagonal":
        torch.testing.assert_close(state.mean, covariances.diagonal(dim1=1, dim2=2))
        covariances = torch.diag_embed(state.mean)
    else:
        torch.testing.assert_close(state.mean, covariances)
    g = 1 + before[0] / 9
    expected = 2 * torch.linalg.solve(covariances[0] + 2 / 0.3 * torch.eye(2, dtype=D64), g)
    torch.testing.assert_close(before[0] - theta.detach()[0], expected)
    assert sampler.t_eff[1:].tolist() == T[1:].tolist()


def test_sgfs_with_a_batch_of_one_is_refused():
    theta = torch.ones(2, requires_grad=True)
    sampler = bdl.Sampler([theta], bdl.SGFS(), num_data=7, lr=0.1)
    sampler.extras["per_example"] = lambda: torch.ones(1, 2)
    theta.grad = torch.ones(2)
    with pytest.raises(ConfigError, match="batches of at least 2 items"):
        sampler.step()
    assert torch.equal(theta, torch.ones(2))


@pytest.mark.parametrize("metric", [diagonal_metric, full_metric])
def test_a_chain_alone_is_a_chain_of_a_stack(metric):
    g = gradients(20, 3)[:, :2]
    alone = torch.stack(run(bdl.SGRLD(metric), g, temperature=0.0))
    theta = torch.ones(2, 2, dtype=D64, requires_grad=True)
    with torch.no_grad():
        theta[1] = 2.0
    sampler = bdl.Sampler(
        [theta], bdl.SGRLD(metric), num_data=7, lr=0.1, temperature=0.0, prior=bdl.Uniform(), chains=2
    )
    for i in range(20):
        theta.grad = g[i].expand(2, 2).clone()
        sampler.step()
        torch.testing.assert_close(theta.detach()[0], alone[i])
