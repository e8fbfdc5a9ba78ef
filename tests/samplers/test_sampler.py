"""Tests of `bdl.samplers.sampler`, `.chain`, `.buffer`, `.potential`, `.idle`, `.host`, `.resume`, `.temperatures`.

The Sampler: injected noise, batch noise, resuming, errors, and parameters without a gradient.
"""

import copy
import io
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest
import resume
import torch
from forked import Forked
from oracles import advance
from repeats import slow_where
from table import LINEAR, NOISY, TABLE, Row, equip, repeats
from torch import nn

import bdl
from bdl.errors import BdlWarning, ConfigError, DivergedError

N = 20
D64 = torch.float64


def sampler_of(theta, dynamics=None, **arguments) -> bdl.Sampler:
    settings = dict(num_data=N, lr=0.1, prior=bdl.Uniform()) | arguments
    params = theta if isinstance(theta, list) else [theta]
    return equip(bdl.Sampler(params, bdl.SGHMC(friction=0.1) if dynamics is None else dynamics, **settings))


def parameter(*shape, value=1.0, dtype=D64) -> nn.Parameter:
    return nn.Parameter(torch.full(shape, value, dtype=dtype))


def step(sampler, *params, grad=0.5) -> None:
    """One step with this gradient, without a closure."""
    for p in params:
        p.grad = torch.full_like(p, grad)
    sampler.step()


def moved_by_noise(steps=3, **arguments) -> torch.Tensor:
    theta = parameter(4, value=0.0)
    sampler = sampler_of(theta, **arguments)
    for _ in range(steps):
        step(sampler, theta, grad=0.0)
    return theta.detach()


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_global_generator_is_neither_read_nor_moved(row: Row):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = parameter(2)
    step(sampler_of(first, row.build(2, D64)), first)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    second = parameter(2)
    step(sampler_of(second, row.build(2, D64)), second)
    assert torch.equal(first, second)


def test_streams_are_named_by_seed_and_stack():
    """Each (seed, stack) has one stream, which no other pair has; (0, 1) is not (1, 0)."""
    named = [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (2**32, 0), (2**33, 0), (0, 2**32), (2**32 + 1, 0)]
    ends = [moved_by_noise(seed=seed, stack=stack) for seed, stack in named]
    for i, (seed, stack) in enumerate(named):
        assert torch.equal(ends[i], moved_by_noise(seed=seed, stack=stack))
        assert all(not torch.isclose(ends[i], earlier).any() for earlier in ends[:i]), (seed, stack)


def test_noise_is_the_same_whatever_the_tensors():
    """One draw fills the contiguous buffer, so the split into tensors does not change the chain."""
    whole, parts = parameter(6, value=0.0), [parameter(2, 2, value=0.0), parameter(2, value=0.0)]
    step(sampler_of(whole), whole, grad=0.0)
    step(sampler_of(parts), *parts, grad=0.0)
    assert torch.equal(whole, torch.cat([p.flatten() for p in parts]))


