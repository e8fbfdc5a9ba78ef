"""The potential U/N and its gradient, from the user's closure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from bdl.errors import ConfigError
from bdl.samplers import parallel
from bdl.samplers.chain import Chain
from bdl.samplers.clipping import Clip
from bdl.samplers.divergence import DivergenceWatch, Named, refuse
from bdl.samplers.dynamics.base import Scalar
from bdl.samplers.priors import Prior

Closure = Callable[[], Tensor]


@dataclass
class Evaluation:
    """What one call of the closure says about the present θ."""

    loss: Tensor | None  # () or (C,) mean batch negative log-likelihood
    energy: Tensor | None  # (C,) batch estimate of U, nats; C = 1 without chains
    g: Tensor  # (..., d) gradient of the batch loss; of U/N once the prior is added
    idle: list[int]  # positions of the parameters that have no gradient


class Potential:
    """Turns a closure into energies and gradients of U = N loss - log prior.

    Attributes:
        energy: (C,) batch estimate of U at the θ of the last gradient, nats, or None.
        full_loss: returns the () or (C,) mean negative log-likelihood over all the data at the present θ, or None.
        loss_is_whole: False where the closure returns less than the mean loss of the batch, as under Lightning's
            gradient accumulation. Energies are then None.
        group: the process group whose ranks share the chain and average its energy, or None.
    """

    def __init__(
        self,
        chain: Chain,
        prior: Prior,
        num_data: int,
        clip: Clip | None,
        group: dist.ProcessGroup | None,
        needs_energy: str | None,
    ):
        """needs_energy: name of the weighting that needs the energy of every step, or None."""
        self.chain, self.num_data, self.clip, self.group = chain, num_data, clip, group
        self.prior = prior.bind(chain.buffer.shapes, chain.theta)
        self.needs_energy = needs_energy
        self.energy: Tensor | None = None
        self.full_loss: Callable[[], Tensor] | None = None
        self.loss_is_whole = True
        self.divergence = DivergenceWatch(chain.theta.device)

    def loss(self, closure: Closure | None) -> Tensor | None:
        """() or (C,) the loss that the closure returns, after it has back-propagated it.

        Raises ConfigError for a loss of another shape, and for none where an energy is needed.
        """
        loss: Any = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if loss is not None:
            loss = torch.as_tensor(loss).detach()
            refuse_shape(loss, self.chain.lead)
        elif self.needs_energy:
            cause = "call step(closure)" if closure is None else "the closure returned no loss"
            raise ConfigError(f"{self.needs_energy} needs the energy of every step: {cause}")
        return loss

    def evaluate(self, loss: Tensor | None, idle: list[int], lr: Scalar, measure: bool = True) -> Evaluation:
        """The loss with its energy and its gradient, which is in chain.g already. measure: False skips the energy.

        Raises DivergedError if one of them is not finite; on a GPU some steps later.
        """
        self.refuse_idle(idle)
        self.energy = None if loss is None or not self.loss_is_whole or not measure else self.energy_of(loss)
        self._watch(loss, lr)
        return Evaluation(loss, self.energy, self.chain.g, idle)

    def add_prior_and_clip(self, e: Evaluation) -> None:
        """Make e.g the gradient of U/N, in place: add the prior's part, then clip."""
        self.prior.add_grad_(e.g, self.chain.theta, self.num_data)
        self.silence(e.idle)
        if self.clip is not None:
            self.clip(e.g)

    def refuse_idle(self, idle: list[int]) -> None:
        """Raise ConfigError if a parameter has no gradient and the dynamics couples all parameters."""
        if idle and self.chain.dynamics.every_gradient:
            raise ConfigError(
                f"{type(self.chain.dynamics).__name__} averages over all parameters, but "
                f"{self.chain.buffer.names[idle[0]]} has no gradient: freeze it (requires_grad = False)"
            )

    def silence(self, idle: list[int]) -> None:
        """Zero the gradients of the parameters `idle`."""
        for i in idle:
            self.chain.g_views[i].zero_()

    def energy_of(self, loss: Tensor) -> Tensor:
        """(C,) U = N loss + prior energy, double, nats; C = 1 without chains. Averaged over the ranks of `group`."""
        energy = loss.to(torch.float64, copy=True).mul_(self.num_data)
        if self.group is not None:
            parallel.mean_over(self.group, energy)
        return energy.add_(self.prior.energy(self.chain.theta)).view(-1)

    def elbo(self) -> Tensor | None:
        """(C,) one-draw estimate of the evidence lower bound, nats; None unless variational. See `Sampler.elbo`."""
        entropy = self.chain.entropy
        if entropy is None or self.energy is None:
            return None
        return entropy.reshape(-1) - self.energy - self.prior.constant(self.chain.theta.shape[-1])

    def full_energy(self, lr: Scalar) -> Tensor:
        """(C,) U over all the data at the present θ, nats.

        Raises ConfigError without `full_loss`, and DivergedError, which names lr, for an energy that is not finite.
        """
        if self.full_loss is None:
            raise ConfigError(
                "a full-data energy needs sampler.full_loss: set it to a function that returns the mean NLL of all data"
            )
        with torch.no_grad():
            energy = self.energy_of(self.full_loss())
        refuse(self.chain.steps, [("the full-data energy", energy)], lr)
        return energy

    def check(self, lr: Scalar) -> None:
        """Raise DivergedError if any step so far met numbers that are not finite, or θ is not. A device sync."""
        refuse(self.chain.steps, [("a parameter", self.chain.theta)], lr)
        self.divergence.check(lr)

    def reset(self) -> None:
        """Forget which steps were bad: the chain starts from another state, or is on another device."""
        self.divergence = DivergenceWatch(self.chain.theta.device)

    def to(self, theta: Tensor) -> None:
        self.reset()

    def state_dict(self) -> dict[str, Any]:
        return {"energy": self.energy}

    def load_state_dict(self, state: dict[str, Any], theta: Tensor) -> None:
        self.energy = None if state["energy"] is None else state["energy"].to(theta.device).clone()
        self.reset()

    def _watch(self, loss: Tensor | None, lr: Scalar) -> None:
        def suspects() -> Named:
            yield from (("the loss", loss), ("the energy", self.energy))
            for name, view in zip(self.chain.buffer.names, self.chain.g_views, strict=True):
                yield f"the gradient of {name}", view

        total = self.chain.g.sum()
        if self.energy is not None:
            total = total + self.energy.sum()
        elif loss is not None:
            total = total + loss.sum()
        self.divergence.see(self.chain.steps, total, suspects, lr)


def refuse_shape(loss: Tensor, lead: tuple[int, ...]) -> None:
    """Raise ConfigError unless the closure returned one mean loss, or one per chain: shape `lead`."""
    if loss.shape != lead:
        wanted = f"the {lead[0]} mean losses, shape ({lead[0]},)" if lead else "one mean loss, shape ()"
        raise ConfigError(f"the closure must return {wanted}, got shape {tuple(loss.shape)}")
