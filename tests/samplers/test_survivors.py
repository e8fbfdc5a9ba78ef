"""A chain of a stack that diverges is dropped, and the others do not notice."""

import math

import pytest
import torch

import bdl
from bdl.errors import BdlWarning, ConfigError, DivergedError
from bdl.samplers.host import Host

CHAINS, D, STEPS, BAD = 4, 3, 40, (10, 2)  # the step at which the loss of chain 2 is NaN
OTHERS = [0, 1, 3]


class Stack:
    """Normal laws sampled by one stack, and the states after every step."""

    def __init__(self, policy: str, bad: dict[int, list[int]] | None = None, **sampler):
        self.theta = (torch.arange(CHAINS * D).reshape(CHAINS, D) / 10).requires_grad_()
        self.start, self.bad, self.states = self.theta.detach().clone(), bad or {}, []
        settings = {"dynamics": bdl.SGHMC(0.1), "num_data": 10, "lr": 0.1, "chains": CHAINS, "seed": 3} | sampler
        self.sampler = bdl.Sampler([self.theta], on_divergence=policy, **settings)

    def go(self, steps: int) -> torch.Tensor:
        """(all steps so far, C, D)."""
        for _ in range(steps):
            self.sampler.step(self.closure)
            self.states.append(self.theta.detach().clone())
        return torch.stack(self.states)

    def closure(self) -> torch.Tensor:
        self.sampler.zero_grad()
        chains = self.bad.get(self.sampler.steps, [])
        factor = torch.tensor([math.nan if c in chains else 1.0 for c in range(CHAINS)])
        loss = 0.5 * self.theta.square().sum(1) * factor
        loss.sum().backward()
        return loss


def with_one_lost(steps: int = STEPS, **sampler) -> tuple[Stack, torch.Tensor]:
    stack = Stack("drop", {BAD[0]: [BAD[1]]}, **sampler)
    with pytest.warns(BdlWarning, match="chain 2 has diverged at step 10 and .* the others .3. go on"):
        return stack, stack.go(steps)


WEIGHTINGS = {"flat": {}, "adaptive": {"weighting": bdl.AdaptiveWeight(low=0.0, high=40.0, bins=10)}}
DYNAMICS = {
    "sghmc": bdl.SGHMC(0.1), "sgld": bdl.SGLD(), "sgnht": bdl.SGNHT(0.1, rate=0.01), "psgld": bdl.PSGLD(),
    "corrected": bdl.SGHMC(0.1, grad_var="estimated"),
}  # fmt: skip


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("dynamics", DYNAMICS)
def test_the_others_keep_every_bit(weighting, dynamics):
    arguments = {"dynamics": DYNAMICS[dynamics], **WEIGHTINGS[weighting]}
    undisturbed = Stack("stop", **arguments)
    stack, states = with_one_lost(**arguments)
    assert torch.equal(states[:, OTHERS], undisturbed.go(STEPS)[:, OTHERS])
    assert not torch.equal(states[-1, 2], undisturbed.states[-1][2])
    assert states.isfinite().all() and stack.sampler.energy.isfinite().all()
    assert stack.sampler.noise_ratio.isfinite().all()


def test_a_dropped_chain_counts_no_more():
    stack, _ = with_one_lost()
    assert stack.sampler.target_chains == OTHERS and stack.sampler.survivors.excluded() == {2: 10}


def test_two_lost_chains_and_one_that_diverges_while_dropped():
    stack = Stack("drop", {10: [2], 20: [2, 0]}, stack=1)
    with pytest.warns(BdlWarning, match="has diverged") as heard:
        stack.go(STEPS)
    assert [str(w.message).split(" and ")[0] for w in heard] == [
        "chain 6 has diverged at step 10", "chain 4 has diverged at step 20"
    ]  # fmt: skip
    assert stack.sampler.survivors.excluded() == {6: 10, 4: 20} and stack.sampler.target_chains == [1, 3]


@pytest.mark.parametrize("stop", [5, 20], ids=["before", "after"])
def test_a_resumed_sampler_makes_the_same_states(stop):
    _, whole = with_one_lost()
    first = Stack("drop", {BAD[0]: [BAD[1]]})
    if stop > BAD[0]:
        first, _ = with_one_lost(stop)
    else:
        first.go(stop)
    second = Stack("drop", {BAD[0]: [BAD[1]]})
    with torch.no_grad():
        second.theta.copy_(first.theta)
    second.sampler.load_state_dict(first.sampler.state_dict())
    if stop > BAD[0]:
        rest = second.go(STEPS - stop)
    else:
        with pytest.warns(BdlWarning, match="has diverged at step 10"):
            rest = second.go(STEPS - stop)
    assert torch.equal(rest, whole[stop:])
    assert second.sampler.survivors.excluded() == {2: 10}


def test_stop_is_the_default_and_ends_all():
    with pytest.raises(DivergedError, match="the loss is not finite at step 10"):
        Stack("stop", {10: [2]}).go(STEPS)
    theta = torch.zeros(2, 3, requires_grad=True)
    assert bdl.Sampler([theta], bdl.SGLD(), num_data=1, lr=0.1, chains=2).survivors.policy == "stop"


def test_where_no_chain_is_left_the_run_ends():
    stack = Stack("drop", {10: [0, 1], 20: [2, 3]})
    with pytest.warns(BdlWarning, match="has diverged"), pytest.raises(DivergedError, match="not finite at step 20"):
        stack.go(STEPS)


def test_a_parameter_not_finite_is_found_before_a_state_is_saved():
    stack = Stack("drop")
    stack.go(3)
    with torch.no_grad():
        stack.theta[1] = math.inf
    with pytest.warns(BdlWarning, match="chain 1 has diverged at step 3"):
        stack.sampler.state_dict()
    assert stack.theta.isfinite().all() and stack.sampler.target_chains == [0, 2, 3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"on_divergence": "skip"}, "must be stop or drop, got 'skip'"),
        ({"on_divergence": "drop", "chains": None}, "and not a single chain"),
        ({"on_divergence": "drop", "dynamics": bdl.HMC()}, "and not HMC"),
        ({"on_divergence": "drop", "exchange": bdl.Exchange((1.0, 2.0))}, "and not replica exchange"),
    ],
    ids=["word", "one chain", "kernel", "exchange"],
)
def test_what_cannot_go_on_is_refused(arguments, message):
    theta = torch.zeros(2, 3, requires_grad=True)
    settings = {"dynamics": bdl.SGLD(), "num_data": 10, "lr": 0.1, "chains": 2} | arguments
    with pytest.raises(ConfigError, match=message):
        bdl.Sampler([theta], **settings)


def test_a_replaced_chain_takes_over_buffers_and_noise_estimates():
    """Its own estimates are of gradients at another place, its BatchNorm statistics of a network that is gone."""
    stack = Stack("drop", {BAD[0]: [BAD[1]]})
    statistics = torch.arange(2.0 * CHAINS).view(CHAINS, 2)
    stack.sampler.host = Host(buffers=lambda: [statistics])
    noise = stack.sampler.survivors.batch_noise
    stack.go(BAD[0])
    assert noise.mean is not None and not torch.equal(noise.mean[2], noise.mean[0])
    with pytest.warns(BdlWarning, match="has diverged"):
        stack.go(1)
    assert statistics[:, 0].tolist() == [0.0, 2.0, 0.0, 6.0]
    assert torch.equal(noise.mean[2], noise.mean[0])
