"""Tests of `bdl.tune.find`, `.trial`, `.choice`, `.batch` and `.burn_in`.

find_settings: plain settings that never diverge, the same each time, and none that were given.
"""

from dataclasses import dataclass

import pytest
import torch

import bdl
from bdl.engine.choose import choose_gradient
from bdl.engine.gradient import Autograd, InTurn
from bdl.engine.mlp_library import mlp_library
from bdl.models import MLP
from bdl.samplers.sampler import Sampler
from bdl.tune.batch import FULL, choose_batch
from bdl.tune.burn_in import choose_burn_in, movement, rest
from bdl.tune.find import describe_untuned
from bdl.tune.trial import Problem, Trial


def table(kind: str):
    """x and y of four very different tables, as a data module would hand them on, except the raw targets."""
    stream = torch.Generator().manual_seed(1)

    def normal(*shape):
        return torch.randn(*shape, generator=stream)

    if kind == "tiny":
        x = normal(40, 3)
        return x, x[:, :1].sin() + 0.1 * normal(40, 1), bdl.HeteroscedasticNLL(), 2
    if kind == "wide":
        x = normal(200, 150)
        return x, (x[:, 0] > 0).long(), bdl.CategoricalNLL(), 2
    if kind == "imbalanced":
        x = normal(3000, 8)
        return x, (x[:, 0] + x[:, 1] > 3.2).long(), bdl.CategoricalNLL(), 2
    x = normal(300, 5) * 100  # heavy inputs that nobody has standardised
    return x, normal(300, 1) * 5, bdl.HeteroscedasticNLL(), 2


@pytest.mark.skipif(mlp_library() is None, reason="needs a C compiler")
def test_a_trial_on_all_the_data_walks_in_c_to_where_single_steps_lead(monkeypatch):
    """With the same energies, to the bit, and the same states at each watch. Every 100th step is single."""
    x, y, loss, outputs = table("tiny")
    problem = Problem(bdl.ChainStack(MLP([3, 8, outputs]), 3), loss, (x, y), len(y), len(y))

    def seen() -> tuple[list[torch.Tensor], torch.Tensor, int]:
        states, single = [], []
        with monkeypatch.context() as patch:
            advance = Sampler.advance
            patch.setattr(Sampler, "advance", lambda *a, **k: single.append(1) or advance(*a, **k))
            trial = Trial(problem, bdl.MCLMC(length=1.0).adapting_in(60), bdl.Gaussian(1.0), 1e-3, "walk")
            trial.run_stably(150)
            trial.run_stably(100, lambda trial: states.append(trial.sampler.chain.theta.clone()), 7)
        assert len(trial.energies) == len(trial.losses) == 250 and len(states) == 14
        return [*states, trial.sampler.chain.theta], trial.energy_trace(), len(single)

    states, energies, single = seen()
    monkeypatch.setattr(Trial, "_walk", lambda *_: 0)
    other_states, other_energies, all_single = seen()
    assert single < 20 and all_single == 250
    assert torch.equal(energies, other_energies) and all(map(torch.equal, states, other_states))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tiny", "wide", "imbalanced", "unscaled"])
def test_a_run_with_the_settings_found_never_diverges(kind):
    x, y, loss, outputs = table(kind)
    stack = bdl.ChainStack(MLP([x.shape[1], 16, 16, outputs], activation="relu"), 3)
    found = bdl.find_settings(stack, loss, (x, y), steps=2400).settings
    problem = Problem(stack, loss, (x, y), len(y), found["batch_size"])
    trial = Trial(problem, bdl.SGHMC(found["friction"]), bdl.Gaussian(found["prior"]), found["lr"], "run")
    trial.run(600)
    late = trial.energy_trace()[:, -100:].mean()
    assert torch.isfinite(late) and late < trial.energy_trace()[:, :5].mean() * 1.5 + 500


@pytest.fixture(scope="module")
def small():
    stream = torch.Generator().manual_seed(0)
    x = torch.randn(60, 2, generator=stream)
    return bdl.ChainStack(torch.nn.Linear(2, 2), 2), bdl.HeteroscedasticNLL(), (x, x[:, :1])