def through_a_file(checkpoint: dict) -> dict:
    file = io.BytesIO()
    torch.save(checkpoint, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def assert_equal(a, b, where="") -> None:
    """Assert that two nested states are equal bit for bit; NaN equals NaN."""
    assert type(a) is type(b), where
    if isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            assert_equal(a[key], b[key], f"{where}/{key}")
    elif isinstance(a, list | tuple):
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_equal(x, y, f"{where}/{i}")
    elif isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and torch.equal(a.nan_to_num(), b.nan_to_num()), where
    else:
        assert a == b, where


RESUMED = [(row, "flat") for row in TABLE] + [
    (row, weighting)
    for row in TABLE
    for weighting in resume.WEIGHTINGS
    if weighting != "flat"
    and row.name in ("sgd", "sgld", "sgld-dense", "sghmc-0.01", "sghmc-0.1", "sgnht-0.1", "psgld")
]


def resumes_alike(row: Row, weighting: str) -> bool:
    return repeats(row) or (weighting != "flat" and row.name != "sghmc-0.1")


@pytest.mark.parametrize("row, weighting", slow_where(resumes_alike, RESUMED), ids=str)
def test_resumed_run_is_the_uninterrupted_one(row: Row, weighting: str):
    """k steps, save, load, m steps give every bit of k + m steps: parameters, momentum, psi, generator and estimates.

    The save, after 41 or 221 steps, falls between the two gradients of a pair for Var(g), and after the pilot.
    """
    k, m = resume.BEFORE[weighting], 30
    straight, first, second = (resume.Run(row.name, weighting) for _ in range(3))
    straight.go(k + 16 + m)
    first.go(k + 16)
    if weighting != "flat" and row.friction >= 0.1:  # at friction .01 the pilot is still running
        assert first.sampler.reweighting.histogram.updates > 0
    saved = through_a_file(first.checkpoint())
    assert set(saved["sampler"]) == {"state", "param_groups", "bdl"}
    second.load(saved)
    second.go(m)
    assert_equal(second.checkpoint(), straight.checkpoint())
    first.go(m)  # saving and loading have not changed the first run
    assert_equal(first.checkpoint(), straight.checkpoint())


def test_resumed_in_a_new_process(tmp_path: Path):
    run = resume.Run("sghmc-0.1", "given")
    run.go(41)
    torch.save(run.checkpoint(), tmp_path / "k.pt")
    run.go(30)
    command = [resume.__file__, "sghmc-0.1", "given", "30", str(tmp_path / "k.pt"), str(tmp_path / "end.pt")]
    process = Forked(command, tmp_path, {**os.environ, "PYTHONPATH": str(Path(__file__).parent)})  # of table.py
    assert process.communicate(timeout=120) == ("", "") and process.returncode == 0
    assert_equal(torch.load(tmp_path / "end.pt", weights_only=True), through_a_file(run.checkpoint()))


def test_momentum_is_in_torch_state_and_psi_keeps_its_type():
    """`state[p]` holds the momentum. A float32 chain keeps psi in float64 and the state of the generator in bytes."""
    theta = parameter(3, dtype=torch.float32)
    sampler = sampler_of(theta, weighting=bdl.AdaptiveWeight(low=0.0, high=5.0))
    theta.grad = torch.ones(3)
    sampler.step(lambda: torch.tensor(0.1))
    saved = through_a_file(sampler.state_dict())
    assert torch.equal(saved["state"][0]["m"], sampler.chain.state.m)
    resumed = sampler_of(parameter(3, dtype=torch.float32), weighting=bdl.AdaptiveWeight(low=0.0, high=5.0))
    resumed.load_state_dict(saved)
    assert resumed.reweighting.histogram.psi.dtype == D64
    assert torch.equal(resumed.reweighting.histogram.psi, sampler.reweighting.histogram.psi)
    assert torch.equal(resumed.chain.generator.get_state(), sampler.chain.generator.get_state())


@pytest.mark.parametrize(
    "change",
    [
        dict(num_data=21),
        dict(dynamics=bdl.SGLD()),
        dict(weighting=bdl.AdaptiveWeight(low=0.0, high=1.0)),
        dict(chains=4),
    ],
    ids=str,
)
def test_state_of_another_chain_is_refused(change):
    saved = sampler_of(parameter(4)).state_dict()
    with pytest.raises(ConfigError, match="the checkpoint was saved with"):
        sampler_of(parameter(4), **change).load_state_dict(saved)


def test_state_of_another_optimizer_is_refused():
    sgd = torch.optim.SGD([parameter(4)], lr=0.1, momentum=0.9)
    with pytest.raises(ConfigError, match="not saved by bdl.Sampler"):
        sampler_of(parameter(4)).load_state_dict(sgd.state_dict())


def test_resuming_in_another_environment_warns():
    saved = sampler_of(parameter(4)).state_dict()
    saved["bdl"]["environment"]["threads"] = 64
    with pytest.warns(BdlWarning, match="threads 64 -> 1"):
        sampler_of(parameter(4)).load_state_dict(saved)


EVEN = [r for r in LINEAR if r.diagonal == (1.0, 1.0) and not r.thermostat]


@pytest.mark.parametrize("row", slow_where(repeats, EVEN), ids=str)
def test_noise_ratio_recovers_a_known_variance(row: Row):
    """Gradients without curvature have a known variance per coordinate: the ratio is lr Var(g)/(2 a tau) within 4.5
    standard errors between chains. These are below 2%, so a missing factor 2, a or N would be seen."""
    lr, T, sd = 0.3, 0.7, torch.tensor([0.5, 1.0, 2.0], dtype=D64)
    theta, draw = parameter(128, 3, value=0.0), torch.Generator().manual_seed(0)
    sampler = sampler_of(theta, row.build(3, D64), chains=128, lr=lr, temperature=T, prior=bdl.Gaussian(1e-9))
    assert sampler.noise_ratio.isnan().all()
    for _ in range(1500):
        theta.grad = 4.0 + sd * torch.randn(128, 3, generator=draw, dtype=D64)
        sampler.step()
    expected = (lr * sd.square() / (2 * row.friction * T / N)).mean().item()
    ratio = sampler.noise_ratio
    se = ratio.std().item() / 128**0.5
    assert se < 0.02 * expected
    assert ratio.mean().item() == pytest.approx(expected, abs=4.5 * se)
    torch.testing.assert_close(sampler.t_eff, T * (1 + ratio))


def test_prior_clip_and_weight_are_not_batch_noise():
    """The gradient of the loss is constant, so the ratio is 0."""
    theta = parameter(2)
    weighting = bdl.AdaptiveWeight(low=0.0, high=20.0, rate=lambda k: 0.5)
    sampler = sampler_of(theta, prior=bdl.Gaussian(5.0), clip=bdl.ClipNorm(0.1), weighting=weighting)
    theta.grad = torch.zeros(2, dtype=D64)
    for k in range(22):
        sampler.step(lambda k=k: torch.tensor(0.04 * k, dtype=D64))
    assert sampler.noise_ratio == 0


def test_a_weight_multiplies_the_batch_noise_too():
    """Gradients ±1 in turn have an estimated variance of 4²/6. The weighting multiplies it by multiplier²."""
    theta = parameter(2)
    sampler = sampler_of(theta, weighting=bdl.AdaptiveWeight(low=0.0, high=20.0, bins=10), temperature=0.5)
    for k in range(440):
        theta.grad = torch.full_like(theta, 1 - 2 * (k % 2))
        sampler.step(lambda k=k: torch.tensor(0.04 * (k % 26), dtype=D64))
    assert sampler.multiplier > 1.01
    a, lr = sampler.dynamics.friction, sampler.param_groups[0]["lr"]
    expected = lr * 16 / 6 * sampler.multiplier**2 / (2 * a * 0.5 / N)
    torch.testing.assert_close(sampler.noise_ratio, expected)
    torch.testing.assert_close(sampler.t_eff, 0.5 * (1 + expected))


def test_kinetic_temperature():
    """It is N |m|² (2 - a) / (2 lr d) for the present momenta, and NaN without momenta."""
    theta = parameter(2, 3)
    sampler = sampler_of(theta, chains=2, lr=0.2)
    for _ in range(5):
        step(sampler, theta)
    m = sampler.state[theta]["m"]
    torch.testing.assert_close(sampler.kinetic_temperature, N * m.square().mean(1) * 1.9 / (2 * 0.2))
    assert sampler_of(parameter(2), bdl.SGLD()).kinetic_temperature.isnan()


def diverging(bad_gradient: float, bad_loss: float):
    """Two named parameters after three good steps; the fourth step is bad."""
    params = [("layer.weight", parameter(2)), ("layer.bias", parameter(3))]
    sampler = sampler_of(params, bdl.SGLD())
    for _ in range(3):
        step(sampler, *(p for _, p in params))
    before = [p.detach().clone() for _, p in params]
    params[1][1].grad[1] = bad_gradient
    return sampler, [p for _, p in params], before, lambda: sampler.step(lambda: torch.tensor(bad_loss))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["the gradient of layer.bias", "the loss"])
