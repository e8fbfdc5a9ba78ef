"""θ that something else than the sampler has moved between two steps of a kernel is noticed, at once or at a read."""

import pytest
import torch
from torch import nn

import bdl
from bdl.errors import ConfigError
from bdl.samplers.chain import StrayWatch


def test_a_noted_move_is_refused_once_and_names_the_kernel():
    watch, theta = StrayWatch(), torch.arange(4.0)
    watch.left_at = theta.clone()
    watch.note(theta)
    watch.refuse(bdl.HMC(), 5)
    watch.note(theta + 1)
    watch.note(theta)  # a later step in its place does not hide the earlier one
    with pytest.raises(ConfigError, match=r"after which HMC used a gradient of the old ones \(noticed at step 7"):
        watch.refuse(bdl.HMC(), 7)
    watch.refuse(bdl.HMC(), 8)


@pytest.mark.parametrize("moves", [False, True])
def test_a_kernel_evaluates_a_theta_that_was_moved_by_hand(moves):
    """A step of one leapfrog step evaluates its end alone, and its start too where the last step did not leave it."""
    net, x, calls = nn.Linear(2, 1), torch.ones(4, 2), []
    sampler = bdl.Sampler(net.parameters(), bdl.HMC(leapfrog=1), num_data=4, lr=0.01)

    def closure():
        calls.append(1)
        sampler.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        return loss

    for _ in range(4):  # the first three steps check the energy as well
        sampler.step(closure)
    if moves:
        with torch.no_grad():
            net.weight.add_(0.1)
    calls.clear()
    sampler.step(closure)
    assert len(calls) == 1 + moves
