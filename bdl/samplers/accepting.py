"""One step of an accept/reject kernel inside the shell: the closure at several θ, on all the data."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bdl.errors import ConfigError
from bdl.samplers.divergence import refuse
from bdl.samplers.dynamics.metropolis import Evaluate
from bdl.samplers.exchange import swap_states
from bdl.samplers.weighting.reweighting import any_positive

if TYPE_CHECKING:
    from bdl.samplers.sampler import Sampler

RECHECK = 100  # steps between checks that the energy at one θ is one number
ROUNDING = 1e-4  # relative difference that summation in another order may make in single precision


def refuse_for_kernel(sampler: Sampler) -> None:
    """Raise ConfigError for what an accept/reject kernel can't have."""
    name = type(sampler.dynamics).__name__
    if sampler.weighting.needs_energy:
        raise ConfigError(
            f"{name} accepts by exp(-U/T), which {type(sampler.weighting).__name__} changes: use Flat, or SGLD"
        )
    if sampler.clip is not None:
        raise ConfigError(f"{name} needs the gradient as it is: leave clip null")


def accept_reject_step(sampler: Sampler, closure: Callable[[], Tensor] | None) -> Tensor:
    """Like `Sampler.step`; returns the loss at the θ from which the step was proposed."""
    name = type(sampler.dynamics).__name__
    if closure is None:
        raise ConfigError(f"{name} needs the energy of its proposals: call step(closure)")
    sampler._reattach()
    lr, temperature, zeta = sampler._numbers()
    if not any_positive(temperature):
        raise ConfigError(f"{name} samples, and needs a temperature > 0, got {temperature}")
    sampler.used = {"lr": lr, "temperature": temperature, "zeta": zeta}
    state, theta = sampler._state, sampler._flat.theta
    state.theta = theta.clone()  # the parameters themselves are where proposals are evaluated
    evaluate = _evaluator(sampler, closure, state.theta)
    _know_the_start(sampler, evaluate)
    energy = sampler._energy = state.potential.reshape(-1) * sampler.num_data
    start_loss = (energy - sampler.prior.energy(state.theta)) / sampler.num_data
    if sampler._replicas is not None:
        swap_states(sampler, sampler._replicas, energy.clone(), temperature)
    sampler._draw(temperature)
    lead = sampler._flat.lead
    uniform = torch.rand((*lead, 1), generator=sampler._generator, dtype=torch.float64, device=theta.device)
    tau = sampler._column(temperature) / sampler.num_data
    tau = tau.double() if isinstance(tau, Tensor) else tau
    try:
        new = sampler.dynamics.kernel(state, evaluate, sampler._column(lr), tau, sampler._z, uniform.log())
    except BaseException:
        theta.copy_(state.theta)  # no proposal is left behind for a checkpoint
        raise
    sampler._left_at = new.theta
    sampler._advance(new)
    sampler._count()
    return sampler._per_chain(start_loss.reshape(-1))


def _evaluator(sampler: Sampler, closure: Callable[[], Tensor], start: Tensor) -> Evaluate:
    """U/N (..., 1) and its gradient (..., d) at any θ. Parameters without a gradient stay where `start` has them."""
    name, flat = type(sampler.dynamics).__name__, sampler._flat

    def evaluate(theta: Tensor) -> tuple[Tensor, Tensor]:
        flat.theta.copy_(theta)
        loss = sampler._evaluate(closure)
        if loss is None or not sampler.loss_is_whole:
            raise ConfigError(f"{name} needs the mean loss over all the data, but the closure does not return it")
        idle = flat.gather(sampler._g_views)
        if len(idle) < len(flat.params):  # none at all has a gradient where Metropolis' closure computes none
            for whole, i in itertools.product((theta, flat.theta), idle):
                flat.split(whole)[i].copy_(flat.split(start)[i])
        energy = sampler._energy_of(loss)
        sampler.prior.add_grad_(sampler._g, flat.theta, sampler.num_data)
        for i in idle:
            sampler._g_views[i].zero_()
        return (energy / sampler.num_data).view(*flat.lead, 1), sampler._g.clone()

    return evaluate


def _know_the_start(sampler: Sampler, evaluate: Evaluate) -> None:
    """U/N and its gradient at the present θ: from the last step, evaluated anew now and then to see that they agree."""
    s, first, left_at = sampler._state, sampler.steps, sampler._left_at
    moved = left_at is not None and not torch.equal(left_at, s.theta)  # by hand, between the steps
    known = bool(torch.isfinite(s.potential).all()) and not moved
    if known and first > 2 and first % RECHECK:
        return
    potential, gradient = evaluate(s.theta)
    refuse(sampler.steps, [("the energy", potential), ("the gradient", gradient)], sampler.param_groups[0]["lr"])
    potential = potential.squeeze(-1)
    if known:
        change = float(((potential - s.potential).abs() / s.potential.abs().clamp_min(1e-2)).max())
        if not math.isfinite(change) or change > ROUNDING:
            raise ConfigError(
                f"{type(sampler.dynamics).__name__} needs all the data in every batch, without dropout: at step "
                f"{sampler.steps} the loss at one θ differs by {change:.2%} from before; use a batch of all "
                f"{sampler.num_data} items, or a stochastic-gradient sampler"
            )
    s.potential, s.gradient = potential, gradient