def test_divergence_names_step_and_tensor_and_writes_nothing(where: str, bad: float):
    sampler, params, before, advance = diverging(*((1.0, bad) if where == "the loss" else (bad, 1.0)))
    with pytest.raises(DivergedError, match=f"{where} is not finite at step 3: .*lr = 0.1"):
        advance()
    assert all(torch.equal(p, b) for p, b in zip(params, before, strict=True))
    assert sampler.steps == 3


def test_large_but_finite_is_no_divergence():
    """The sum of these gradients overflows in float32, but they do not. Clipping still uses them."""
    theta = parameter(4, dtype=torch.float32)
    sampler = sampler_of(theta, bdl.SGD(0.0), clip=bdl.ClipValue(1.0))
    step(sampler, theta, grad=3e38)
    assert torch.allclose(theta, torch.tensor(0.9))


@pytest.mark.parametrize(
    "clip, expected",
    [
        (None, [[3.1, 4.1], [0.4, 0.3]]),
        (bdl.ClipNorm(1.0), [[3.1 / math.hypot(3.1, 4.1), 4.1 / math.hypot(3.1, 4.1)], [0.4, 0.3]]),
        (bdl.ClipValue(3.5), [[3.1, 3.5], [0.4, 0.3]]),
        (bdl.ClipValue(0.35), [[0.35, 0.35], [0.35, 0.3]]),
    ],
)
def test_clipping_acts_on_the_gradient_of_U_over_N(clip, expected):
    """This gradient includes the prior, .1 here. Each chain has its own norm."""
    theta = parameter(2, 2)
    sampler = sampler_of(theta, bdl.SGD(0.0), lr=1.0, chains=2, clip=clip, prior=bdl.Gaussian(0.1 * N))
    theta.grad = torch.tensor([[3.0, 4.0], [0.3, 0.2]], dtype=D64)
    sampler.step()
    torch.testing.assert_close(1 - theta.detach(), torch.tensor(expected, dtype=D64))


