"""Tests of `bdl.samplers.combinations`, `.divergence` and `.settings`.

What a Sampler refuses or says because it would be silently wrong.
"""

import copy
import pickle
import warnings

import numpy as np
import pytest
import torch
from closures import closure_of
from torch import nn

import bdl
from bdl.errors import BdlWarning, ConfigError
from bdl.samplers.divergence import CHECK_EVERY, FAR, PATIENCE, RISE, EnergyWatch

N = 100


def sampler_of(net: nn.Module, **settings) -> bdl.Sampler:
    return bdl.Sampler(net.named_parameters(), bdl.SGLD(), num_data=N, lr=0.1, **settings)


def step(net: nn.Module, sampler: bdl.Sampler) -> None:
    sampler.step(closure_of(sampler, lambda: net(torch.ones(4, 2)).square().mean()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_refused_at_the_start_and_later(dtype):
    with pytest.raises(ConfigError, match=f"must be float32 or float64, got {dtype}: call .float\\(\\) on the network"):
        sampler_of(nn.Linear(2, 1).to(dtype))
    net = nn.Linear(2, 1)
    sampler = sampler_of(net)
    net.to(dtype)
    with pytest.raises(ConfigError, match="must be float32 or float64"):
        sampler.step()


def test_a_replaced_layer_is_spoken_of_once():
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    sampler = sampler_of(net)
    net[1] = nn.Linear(2, 1)
    with pytest.warns(BdlWarning, match="2 of 4 parameters, 1.weight the first, have no gradient at step 0") as said:
        for _ in range(2):
            step(net, sampler)
    assert len(said) == 1


def test_a_parameter_that_was_unfrozen_is_refused():
    net = nn.Linear(2, 1)
    net.bias.requires_grad_(False)
    sampler = sampler_of(net)
    step(net, sampler)
    net.bias.requires_grad_(True)
    with pytest.raises(ConfigError, match="bias was frozen when the Sampler was built and requires a gradient now"):
        step(net, sampler)
    net.bias.requires_grad_(False)
    step(net, sampler)


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_sampler_cannot_be_copied(make):
    with pytest.raises(ConfigError, match="cannot be copied or pickled.*load state_dict"):
        make(sampler_of(nn.Linear(2, 1)))


def reads(watch: EnergyWatch, *losses: float | list[float]) -> list[str]:
    """The warnings of a watch that reads these losses, CHECK_EVERY steps apart."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for i, loss in enumerate(losses):
            watch.see(i * CHECK_EVERY, torch.tensor(loss), lr=20.0)
    return [str(w.message) for w in caught]


def test_a_loss_far_above_its_start_is_spoken_of_once():
    high = FAR + RISE * 2.0 + 1
    (words,) = reads(EnergyWatch(N), [1.0, 2.0], *[[2.0, high]] * (2 * PATIENCE))
    assert words.startswith("chain 1 has diverged: its loss is 41 nats per item at step 300 and was at most 2 at")
    assert "lr = 20.0 is too large" in words


@pytest.mark.parametrize(
    ("num_data", "losses"),
    [
        (N, [2.0] + 5 * [FAR + RISE * 2.0 - 1]),  # high, yet not far enough from the start
        (N, [2.0, 1e4, 1e4, 2.0, 1e4, 1e4, 2.0]),
        (1, [2.0] + 5 * [1e4]),  # a law of its own: its energies have no such scale
    ],
    ids=["not far", "not for long", "no data"],
)
def test_other_losses_are_no_divergence(num_data, losses):
    assert reads(EnergyWatch(num_data), *losses) == []


def test_a_run_with_a_far_too_large_step_says_so():
    """The gradient of logistic regression is bounded, so that its loss stays finite whatever the step."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(N, 3, generator=generator), torch.randint(2, (N,), generator=generator)
    net = nn.Linear(3, 2)
    sampler = bdl.Sampler(net.parameters(), bdl.SGLD(), num_data=N, lr=1e4, prior=bdl.Uniform())
    closure = closure_of(sampler, lambda: nn.functional.cross_entropy(net(x), y))
    with pytest.warns(BdlWarning, match="the chain has diverged"):
        for _ in range((PATIENCE + 1) * CHECK_EVERY):
            sampler.step(closure)


def test_the_first_loss_outlives_a_checkpoint():
    net = nn.Linear(2, 1)
    sampler = sampler_of(net)
    step(net, sampler)
    other = sampler_of(net)
    other.load_state_dict(sampler.state_dict())
    assert other.potential.energy_watch.first == sampler.potential.energy_watch.first is not None


@pytest.mark.parametrize("cycle", [True, False])
@pytest.mark.parametrize(
    "make",
    [
        lambda s, cycle: torch.optim.lr_scheduler.CyclicLR(s, 1e-3, 1e-2, cycle_momentum=cycle),
        lambda s, cycle: torch.optim.lr_scheduler.OneCycleLR(s, 1e-2, total_steps=9, cycle_momentum=cycle),
    ],
)
def test_a_scheduler_may_cycle_lr_but_no_momentum(make, cycle):
    net = torch.nn.Linear(2, 1)
    sampler = bdl.Sampler(net.named_parameters(), bdl.SGHMC(), num_data=10, lr=0.01)
    if cycle:
        with pytest.raises(ConfigError, match="pass cycle_momentum=False"):
            make(sampler, cycle)
        return
    scheduler = make(sampler, cycle)
    before = sampler.param_groups[0]["lr"]
    net(torch.ones(1, 2)).sum().backward()
    sampler.step()
    scheduler.step()
    assert sampler.param_groups[0]["lr"] != before


# ---- numbers of other libraries --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, value", [("seed", 1.5), ("seed", "a"), ("stack", None)])
def test_a_stream_has_whole_numbers(name, value):
    with pytest.raises(ConfigError, match=f"{name} must be a whole number, got {value!r}"):
        sampler_of(nn.Linear(2, 1), **{name: value})


def test_numbers_of_numpy_are_plain_ones():
    net = nn.Linear(2, 1)
    sampler = bdl.Sampler(
        net.named_parameters(), bdl.SGLD(), num_data=np.int64(N), lr=np.float32(0.1), seed=np.int64(3)
    )
    assert type(sampler.param_groups[0]["lr"]) is float and type(sampler.seed) is type(sampler.num_data) is int
