"""The two ways in which a chain moves: one gradient a step, or a kernel that evaluates all the data as it needs.

What some dynamics need besides a gradient is gathered before the step, and passed as one `extra` argument.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bdl.devices import widest
from bdl.errors import ConfigError
from bdl.samplers.chain import Chain
from bdl.samplers.divergence import refuse
from bdl.samplers.dynamics.base import Evaluate
from bdl.samplers.dynamics.metropolis import Metropolis
from bdl.samplers.potential import Closure, Evaluation, Launch, Potential
from bdl.samplers.readings import Readings
from bdl.samplers.settings import StepSettings

RECHECK = 100  # steps between checks that one θ always has the same energy
ROUNDING = 1e-4  # relative difference that summation in another order may make in single precision
GENERAL_REMEDY = "set sampler.extras['{}'] to a function that returns it"
REMEDIES = {
    "per_example": "BayesianModule has them; in a plain loop set sampler.extras['per_example'] to a function that "
    "returns bdl.per_example_gradients(net, loss, x, y) of the batch",
    "noise_draws": "BayesianModule has them; in a plain loop set sampler.extras['noise_draws'] to a function that "
    "returns bdl.noise_draws(net, loss, x, y) of the batch",
    "curvature": "set sampler.extras['curvature'] to a function that returns the diagonal of the Hessian of U/N, or "
    "take a > 0 on a network",
}


# Evaluates the present θ: returns the () or (C,) mean losses and the positions of parameters without a gradient, and
# leaves the gradients of the losses in `chain.g`.
AtTheta = Callable[[], tuple[Tensor, list[int]]]


def gradient_move(sampler: Readings, e: Evaluation, now: StepSettings, launch: Launch | None = None) -> None:
    """One step of a `Dynamics` from e: energy (C,), nats, and gradient (..., d) of the batch loss.

    launch: runs the kernels of a weighting, or of a swap, together.
    """
    chain, potential, batch_noise = sampler.chain, sampler.potential, sampler.batch_noise
    dynamics: Any = chain.dynamics
    if e.idle:
        potential.idle.note(e.idle, e.loss)
    potential.accept(e, now.lr)
    batch_noise.observe(chain.steps, e.g)  # before prior, clipping and weighting, which bring no batch noise
    compiled = sampler.compiled if sampler.compiled.takes(potential.prior, potential.num_data, *now.pair) else None
    at_once = compiled is not None and nobody_reads_gradient(sampler, e)
    if not at_once:
        potential.add_prior_and_clip(e, compiled)  # e.g is the gradient of U/N
    if sampler.replicas is not None:
        sampler.replicas.swap(chain, potential, batch_noise, now, launch)
    multiplier = sampler.reweighting.weigh(e.g, e.energy, potential, now, launch)  # (..., 1)
    chain.measure(chain.theta, e.g, e.idle, potential.num_data, potential.prior.offset)
    lr, tau = chain.per_coordinate(now.lr, now.temperature, potential.num_data)
    chain.entropy = dynamics.entropy(chain.state)
    alone = potential.idle.values(e.idle)
    if compiled is not None:
        chain.injects(now.temperature)  # compiled code makes the noise itself
        compiled.step(lr, tau, at_once)  # type: ignore[arg-type]
        chain.advance(chain.state)
    else:
        z = chain.draw(now.temperature)
        chain.advance(dynamics.step(chain.state, e.g, lr, tau, z, *gather_extra(sampler, multiplier)))
    potential.idle.put_back(alone)
    potential.renew_prior(now.temperature)


def nobody_reads_gradient(sampler: Readings, e: Evaluation) -> bool:
    """Whether no more than the dynamics reads the gradient of U/N in this step: compiled code then makes it."""
    watched = e.idle or sampler.chain.measures_next or sampler.replicas is not None
    return not (watched or sampler.potential.clip is not None or sampler.reweighting.weighting.needs_energy)


def gather_extra(sampler: Readings, multiplier: Tensor | None) -> tuple[dict[str, Tensor], ...]:
    """The last argument of the dynamics' step, if it takes one. multiplier: (..., 1) by the weighting, or None."""
    names = sampler.dynamics.needs
    if not names:
        return ()
    if not sampler.dynamics.reads_extra(sampler.chain.state):
        return ({},)
    return ({name: _quantity(sampler, name, multiplier) for name in names},)


