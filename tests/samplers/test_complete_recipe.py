"""Tests of `bdl.contrib.recipe.recipe`, `.blocks`, `.grid`, `.matrices` and `.checks`.

A recipe takes the steps of bdl's own dynamics where these are its Euler steps, and has the law of its H where it is no
sampler that has a name. Γ is compared with central differences. Negative controls leave Γ out, or take a Q that is not
skew, past the check that refuses it.
"""

import copy

import numpy as np
import pytest
import torch
from oracles import COVARIANCE, PRECISION, advance, linear_step, second_order_law, state_of
from repeats import slow_where
from table import diagonal_metric, full_metric
from test_laws import WELL, PlainThermostat, quadrature_statistics, well_statistics

import bdl
from bdl.contrib.recipe.blocks import MatrixBlock, StateVariable, dense
from bdl.contrib.recipe.grid import blocks_of
from bdl.errors import ConfigError

D64 = torch.float64
P = torch.tensor([[2.0, 0.3, 0.1], [0.3, 1.0, -0.2], [0.1, -0.2, 0.5]], dtype=D64)
SKEW = torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=D64)


def momentum(friction=0.5, **options) -> bdl.Recipe:
    """SGHMC with lr h² and friction h C, where C = `friction` and h is the lr of the recipe."""
    return bdl.Recipe(D=[[0, 0], [0, friction]], Q=[[0, -1], [1, 0]], vectors=["m"], **options)


def thermostat(friction=0.5) -> bdl.Recipe:
    """Ding et al. (2014) in the recipe of Ma et al. (2015, section 3): xi is the friction less C."""
    D = [[0, 0, 0], [0, friction, 0], [0, 0, 0]]
    Q = [[0, -1, 0], [1, 0, lambda z: z.m / len(z.m)], [0, lambda z: -z.m / len(z.m), 0]]
    return bdl.Recipe(D, Q, vectors=["m"], scalars={"xi": 0.0})


def walk(dynamics, lr: float, temperature: float, chains=None, d=3, steps=130) -> torch.Tensor:
    """(steps, ..., d) the path on a force of size 1 with the noise of a batch."""
    lead = () if chains is None else (chains,)
    theta = torch.linspace(-1, 1, d * (chains or 1), dtype=D64).reshape(*lead, d).clone().requires_grad_()
    settings = dict(num_data=7, lr=lr, temperature=temperature, chains=chains, seed=3)
    sampler, path = bdl.Sampler([theta], dynamics, **settings), []
    for step in range(steps):
        theta.grad = torch.sin(theta.detach()) * (1 + 0.3 * (-1) ** step)
        sampler.step()
        path.append(theta.detach().clone())
    return torch.stack(path)


H = 0.2  # lr of the recipes of second order: that of SGHMC is H², and the friction H times C
SAME = {
    "SGLD": (bdl.Recipe(1.0), 0.1, bdl.SGLD(), 0.1),
    "SGLD, diagonal": (bdl.Recipe(P.diagonal()), 0.1, bdl.SGLD(P.diagonal()), 0.1),
    "SGLD, dense": (bdl.Recipe(P.tolist()), 0.1, bdl.SGLD(P), 0.1),
    "SGLD less batch noise": (bdl.Recipe(P.diagonal(), grad_var=0.3), 0.1, bdl.SGLD(P.diagonal(), grad_var=0.3), 0.1),
    "SGRLD": (bdl.Recipe(lambda z: 1 / diagonal_metric(z.theta)), 0.1, bdl.SGRLD(diagonal_metric), 0.1),
    "SGHMC": (momentum(), H, bdl.SGHMC(friction=0.1), H**2),
    "SGHMC with masses": (
        bdl.Recipe([[0, 0], [0, 1.0]], [[0, -1], [1, 0]], lambda z: z.m.square().sum() / 4, ["m"]), H,
        bdl.SGHMC(friction=0.1), H**2 / 2,
    ),
    "SGHMC less batch noise": (momentum(grad_var="estimated"), H, bdl.SGHMC(friction=0.1, grad_var="estimated"), H**2),
    "SGNHT": (thermostat(), H, PlainThermostat(0.1), H**2),
}  # fmt: skip


