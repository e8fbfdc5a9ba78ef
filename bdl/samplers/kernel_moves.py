"""How a chain moves by a kernel that evaluates all the data, wherever and as often as it likes in a step."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from bdl.devices import widest
from bdl.errors import ConfigError
from bdl.samplers.compiled.microcanonical import CompiledMCLMC
from bdl.samplers.divergence import refuse
from bdl.samplers.dynamics.metropolis import Metropolis
from bdl.samplers.moves import Moves, Walk
from bdl.samplers.potential import BoundGradient, Closure
from bdl.samplers.settings import StepSettings
from bdl.samplers.whole_steps import KernelSteps, log_uniform

RECHECK = 100  # steps between checks that one θ always has the same energy
ROUNDING = 1e-4  # relative difference that summation in another order may make in single precision

# Evaluates the present θ: returns the () or (C,) mean losses and the positions of parameters without a gradient, and
# leaves the gradients of the losses in `chain.g`.
AtTheta = Callable[[], tuple[Tensor, Sequence[int]]]


@dataclass(eq=False)
class KernelMoves(Moves):
    """The steps of a `FullBatch` kernel."""

    compiled: CompiledMCLMC = field(init=False)
    walked: Tensor | None = None  # (steps, C) U at which the steps of the last walk in C began, nats

    def __post_init__(self) -> None:
        self.compiled, self.kernel = CompiledMCLMC(self.chain), cast(Any, self.chain.dynamics)
        self.whole = KernelSteps(self.chain, self.potential, self._evaluate)

    def step(self, closure: Closure | None, loss: Tensor | None, now: StepSettings, measure: bool) -> Tensor:
        return self.move(self._by_closure(closure), now)

    def advance(self, gradient: BoundGradient, now: StepSettings, measure: bool) -> Tensor:
        return self.move(lambda: (gradient.write(self.chain.g_views), gradient.idle()), now)

    def move(self, at_theta: AtTheta, now: StepSettings) -> Tensor:
        """One step of the kernel; returns the loss at the θ from which it started, () or (C,)."""
        chain, potential, n = self.chain, self.potential, self.potential.num_data
        if not now.all_sample:
            name = type(self.kernel).__name__
            raise ConfigError(f"{name} needs a temperature > 0, got {now.temperature}: raise it, or use bdl.SGD")
        state, theta = chain.state, chain.theta
        state.theta = theta.clone()  # proposals are evaluated in the parameters themselves
        self._evaluate_start(at_theta, now)
        energy = potential.energy = state.potential.reshape(-1) * n
        start_loss = (energy - potential.prior.energy(state.theta)) / n
        if self.replicas is not None:
            self.replicas.swap(chain, potential, self.batch_noise, now, exact=True)
        try:
            in_c = self.replicas is None and self.compiled.takes(potential.prior, n, *now.pair)
            moved = (self._compiled_step if in_c else self._python_step)(at_theta, now)
        except BaseException:
            theta.copy_(state.theta)  # leave no proposal behind for a checkpoint
            raise
        chain.measure(moved.theta, moved.gradient, [], n, potential.prior.offset)
        chain.stray.left_at = moved.theta
        chain.advance(moved)
        self._renew_prior(now)
        return chain.per_chain(start_loss.reshape(-1))

    def is_single(self, step: int) -> bool:
        return is_rechecked(step) or self.on_gpu and step < (self.kernel.adapt_steps or 0)

    def walk_in_c(self, gradients: Walk, settings: Sequence[StepSettings]) -> int:
        """A step that is not finite is undone, as in a single step."""
        chain, kernel = self.chain, self.compiled
        if chain.stray.has_moved(chain.theta) or not bool(torch.isfinite(chain.state.potential).all()):
            return 0
        losses = chain.theta.new_empty(len(settings) * kernel.stages, chain.chains or 1)
        potentials = losses.new_empty(1 + len(settings), losses.shape[1], dtype=torch.float64)
        potentials[0] = chain.state.potential.reshape(-1)
        kernel.prepare(self.lr_and_tau(settings), losses, potentials[1:])
        made = gradients(chain.g_views, losses, kernel.after, kernel.address) // kernel.stages
        if made < len(settings):
            kernel.put_back()
        if made:
            chain.state.steps += made
            chain.stray.left_at = chain.theta.clone()
            self.walked = potentials[:made] * self.potential.num_data
        return made

    # ---- the parts of a step ----

    def _by_closure(self, closure: Closure | None) -> AtTheta:
        """Losses and gradients by autograd. Raises ConfigError without a closure, and if it returns no whole loss."""
        chain, name = self.chain, type(self.kernel).__name__
        if closure is None:
            raise ConfigError(f"{name} needs the energies of its steps: call step(closure)")

        def at_theta() -> tuple[Tensor, list[int]]:
            loss = self.potential.loss(closure)
            if loss is None or not chain.host.loss_is_whole:
                raise ConfigError(f"{name} needs the mean loss over all the data, but the closure does not return it")
            idle = chain.gather()
            if len(idle) == len(chain.buffer.params) and not isinstance(self.kernel, Metropolis):
                raise ConfigError(
                    f"no parameter has a gradient at step {chain.steps}: call loss.backward() in the closure"
                )
            return loss, idle

        return at_theta

    def _python_step(self, at_theta: AtTheta, now: StepSettings) -> Any:
        """The state after one step that the kernel makes itself."""
        chain, state = self.chain, self.chain.state
        z, log_u, start = chain.draw(now.temperature), log_uniform(chain), state.theta
        lr, tau = self.whole.numbers(now) or (
            chain.column(now.lr),
            chain.column(now.temperature) / self.potential.num_data,
        )
        tau = tau.to(widest(tau.device)) if isinstance(tau, Tensor) else tau

        def evaluate(theta: Tensor) -> tuple[Tensor, Tensor]:
            return self._evaluate(at_theta, theta, start)

        return self.kernel.kernel(state, evaluate, lr, tau, z, log_u)

    def _compiled_step(self, at_theta: AtTheta, now: StepSettings) -> Any:
        """The state after one step in compiled code, which makes its noise and adds the prior itself."""
        chain = self.chain

        def evaluate() -> Tensor:
            loss, idle = at_theta()
            self.potential.idle.refuse(idle)
            return loss

        chain.injects(now.temperature)
        self.compiled.step(evaluate, *self.lr_and_tau([now])[0])
        chain.state.theta.copy_(chain.theta)  # which the state leaves to the parameters until the step has ended
        return chain.state

    def _evaluate(self, at_theta: AtTheta, theta: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        """U/N (..., 1) and its gradient (..., d) at θ. Parameters without a gradient keep their value in `start`."""
        chain, potential, buffer = self.chain, self.potential, self.chain.buffer
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

    def _evaluate_start(self, at_theta: AtTheta, now: StepSettings) -> None:
        """Put U/N and its gradient at the present θ into the state, if the last step has not left them there.

        Some steps evaluate them nevertheless. Raises ConfigError if one θ has two energies.
        """
        chain, s, step = self.chain, self.chain.state, self.chain.steps
        due = is_rechecked(step)
        # On an accelerator a comparison that is read would make the host wait
        if chain.theta.device.type != "cpu" and chain.stray.left_at is not None:
            chain.stray.note(chain.theta)
            if not due:
                return
            chain.stray.refuse(self.kernel, step)
        known = bool(torch.isfinite(s.potential).all()) and not chain.stray.has_moved(s.theta)
        if known and not due:
            return
        value, gradient = self._evaluate(at_theta, s.theta, s.theta)
        refuse(step, [("the energy", value), ("the gradient", gradient)], now.lr)
        value = value.squeeze(-1)
        if known:
            self._refuse_change(float(((value - s.potential).abs() / s.potential.abs().clamp_min(1e-2)).max()))
        s.potential.copy_(value)  # in place, because graphs read them
        s.gradient.copy_(gradient)

    def _refuse_change(self, change: float) -> None:
        """Raise ConfigError if the energy of one θ has changed by more than this share."""
        if not math.isfinite(change) or change > ROUNDING:
            raise ConfigError(
                f"{type(self.kernel).__name__} needs all the data in every batch, without dropout: at step "
                f"{self.chain.steps} the loss at the same θ changed by {change:.2%}; use a batch of all "
                f"{self.potential.num_data} items, or a stochastic-gradient sampler"
            )

    def _renew_prior(self, now: StepSettings) -> None:
        """Let the prior learn; what the state keeps of U/N at θ follows."""
        learns = self.potential.prior.learns
        if learns:
            self._add_prior(-1)
        self.potential.renew_prior(now.temperature)
        if learns:
            self._add_prior(1)

    def _add_prior(self, sign: int) -> None:
        """Add the prior's part to U/N and its gradient in the state, or take it away."""
        prior, state, n = self.potential.prior, self.chain.state, self.potential.num_data
        part = torch.as_tensor(prior.energy(self.chain.theta)) / n
        state.potential = state.potential + sign * part.view_as(state.potential)
        prior.add_grad_(state.gradient, self.chain.theta, sign * n)


def is_rechecked(step: int) -> bool:
    """Whether a step of a `FullBatch` kernel, after so many others, evaluates its start again."""
    return step <= 2 or step % RECHECK == 0