def _quantity(sampler: Readings, name: str, multiplier: Tensor | None) -> Tensor:
    """grad_var and prior_gradient come from the sampler itself, the others from the functions in its `extras`."""
    theta = sampler.chain.theta
    if name == "grad_var":
        v = sampler.batch_variance
        v = torch.zeros_like(theta) if v is None else v
        return v if multiplier is None else v * multiplier.square()  # Var(w g) = w² Var(g)
    if name == "prior_gradient":
        g = torch.zeros_like(theta)
        sampler.potential.prior.add_grad_(g, theta, sampler.num_data)
        return g
    if name == "noise_draws" and sampler.chain.host.sees_all_data:
        return torch.zeros_like(theta).unsqueeze(-2)
    host = sampler.chain.host
    source = sampler.extras.get(name, {"per_example": host.per_example, "noise_draws": host.noise_draws}.get(name))
    if source is None:
        remedy = REMEDIES.get(name, GENERAL_REMEDY.format(name))
        raise ConfigError(f"{type(sampler.dynamics).__name__} needs {name}: {remedy}")
    with torch.enable_grad():
        value = source().detach()
    if multiplier is None or name == "per_example":
        return value
    return value * (multiplier.unsqueeze(-1) if name == "noise_draws" else multiplier)


def by_closure(chain: Chain, potential: Potential, closure: Closure | None) -> AtTheta:
    """Losses and gradients by autograd. Raises ConfigError without a closure, and if it returns no whole loss."""
    name = type(chain.dynamics).__name__
    if closure is None:
        raise ConfigError(f"{name} needs the energies of its steps: call step(closure)")

    def at_theta() -> tuple[Tensor, list[int]]:
        loss = potential.loss(closure)
        if loss is None or not chain.host.loss_is_whole:
            raise ConfigError(f"{name} needs the mean loss over all the data, but the closure does not return it")
        idle = chain.gather()
        if len(idle) == len(chain.buffer.params) and not isinstance(chain.dynamics, Metropolis):
            raise ConfigError(f"no parameter has a gradient at step {chain.steps}: call loss.backward() in the closure")
        return loss, idle

    return at_theta


def full_batch_move(sampler: Readings, at_theta: AtTheta, now: StepSettings) -> Tensor:
    """One step of a `FullBatch` kernel; returns the loss at the θ from which it started, () or (C,)."""
    chain, potential = sampler.chain, sampler.potential
    kernel: Any = chain.dynamics
    if not now.all_sample:
        name = type(kernel).__name__
        raise ConfigError(f"{name} needs a temperature > 0, got {now.temperature}: raise it, or use bdl.SGD")
    state, theta, n = chain.state, chain.theta, potential.num_data
    state.theta = theta.clone()  # proposals are evaluated in the parameters themselves
    evaluate = evaluator(chain, potential, at_theta, state.theta)
    evaluate_start(chain, potential, evaluate, now)
    energy = potential.energy = state.potential.reshape(-1) * n
    start_loss = (energy - potential.prior.energy(state.theta)) / n
    if sampler.replicas is not None:
        sampler.replicas.swap(chain, potential, sampler.batch_noise, now)
    try:
        if sampler.replicas is None and sampler.kernel.takes(potential.prior, n, *now.pair):
            moved = compiled_step(sampler, at_theta, now)
        else:
            moved = torch_step(kernel, chain, evaluate, now, n)
    except BaseException:
        theta.copy_(state.theta)  # leave no proposal behind for a checkpoint
        raise
    chain.measure(moved.theta, moved.gradient, [], n, potential.prior.offset)
    chain.stray.left_at = moved.theta
    chain.advance(moved)
    potential.renew_prior(now.temperature)
    return chain.per_chain(start_loss.reshape(-1))