@pytest.mark.parametrize(
    "chains, temperature",
    slow_where(lambda *case: case != (4, 2.0), [(None, 0.0), (None, 2.0), (4, 0.0), (4, 2.0)]),
)
@pytest.mark.parametrize("name", SAME)
def test_a_recipe_takes_the_steps_of_dynamics_written_by_hand(name: str, chains, temperature: float):
    """To rounding, after 130 steps through the Sampler, with one stream of noise. Power: 1e-10 of lr."""
    ours, lr, theirs, theirs_lr = SAME[name]
    expected = walk(theirs, theirs_lr, temperature, chains)
    torch.testing.assert_close(walk(ours, lr, temperature, chains), expected, rtol=1e-11, atol=1e-11)
    off = walk(ours, lr * (1 + 1e-8), temperature, chains, steps=10)
    assert not torch.allclose(off, expected[:10], rtol=1e-11, atol=1e-11)


def test_a_dense_riemannian_recipe_has_drift_and_noise_of_sgrld():
    """Γ at tau = 2 among it. They take different roots of G⁻¹, so that the covariance of the noise is compared."""
    theta, g = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0), dtype=D64)
    ours, theirs = bdl.Recipe(lambda z: torch.linalg.inv(full_metric(z.theta))), bdl.SGRLD(full_metric)

    def moved(dynamics, z):
        return advance(dynamics, state_of(dynamics, [theta], {}), g, 0.1, 2.0, z).theta

    zero, units = torch.zeros(5, 3, dtype=D64), torch.eye(3, dtype=D64)
    torch.testing.assert_close(moved(ours, zero), moved(theirs, zero))
    roots = [torch.stack([moved(x, e.expand(5, 3)) - moved(x, zero) for e in units], 2) for x in (ours, theirs)]
    torch.testing.assert_close(roots[0] @ roots[0].mT, roots[1] @ roots[1].mT)


def test_readings_are_those_of_sghmc():
    """noise_ratio, T_eff, and the temperature of momenta, which has no factor 1 - a/2 here."""
    samplers = []
    for dynamics, lr in ((momentum(), H), (bdl.SGHMC(friction=0.1), H**2)):
        theta = torch.ones(3, dtype=D64, requires_grad=True)
        samplers.append(bdl.Sampler([theta], dynamics, num_data=7, lr=lr, seed=1))
        for sign in (1, -1, 1):
            theta.grad = sign * torch.tensor([0.3, 0.5, 0.8], dtype=D64)
            samplers[-1].step()
    ours, theirs = samplers
    torch.testing.assert_close(ours.noise_ratio, theirs.noise_ratio)
    torch.testing.assert_close(ours.t_eff, theirs.t_eff)
    torch.testing.assert_close(ours.kinetic_temperature * 0.95, theirs.kinetic_temperature)
    dense = bdl.Sampler([torch.ones(3, dtype=D64, requires_grad=True)], bdl.Recipe(P), num_data=7, lr=0.1)
    v = torch.tensor([0.1, 0.4, 0.2], dtype=D64)
    expected = bdl.SGLD(P).noise_ratio(dense.chain.state, v, 0.1, 0.5)
    torch.testing.assert_close(dense.dynamics.noise_ratio(dense.chain.state, v, 0.1, 0.5), expected)