@pytest.mark.filterwarnings("ignore:1 of 2 parameters")
@pytest.mark.parametrize("row", [r for r in TABLE if not r.build(2, D64).every_gradient], ids=str)
def test_parameters_without_gradient_are_left_alone(row: Row):
    """While they have none, prior and injected noise change neither value nor momentum. Frozen ones never move."""
    a, b, frozen = parameter(1), parameter(1), parameter(3).requires_grad_(False)
    sampler = sampler_of([a, frozen, b], row.build(2, D64), prior=bdl.Gaussian(2.0))
    step(sampler, a, b)
    before = {name: value.clone() for name, value in sampler.state[b].items()}
    value, b.grad = b.detach().clone(), None
    for _ in range(3):
        at = a.detach().clone()
        step(sampler, a)
        assert not torch.equal(a, at)
    assert torch.equal(b, value)
    assert_equal(dict(sampler.state[b]), before)
    step(sampler, b)
    assert not torch.equal(b, value)
    assert torch.equal(frozen, torch.ones(3, dtype=D64)) and frozen not in sampler.state


def test_a_thermostat_with_an_idle_parameter_is_refused():
    """The thermostat would take an m at rest for a cold one. Frozen parameters are outside the chain, and allowed."""
    a, b, frozen = parameter(1), parameter(1), parameter(3).requires_grad_(False)
    sampler = sampler_of([a, frozen, b], bdl.SGNHT())
    step(sampler, a, b)
    b.grad = None
    with pytest.raises(ConfigError, match="SGNHT averages over all parameters, but parameter 2 has no gradient"):
        step(sampler, a)


def test_a_step_without_any_gradient_leaves_all_alone():
    """torch.optim does the same. Lightning makes such a step when training_step returns None. The first one warns."""
    theta = parameter(3)
    sampler = sampler_of(theta)
    with pytest.warns(BdlWarning, match=r"no parameter has a gradient.* call loss.backward\(\) before step\(\)"):
        sampler.step()
    sampler.step()  # a warning would be an error here
    assert torch.equal(theta, torch.ones(3, dtype=D64))


@pytest.mark.parametrize(
    "dynamics, name",
    [(bdl.PSGLD(a=0.0), "curvature"), (bdl.SGRLD(), "per_example"), (bdl.SGFS(), "per_example")],
    ids=str,
)
def test_missing_extras_are_named(dynamics, name: str):
    """The message is one line, and the parameters keep their values."""
    theta = parameter(2)
    sampler = bdl.Sampler([theta], dynamics, num_data=N, lr=0.1)
    with pytest.raises(ConfigError, match=f"{type(dynamics).__name__} needs {name}: .*sampler.extras") as error:
        step(sampler, theta)
    assert "\n" not in str(error.value) and torch.equal(theta, torch.ones(2, dtype=D64))