class Plain(torch.nn.Module):
    """A linear layer that is no `nn.Linear`, so that its gradient comes from autograd."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(2, 2)

    def forward(self, x):
        return torch.nn.functional.linear(x, self.inner.weight, self.inner.bias)


def test_a_network_that_needs_autograd_has_settings_of_its_twin(small):
    twin = bdl.ChainStack(Plain(), 2)
    twin.load_state_dict({name.replace("net.", "net.inner."): value for name, value in small[0].state_dict().items()})
    assert [isinstance(choose_gradient(s, small[1]), Autograd | InTurn) for s in (twin, small[0])] == [True, False]
    wanted, found = (bdl.find_settings(stack, *small[1:], steps=800).settings for stack in (small[0], twin))
    assert found["lr"] == pytest.approx(wanted["lr"], rel=0.05)
    assert {**found, "lr": 0} == {**wanted, "lr": 0}


def test_the_same_seed_finds_the_same_and_leaves_the_stack_alone(small):
    before = [p.clone() for p in small[0].parameters()]
    first, second = (bdl.find_settings(*small, steps=800, seed=3) for _ in range(2))
    assert first.settings == second.settings
    assert [f.reason for f in first.choices] == [f.reason for f in second.choices]
    assert list(first.settings) == ["batch_size", "prior", "lr", "friction", "burn_in"]
    assert all(map(torch.equal, before, small[0].parameters()))


def test_what_is_given_is_not_found(small):
    given = {"lr": 1e-4, "prior": bdl.Gaussian(3.0), "batch_size": 20}
    assert list(bdl.find_settings(*small, steps=800, given=given).settings) == ["friction", "burn_in"]


@dataclass(frozen=True)
class Langevin(bdl.Dynamics):
    """A user's sampler, equal to SGLD but for the drift, which `tamed` bounds as CONTRIBUTING's example does."""

    tamed: bool = False

    def init(self, theta):
        return bdl.Position(theta)

    def step(self, s, g, lr, tau, z):
        drift = lr * g / (1 + lr * g.abs()) if self.tamed else lr * g
        return bdl.Position(s.theta - drift + (2 * lr * tau) ** 0.5 * z)


def test_a_users_sampler_is_tuned_as_its_twin_in_bdl_is(small):
    """Both make the same states but for rounding. The tamed one has the same settings to find."""
    wanted, same, tamed = (
        bdl.find_settings(*small, dynamics=dynamics, steps=800).settings
        for dynamics in (bdl.SGLD(), Langevin(), Langevin(tamed=True))
    )
    assert list(wanted) == list(same) == list(tamed) == ["batch_size", "prior", "lr", "burn_in"]
    assert same["lr"] == pytest.approx(wanted["lr"], rel=0.05)
    assert {**same, "lr": 0} == {**wanted, "lr": 0}
    assert all(describe_untuned(dynamics) is None for dynamics in (bdl.SGLD(), Langevin(), bdl.SGHMC()))


def test_what_is_not_tuned_is_said():
    assert describe_untuned(bdl.PSGLD()).startswith("tune: lr, friction and burn-in stay as they are, because PSGLD(")
    assert describe_untuned(bdl.SGLD([1.0, 2.0])) and describe_untuned(bdl.SGHMC(mass="diagonal"))


def test_a_preconditioned_sampler_gets_a_batch_and_a_prior_only(small):
    found = bdl.find_settings(*small, dynamics=bdl.PSGLD(), steps=800).settings
    assert list(found) == ["batch_size", "prior"] and found["batch_size"] == 60


@pytest.mark.parametrize("dynamics", [bdl.MCLMC(adapt_steps=100), bdl.HMC()])
def test_a_sampler_that_takes_all_items_gets_no_batch_size(dynamics):
    """Even of more items than SGHMC would take at once."""
    x = torch.randn(FULL + 100, 1, generator=torch.Generator().manual_seed(0))
    stack = bdl.ChainStack(torch.nn.Linear(1, 2), 2)
    assert list(bdl.find_settings(stack, bdl.HeteroscedasticNLL(), (x, x), None, dynamics, steps=800).settings) == [
        "prior"
    ]


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"temperature": -1.0}, "temperature of at least 0"),
        ({"dynamics": bdl.MeanField()}, "is not one"),
        ({"given": {"speed": 1}}, "'speed'"),
    ],
)
def test_wrong_arguments_are_refused(small, wrong, message):
    with pytest.raises(bdl.ConfigError, match=message):
        bdl.find_settings(*small, **wrong)


def test_few_items_make_full_batches_and_many_a_share_of_them():
    assert choose_batch(FULL, 1000).value == FULL
    assert choose_batch(10_000, 1000).value == 500
    assert choose_batch(1_000_000, 1000).value == 1024
    assert choose_batch(50_000, 10**7).value == 128


def test_rest_is_where_a_decay_has_ended():
    steps = torch.arange(1000)
    noise = torch.randn(4, 1000, generator=torch.Generator().manual_seed(0))
    assert 200 <= rest(100 * torch.exp(-steps / 50) + noise) <= 450
    assert rest(noise) <= 100
    assert rest(noise - 0.01 * steps) is None


def test_movement_is_that_of_energy_in_its_standard_deviations():
    """800 parameters: U has the standard deviation 20 T. Noise alone moves nothing."""
    noise = 20 * torch.randn(50, generator=torch.Generator().manual_seed(0))
    assert movement(noise, 1.0, 800) == 0
    falling = noise / 10 - 4 * torch.arange(50)
    assert movement(falling, 1.0, 800) == pytest.approx(100 / 20, rel=0.05)
    assert movement(falling, 0.5, 800) == pytest.approx(100 / 10, rel=0.05)
    assert movement(falling[:5], 1.0, 800) == 0


@pytest.mark.parametrize("steps, words", [(1000, "trials of 50 steps are too short to compare others"), (8000, "NLL")])
def test_a_sampler_of_all_items_compares_priors_by_its_own_steps(small, steps, words, monkeypatch):
    def refuse(*_):
        raise AssertionError("SGHMC stood in for MCLMC")

    monkeypatch.setattr(bdl.SGHMC, "init", refuse)
    stack, loss, (x, y) = small
    noisy = x, y + torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
    dynamics = bdl.MCLMC(energy_var=0.01, adapt_steps=100)
    (choice,) = bdl.find_settings(stack, loss, noisy, dynamics=dynamics, steps=steps).choices
    assert choice.name == "prior" and words in choice.reason


def test_the_burn_in_is_long_enough_for_the_prior_to_act():
    noise = torch.randn(4, 1000, generator=torch.Generator().manual_seed(0))
    choice = choose_burn_in([noise], 1, 12_000, 50_000)
    assert choice.value == 12_000 and choice.reason.endswith("the prior acts within 12,000")
    assert choose_burn_in([noise], 1, 70_000, 50_000).value == 20_000


def test_burn_in_is_the_default_share_where_a_trial_still_moves():
    noise = torch.randn(4, 1000, generator=torch.Generator().manual_seed(0))
    trend = noise - 0.01 * torch.arange(1000)
    assert choose_burn_in([noise, trend], 10, 0, 50_000).value == 20_000
    assert choose_burn_in([noise], 400, 0, 50_000).value == 8000
    assert choose_burn_in([noise], 1, 0, 50_000).value == 5000