FIELDS = {"theta": True, "m": True, "xi": False, "eta": False}
BLOCKS = {
    "number": ("theta", "m", lambda z: z.theta.square().sum() + (z.m * z.theta).sum() * z.xi),
    "elementwise": ("theta", "m", lambda z: z.theta * z.m + z.theta.sin() * z.xi),
    "mixing": ("theta", "m", lambda z: z.theta.flip(0) * z.m + z.theta.sum() * z.m.roll(1)),
    "dense": ("m", "theta", lambda z: torch.outer(z.theta.sin(), z.m) + z.theta.prod() * z.m.diag()),
    "own number": ("theta", "theta", lambda z: 1 + z.theta.square().sum()),
    "own elementwise": ("m", "m", lambda z: z.m.cos() + z.theta),
    "own mixing": ("theta", "theta", lambda z: 1 / diagonal_metric(z.theta)),
    "own dense": ("theta", "theta", lambda z: full_metric(z.theta)),
    "column": ("theta", "xi", lambda z: z.theta * z.xi.exp()),
    "mixing column": ("m", "xi", lambda z: z.m.flip(0) ** 2 * z.m * z.xi),
    "row": ("xi", "m", lambda z: z.m.sin() * z.xi),
    "scalars": ("xi", "eta", lambda z: z.xi * z.eta**2 + z.m.sum() * z.eta),
    "own branches": ("theta", "theta", lambda z: torch.where(z.theta > 0, 1 + z.theta**2, 1.0)),
    "own scalar": ("xi", "xi", lambda z: 1 + z.xi**2),
}


def only_block(given, row="theta", column="theta") -> MatrixBlock:
    """The block of Q of two variables, or of D of one."""
    variables = [StateVariable(v, FIELDS[v]) for v in dict.fromkeys([row, column])]
    one = row == column
    return next(blocks_of(given if one else [[0, given], [None, 0]], "D" if one else "Q", variables))