@pytest.mark.parametrize("dtype", [torch.float32, D64], ids=str)
@pytest.mark.parametrize("row", NOISY, ids=str)
def test_every_part_of_the_state_keeps_its_type(row: Row, dtype):
    """All tensors keep the dtype of θ, whatever numbers the dynamics has, with lr and T as floats or per chain."""
    for lr, T in ((0.1, 0.5), (torch.full((3,), 0.1, dtype=D64), torch.linspace(0, 1, 3))):
        theta = parameter(3, 2, dtype=dtype)
        sampler = sampler_of(theta, row.build(2, dtype), chains=3, lr=lr, temperature=T)
        for _ in range(3):
            step(sampler, theta)
        assert theta.isfinite().all()
        assert all(v.dtype == dtype for v in vars(sampler.chain.state).values() if isinstance(v, torch.Tensor))


def test_num_data_has_no_default():
    with pytest.raises(TypeError, match="num_data"):
        bdl.Sampler([parameter(2)], bdl.SGLD(), lr=0.1)


@pytest.mark.parametrize("name", ["lr", "temperature", "zeta"])
@pytest.mark.parametrize("value", [-0.1, math.nan])
def test_bad_value_from_a_schedule_is_refused(name: str, value: float):
    theta = parameter(2)
    sampler = sampler_of(theta)
    step(sampler, theta)
    sampler.param_groups[0][name] = value
    with pytest.raises(ConfigError, match=f"{name} must be >= 0, got {value} at step 1"):
        step(sampler, theta)


@pytest.mark.parametrize("closure", [None, pytest.param(lambda: None)], ids=["none", "returns nothing"])
def test_step_without_a_loss(closure):
    """It works under Flat. Any other weighting refuses it, because it would silently sample another law."""
    theta = parameter(2)
    theta.grad = torch.ones(2, dtype=D64)
    assert sampler_of(theta).step(closure) is None
    assert not torch.equal(theta, torch.ones(2, dtype=D64))
    with pytest.raises(ConfigError, match="AdaptiveWeight needs the energy of every step"):
        sampler_of(theta, weighting=bdl.AdaptiveWeight(low=0.0, high=1.0)).step(closure)


@pytest.mark.parametrize("chains, shape", [(None, (1,)), (None, (4,)), (4, ()), (4, (1,)), (4, (4, 1)), (4, (3,))])
def test_closure_of_the_wrong_shape_is_refused(chains, shape):
    theta = parameter(4)
    theta.grad = torch.ones(4, dtype=D64)
    with pytest.raises(ConfigError, match="the closure must return .* shape"):
        sampler_of(theta, chains=chains).step(lambda: torch.zeros(shape))


def test_energy_is_in_nats_and_includes_the_prior():
    theta = parameter(2)
    theta.grad = torch.ones(2, dtype=D64)
    sampler = sampler_of(theta, prior=bdl.Gaussian(3.0))
    assert sampler.step(lambda: torch.tensor(0.5)) == 0.5
    assert sampler.energy.item() == pytest.approx(N * 0.5 + 3.0 * 2 / 2)
    assert sampler.multiplier == 1 and sampler.log_weight == 0


@pytest.mark.parametrize("dynamics, T", [(bdl.SGLD(), 0.0), (bdl.SGD(0.9), 1.0)], ids=str)
def test_identical_chains_without_noise_are_refused(dynamics, T):
    theta = parameter(3, 2)
    with pytest.raises(ConfigError, match="3 identical chains"):
        step(sampler_of(theta, dynamics, temperature=T, chains=3), theta)


def test_chains_that_something_separates_are_fine():
    """Injected noise, different starts or different batches separate chains."""
    theta = parameter(3, 2)
    step(sampler_of(theta, chains=3), theta)
    assert len(theta[:, 0].unique()) == 3
    for start, grad in ((torch.arange(3.0), torch.ones(3)), (torch.ones(3), torch.arange(3.0))):
        theta = nn.Parameter(start.unsqueeze(1))
        theta.grad = grad.unsqueeze(1)
        sampler_of(theta, temperature=0.0, chains=3).step()
    one = parameter(1, 2)
    step(sampler_of(one, temperature=0.0, chains=1), one)