def torch_step(kernel: Any, chain: Chain, evaluate: Evaluate, now: StepSettings, num_data: int) -> Any:
    """The state after one step that the kernel makes itself."""
    z, device = chain.draw(now.temperature), chain.theta.device
    uniform = torch.rand((*chain.lead, 1), generator=chain.generator, dtype=widest(device), device=device)
    tau = chain.column(now.temperature) / num_data
    tau = tau.to(widest(tau.device)) if isinstance(tau, Tensor) else tau
    return kernel.kernel(chain.state, evaluate, chain.column(now.lr), tau, z, uniform.log())


def compiled_step(sampler: Readings, at_theta: AtTheta, now: StepSettings) -> Any:
    """The state after one step in compiled code, which makes its noise and adds the prior itself."""
    chain, potential = sampler.chain, sampler.potential

    def evaluate() -> Tensor:
        loss, idle = at_theta()
        potential.idle.refuse(idle)
        return loss

    chain.injects(now.temperature)
    sampler.kernel.step(evaluate, now.lr, now.temperature / potential.num_data)  # type: ignore[arg-type]
    chain.state.theta.copy_(chain.theta)  # which the state leaves to the parameters until the step has ended
    return chain.state


def evaluator(chain: Chain, potential: Potential, at_theta: AtTheta, start: Tensor) -> Evaluate:
    """U/N (..., 1) and its gradient (..., d) at any θ. Parameters without a gradient keep their value in `start`."""
    buffer = chain.buffer

    def evaluate(theta: Tensor) -> tuple[Tensor, Tensor]:
        chain.theta.copy_(theta)
        loss, idle = at_theta()
        potential.idle.refuse(idle)
        if len(idle) < len(buffer.params):  # Metropolis' closure may compute no gradient at all
            for whole, i in itertools.product((theta, chain.theta), idle):
                buffer.split(whole)[i].copy_(buffer.split(start)[i])
        energy = potential.energy_of(loss)
        potential.prior.add_grad_(chain.g, chain.theta, potential.num_data)
        potential.idle.silence(idle)
        return (energy / potential.num_data).view(*chain.lead, 1), chain.g.clone()

    return evaluate


def is_rechecked(step: int) -> bool:
    """Whether a step of a `FullBatch` kernel, after so many others, evaluates its start again."""
    return step <= 2 or step % RECHECK == 0


def evaluate_start(chain: Chain, potential: Potential, evaluate: Evaluate, now: StepSettings) -> None:
    """Put U/N and its gradient at the present θ into the state, if the last step has not left them there.

    Some steps evaluate them nevertheless, to check that one θ always has the same energy. Raises ConfigError if not.
    """
    s, step = chain.state, chain.steps
    due = is_rechecked(step)
    # On an accelerator a comparison that is read would make the host wait
    if chain.theta.device.type != "cpu" and chain.stray.left_at is not None:
        chain.stray.note(chain.theta)
        if not due:
            return
        chain.stray.refuse(chain.dynamics, step)
    known = bool(torch.isfinite(s.potential).all()) and not chain.stray.has_moved(s.theta)
    if known and not due:
        return
    value, gradient = evaluate(s.theta)
    refuse(step, [("the energy", value), ("the gradient", gradient)], now.lr)
    value = value.squeeze(-1)
    if known:
        change = float(((value - s.potential).abs() / s.potential.abs().clamp_min(1e-2)).max())
        if not math.isfinite(change) or change > ROUNDING:
            raise ConfigError(
                f"{type(chain.dynamics).__name__} needs all the data in every batch, without dropout: at step {step} "
                f"the loss at the same θ changed by {change:.2%}; use a batch of all {potential.num_data} "
                "items, or a stochastic-gradient sampler"
            )
    s.potential, s.gradient = value, gradient