@pytest.mark.parametrize("chains", [1, 4])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("name", BLOCKS)
def test_gamma_is_the_divergence(name: str, transposed: bool, chains: int):
    """Σ_j ∂B_ij/∂z_j of every kind of block, and of its mirror image, agrees with central differences to 1e-7."""
    row, column, given = BLOCKS[name]
    block = only_block(given, row, column)
    block = block.transposed() if transposed else block
    draw, d, h = torch.Generator().manual_seed(2), 3, 1e-5
    now = {v: torch.randn((chains, *[d] * vector), generator=draw, dtype=D64) for v, vector in FIELDS.items()}
    along = block.column.name
    like = torch.zeros(chains, *(d if v.vector else 1 for v in (block.row, block.column)), dtype=D64)
    expected = like[..., 0].clone()
    for j in range(like.shape[-1]):
        e = torch.eye(d, dtype=D64)[j] if FIELDS[along] else 1.0
        up, down = (dense(block.at(now | {along: now[along] + s * h * e}), like) for s in (1, -1))
        expected += (up - down)[..., j] / (2 * h)
    value, gamma = block.at_with_divergence(now)
    assert gamma is not None
    torch.testing.assert_close(gamma, expected, rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(value, block.at(now))


def test_a_block_below_the_diagonal_follows_by_symmetry():
    """The mirror image is the transpose in D, and minus the transpose in Q, for constants and for functions."""
    given = torch.arange(9.0, dtype=D64).view(3, 3)
    now = {"theta": torch.zeros(1, 3, dtype=D64), "m": torch.zeros(1, 3, dtype=D64)}
    variables = [StateVariable("theta", True), StateVariable("m", True)]
    for what, sign in (("D", 1), ("Q", -1)):
        for written in (given, lambda z: given):
            upper, lower = blocks_of([[0, written], [None, 0]], what, variables)
            torch.testing.assert_close(lower.at(now), sign * upper.at(now).mT)


def test_coordinates_that_mix_are_found_without_a_derivative():
    """At 0 the derivative of 1 + θ_{i+1}² is 0. Γ is right once the chain has moved, and an elementwise function of
    many coordinates takes one pass."""
    block = only_block(lambda z: 1 + z.theta * z.theta.roll(1).square())
    block.at_with_divergence({"theta": torch.zeros(1, 5, dtype=D64)})
    theta = torch.arange(5.0, dtype=D64)[None]
    _, gamma = block.at_with_divergence({"theta": theta})
    torch.testing.assert_close(gamma, theta.roll(1, 1).square())
    many = torch.linspace(-1, 1, 5000)[None]
    calls = []
    block = only_block(lambda z: [calls.append(1), 1 + z.theta**2][1])
    torch.testing.assert_close(block.at_with_divergence({"theta": many})[1], 2 * many)
    calls.clear()
    block.at_with_divergence({"theta": many})
    assert len(calls) == 1


@pytest.mark.parametrize(
    "given, message",
    [
        (lambda z: 1 + z.theta.roll(1) ** 2, "mixes coordinates, so its Γ takes a pass for each of 5,000"),
        (lambda z: z.theta.sum() + torch.zeros(1).expand(5000, 5000), "mixes coordinates, so its Γ takes a pass"),
        (lambda z: 1 + z.theta.detach() ** 2, "depends on theta, but passes no derivative on"),
    ],
)
def test_gamma_that_cannot_be_found_is_refused(given, message: str):
    block = only_block(given)
    with pytest.raises(ConfigError, match=message):
        block.at_with_divergence({"theta": torch.linspace(-1, 1, 5000)[None]})


def covariance_error(dynamics, lr: float, tau: float = 0.7, V=None) -> np.ndarray:
    return linear_step(dynamics, PRECISION, lr, tau).theta_covariance(V) / tau - COVARIANCE.numpy()


JOINT = [[1.0, 0.5], [0.5, 1.0]]
LINEAR = {  # with the power of lr to which the error of Cov(θ) falls
    "momentum": (momentum(1.0), 2),
    "momentum of other masses": (
        bdl.Recipe([[0, 0], [0, 1.0]], [[0, -1], [1, 0]], lambda z: (z.m**2).sum() / 3, ["m"]), 2,
    ),
    "irreversible": (bdl.Recipe(torch.eye(2), 0.8 * SKEW), 1),
    "noise in both": (bdl.Recipe([[0.5, 0], [0, 1.0]], [[0, -1], [1, 0]], vectors=["m"]), 1),
    "noise that they share": (bdl.Recipe(JOINT, [[0, -1], [1, 0]], vectors=["m"]), 1),
    "a matrix between them": (
        bdl.Recipe([[0, 0], [0, [1.0, 2.0]]], [[0, [[-1.0, 0.3], [0.2, -0.5]]], [None, 0]], vectors=["m"]), 2,
    ),
}  # fmt: skip


def hot(dynamics):
    """The dynamics with its injected noise times 1.01: the negative control."""

    class Hot(type(dynamics)):
        def step(self, s, g, lr, tau, z, extra=None):
            return super().step(s, g, lr, tau, 1.01 * z, extra)

    wrong = copy.copy(dynamics)
    object.__setattr__(wrong, "__class__", Hot)
    return wrong


@pytest.mark.parametrize("name", LINEAR)
def test_covariance_is_right_as_lr_falls(name: str):
    """By Lyapunov's equation. Power: +2% of variance leaves an error that does not fall with lr."""
    dynamics, order = LINEAR[name]
    error, halved = (np.linalg.norm(covariance_error(dynamics, lr)) for lr in (2e-3, 1e-3))
    assert error / halved == pytest.approx(2**order, rel=0.05)
    assert error < 2e-2
    error, halved = (np.linalg.norm(covariance_error(hot(dynamics), lr)) for lr in (2e-3, 1e-3))
    assert error / halved < 2**order * 0.9 and halved > 0.015


@pytest.fixture
def unchecked(monkeypatch):
    monkeypatch.setattr("bdl.contrib.recipe.checks.check_block", lambda *_: None)


def test_a_q_that_is_not_skew_has_another_law(unchecked):
    """Negative control: with a symmetric Q the covariance stays wrong as lr falls."""
    dynamics = bdl.Recipe(torch.eye(2), 0.3 * SKEW.abs())
    assert np.linalg.norm(covariance_error(dynamics, 1e-3)) > 0.1
    one_sided = bdl.Recipe([[0.5, 0], [0, 1.0]], [[0, -1], [-1, 0]], vectors=["m"])
    assert not np.linalg.norm(covariance_error(one_sided, 1e-3)) < 0.1


@pytest.fixture
def without_gamma(monkeypatch):
    exact = MatrixBlock.at_with_divergence
    monkeypatch.setattr(MatrixBlock, "at_with_divergence", lambda self, now: (exact(self, now)[0], None))


def speed(z):
    return 1 + 0.5 * torch.sin(2 * z.theta)


WELLS = {
    "Riemannian momentum": bdl.Recipe(
        [[0, 0], [0, 1.5]], [[0, lambda z: -speed(z)], [None, 0]], vectors=["m"]
    ),
    "friction that depends on both": bdl.Recipe(
        [[0, 0], [0, lambda z: 1 + z.theta**2 / 2 + z.m.sin() / 2]], [[0, -1], [1, 0]], vectors=["m"]
    ),
    "relativistic": bdl.Recipe(
        [[0, 0], [0, 1.5]], [[0, -1], [1, 0]], lambda z: 2 * (1 + z.m.square()).sqrt().sum(), ["m"]
    ),
}  # fmt: skip


def well_error(dynamics, lr: float) -> float:
    """Error of the mean energy in a double well at T = 1, N = 1."""
    law = second_order_law(dynamics, WELL.grad, np.linspace(-2.6, 2.6, 105), lr, 1.0, scale=1.0)
    return float((law.mean(well_statistics(law.theta[:, 0])) - quadrature_statistics())[-1])


@pytest.mark.parametrize("name", slow_where(lambda name: name == "relativistic", [(name,) for name in WELLS]))
def test_law_in_a_double_well(name: str):
    """The error of the mean energy vanishes as lr to its order: extrapolated to lr = 0, a twentieth is left.

    With constant D and Q the term of first order is odd in m, as that of symplectic Euler, and its mean is 0.
    """
    error, halved = well_error(WELLS[name], 0.1), well_error(WELLS[name], 0.05)
    growth = 4 if name == "relativistic" else 2  # of the error with twice the lr
    assert abs(growth * halved - error) / (growth - 1) < 4e-3


@pytest.mark.parametrize(
    "name", slow_where(lambda name: name != "Riemannian momentum", [(n,) for n in list(WELLS)[:2]])
)
def test_law_in_a_double_well_without_gamma_is_seen(name: str, without_gamma):
    error, halved = well_error(WELLS[name], 0.1), well_error(WELLS[name], 0.05)
    assert abs(2 * halved - error) > 2e-2


@pytest.mark.parametrize("how", ["given", "estimated"])
def test_known_batch_noise_is_subtracted_exactly(how: str):
    """At any lr the covariance is that without batch noise; without the subtraction it is 45% hotter."""
    for lr, friction in ((0.05, 1.0), (0.2, 2.0)):
        V = np.diag([0.3, 0.6]) * 2 * friction * 0.7 / lr
        known = torch.from_numpy(np.diag(V).copy())
        dynamics = momentum(friction, grad_var=known if how == "given" else how)
        extra = {} if how == "given" else {"grad_var": known}
        exact = linear_step(momentum(friction), PRECISION, lr, 0.7).theta_covariance()
        got = linear_step(dynamics, PRECISION, lr, 0.7, extra=extra).theta_covariance(V)
        np.testing.assert_allclose(got, exact, rtol=1e-8)
        plain = linear_step(momentum(friction), PRECISION, lr, 0.7).theta_covariance(V)
        assert np.trace(PRECISION.numpy() @ (plain - exact)) / 2 / 0.7 == pytest.approx(0.45, rel=0.4)


def lines(**arguments):
    return lambda: bdl.Recipe(**arguments)


M = dict(vectors=["m"])
REFUSED = [
    (lines(D=-1.0), r"D\[theta, theta\] is not positive semidefinite: give numbers >= 0"),
    (lines(D=[1.0, -2.0]), r"D\[theta, theta\] is not positive semidefinite"),
    (lines(D=[[1.0, 2.0], [2.0, 1.0]]), r"D\[theta, theta\] is not positive semidefinite where the chain is"),
    (lines(D=[[1.0, 0.5], [0.0, 1.0]]), r"D\[theta, theta\] is not symmetric"),
    (lines(D=[[1.0, 2.0], [2.0, 1.0]], Q=[[0, -1], [1, 0]], **M), "D is not positive semidefinite"),
    (lines(D=0), "D is zero, so no noise"),
    (lines(D="one"), r"D\[theta, theta\] must be finite numbers or a function of the state, got 'one'"),
    (lines(D=float("nan")), "must be finite numbers"),
    (lines(D=1.0, Q=0.5), r"Q\[theta, theta\] is not skew-symmetric: give a matrix A - A', or 0"),
    (lines(D=1.0, Q=[[0.0, 1.0], [1.0, 0.0]]), r"Q\[theta, theta\] is not skew-symmetric"),
    (lines(D=[[0, 0], [0, 1]], Q=[[0, -1], [-1, 0]], **M), r"Q\[m, theta\] is not minus the transpose of Q\[theta"),
    (lines(D=[[0, 0], [0, 1]], Q=[[0, -1], [0, 0]], **M), r"Q\[m, theta\] is not minus the transpose"),
    (lines(D=[[0, 0], [0, 1]], **M), "theta never moves: give it a block in D, or one in Q"),
    (lines(D=1.0, Q=[[0, -1], [1, 0]], **M), "D must be 2 rows of 2 blocks, in the order theta, m, got 1.0"),
    (lines(D=[[0, 0], [0, 1]], Q=[[0, -1, 0], [1, 0, 0]], **M), "Q must be 2 rows of 2 blocks"),
    (lines(D=1.0, vectors="m"), "vectors and scalars must be lists of different names"),
    (lines(D=1.0, vectors=["steps"]), "other than theta and steps"),
    (lines(D=[[0, 0], [0, [[1.0]]]], Q=[[0, [1.0, 2.0]], [None, 0]], **M), r"D\[m, m\] must have the shape"),
    (lines(D=P, grad_var=0.1), "grad_var needs batch noise to pass through diagonals"),
    (lines(D=[[1, 0], [0, 1]], Q=[[0, -1], [1, 0]], grad_var=0.1, **M), "it reaches m, theta: leave grad_var None"),
    (lines(D=1.0, grad_var=-1.0), "grad_var must be"),
]  # fmt: skip


@pytest.mark.parametrize("build, message", REFUSED)
def test_bad_constants_are_refused_at_once(build, message: str):
    with pytest.raises(ConfigError, match=message) as error:
        build()
    assert "\n" not in str(error.value)


AT_ONCE = [
    (lines(D=lambda z: z.theta - 2), r"D\[theta, theta\] is not positive semidefinite"),
    (lines(D=lambda z: z.theta.sum() * 0 - 1), r"D\[theta, theta\] is not positive semidefinite"),
    (lines(D=lambda z: z.theta.diag() - 2 * torch.eye(2)), "is not positive semidefinite where the chain is"),
    (lines(D=lambda z: SKEW + torch.eye(2)), r"D\[theta, theta\] is not symmetric"),
    (lines(D=lambda z: z.theta[:1]), r"D\[theta, theta\] must have the shape \(\), \(2,\) or \(2, 2\), got \(1,\)"),
    (lines(D=1.0, Q=lambda z: z.theta), r"Q\[theta, theta\] is not skew-symmetric"),
    (lines(D=1.0, Q=lambda z: torch.outer(z.theta, z.theta)), r"Q\[theta, theta\] is not skew-symmetric"),
    (lines(D=lambda z: z.theta * z.r), "reads z.r, but is given theta only"),
    (
        lines(D=[[0, 0], [0, 1]], Q=[[0, lambda z: z.theta], [lambda z: z.theta, 0]], **M),
        r"Q\[m, theta\] is not minus the transpose of Q\[theta, m\]",
    ),
    (
        lines(D=[[0, 0], [0, 1]], Q=[[0, -1], [1, 0]], H=lambda z: (z.m * z.theta).sum(), **M),
        "reads z.theta, but is given m only",
    ),
    (
        lines(D=[[0, 0], [0, 1]], Q=[[0, lambda z: full_metric(z.theta)], [None, 0]], grad_var=0.1, **M),
        "grad_var needs batch noise to pass through diagonals",
    ),
    (lines(D=[1.0, 2.0, 3.0]), r"D\[theta, theta\] must have the shape \(\), \(2,\) or \(2, 2\), got \(3,\)"),
]


@pytest.mark.parametrize("build, message", AT_ONCE)
def test_bad_functions_are_refused_at_the_first_step(build, message: str):
    """Before θ has moved."""
    theta = torch.ones(2, dtype=D64, requires_grad=True)
    with pytest.raises(ConfigError, match=message) as error:
        sampler = bdl.Sampler([theta], build(), num_data=7, lr=0.1)
        theta.grad = torch.ones(2, dtype=D64)
        sampler.step()
    assert "\n" not in str(error.value) and torch.equal(theta, torch.ones(2, dtype=D64))


def test_a_function_that_turns_bad_is_refused_at_the_next_check():
    """Q is skew until θ has left 1, and the check at step 100 sees it. A D below 0 is a divergence in the next step."""
    theta = torch.ones(2, dtype=D64, requires_grad=True)
    dynamics = bdl.Recipe(0.1, lambda z: 1e-3 * SKEW + (z.theta.sum() - 2).clamp_max(0) * torch.eye(2))
    sampler = bdl.Sampler([theta], dynamics, num_data=7, lr=0.1, temperature=0.0, prior=bdl.Uniform())

    def step():
        theta.grad = torch.full((2,), 1.0, dtype=D64)
        sampler.step()

    for _ in range(100):
        step()
    with pytest.raises(ConfigError, match="not skew-symmetric"):
        step()
    theta = torch.ones(2, dtype=D64, requires_grad=True)
    sampler = bdl.Sampler([theta], bdl.Recipe(lambda z: z.theta - 0.999), num_data=7, lr=100.0)
    with pytest.raises(bdl.DivergedError):
        for _ in range(9):
            theta.grad = theta.detach().clone()
            sampler.step(lambda: theta.detach().sum())


def test_a_recipe_says_what_it_is():
    theta = torch.ones(2, requires_grad=True)
    sampler = bdl.Sampler([theta], thermostat(), num_data=7, lr=0.1)
    text = sampler.explain()
    assert "Recipe(D[m, m], Q[theta, m], Q[m, xi]; state theta, m, xi) on 2 parameters" in text
    assert f"std {(2 * 0.1 / 7 * 0.5) ** 0.5:.3g} in m" in text
    assert (
        "caveat: it samples the target distribution as lr -> 0: the Euler step has an error of first order in lr"
        in text
    )


def test_replicas_swap_positions_alone():
    """The other variables are independent of θ in the law, and keep the temperature of their chain."""
    assert momentum().travels == ("theta",)


def test_a_function_that_branches_is_refused_once_it_shows():
    """Where θ > 0.5 the diagonal reads a neighbour: the first step cannot see it, the check at step 100 does."""
    theta = torch.zeros(2, 3, dtype=D64, requires_grad=True)
    dynamics = bdl.Recipe(lambda z: torch.where(z.theta > 0.5, 1 + z.theta.roll(1) ** 2, 1.0))
    sampler = bdl.Sampler([theta], dynamics, num_data=7, lr=0.1, temperature=0.0, chains=2, prior=bdl.Uniform())
    with pytest.raises(ConfigError, match="depends on theta in some places only"):
        for _ in range(101):
            theta.grad = torch.full((2, 3), -0.1, dtype=D64)
            theta.grad[1] *= 1.1
            sampler.step()
    assert sampler.steps == 100