@pytest.mark.parametrize("row", slow_where(repeats, TABLE), ids=str)
def test_double_continues_the_chain(row: Row):
    """After `net.double()` at T = 0 the next step is that of a float64 chain with the same values and momenta."""
    net = nn.Linear(1, 1)
    sampler = sampler_of(
        list(net.parameters()), row.build(2, torch.float32), temperature=0.0, prior=bdl.Gaussian([1.0, 2.0])
    )
    for _ in range(3):
        step(sampler, *net.parameters())
    state = copy.deepcopy(sampler.chain.state)
    state = replace(state, **{k: v.double() for k, v in vars(state).items() if isinstance(v, torch.Tensor)})
    net.double()
    step(sampler, *net.parameters())
    g = 0.5 + torch.tensor([1.0, 2.0], dtype=D64) / N * state.theta
    extra = {name: f() for name, f in sampler.extras.items()} | {"grad_var": sampler.batch_noise.variance}
    dynamics = row.build(2, D64)
    z = torch.zeros(dynamics.noise_numbers(2), dtype=D64)
    expected = advance(dynamics, state, g, 0.1, 0.0, z, extra).theta
    assert net.weight.dtype == D64
    torch.testing.assert_close(torch.cat([p.detach().flatten() for p in net.parameters()]), expected)


def test_replaced_data_is_followed():
    """After `p.data = ...` the chain continues from the new values, in one contiguous buffer again."""
    a, b = parameter(2), parameter(3)
    sampler = sampler_of([a, b], bdl.SGD(0.0))
    step(sampler, a, b)
    a.data = torch.full((2,), 7.0, dtype=D64)
    step(sampler, a, b, grad=1.0)
    torch.testing.assert_close(a.detach(), torch.full((2,), 6.9, dtype=D64))
    torch.testing.assert_close(b.detach(), torch.full((3,), 0.85, dtype=D64))
    assert a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def test_changed_shape_is_refused():
    theta = parameter(2)
    sampler = sampler_of(theta)
    theta.data = torch.ones(3, dtype=D64)
    with pytest.raises(ConfigError, match="changed its shape"):
        step(sampler, theta)


def test_channels_last_keeps_its_strides():
    p = nn.Parameter(torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last))
    before = p.detach().clone()
    sampler = sampler_of(p, bdl.SGD(0.0), lr=1.0)
    assert torch.equal(p, before) and p.is_contiguous(memory_format=torch.channels_last)
    p.grad = torch.arange(24.0).reshape(1, 2, 3, 4)
    sampler.step()
    assert not p.any()


def test_explain_says_what_is_sampled():
    theta = parameter(2)
    sampler = sampler_of(
        theta, num_data=12345, temperature=0.25, prior=bdl.Gaussian(3.0), clip=bdl.ClipNorm(7.0), lr=0.2
    )
    sampler.notes.append("gradient_clip_val = 9")
    text = sampler.explain()
    scale = math.sqrt(2 * 0.1 * 0.2 * 0.25 / 12345)
    for part in ("12,345", "T = 0.25", "precision 3", "ClipNorm(c=7.0)", "not measured yet", f"{scale:.3g}", "= 9"):
        assert part in text
    for sign in (1, -1, 1):
        step(sampler, theta, grad=sign * 0.01)
    assert f"noise_ratio {sampler.noise_ratio.item():.3g}" in sampler.explain()


def test_explain_names_the_law():
    def law(**arguments):
        return sampler_of(parameter(2), **arguments).explain()

    assert "the Bayes posterior" in law(temperature=1.0) and "the Bayes posterior" not in law(temperature=0.9)
    assert "optimisation" in law(temperature=0.0) and "optimisation" in law(dynamics=bdl.SGD())
    assert "psi(U)^2.5 by AdaptiveWeight on ema" in law(weighting=bdl.AdaptiveWeight(zeta=2.5, energy="ema"))
