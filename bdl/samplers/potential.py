"""The potential U/N and its gradient, from the user's closure; and clipping of that gradient."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from bdl.devices import widest
from bdl.errors import ConfigError, DivergedError
from bdl.samplers.batch_sizes import BatchSizes
from bdl.samplers.chain import Chain
from bdl.samplers.clipping import Clip
from bdl.samplers.closures import Closures
from bdl.samplers.divergence import DivergenceWatch, EnergyWatch, Named, Survivors, refuse
from bdl.samplers.dynamics.base import Scalar
from bdl.samplers.given_gradients import GivenGradients
from bdl.samplers.idle import IdleParameters
from bdl.samplers.priors.base import Prior
from bdl.samplers.priors.learned import restore
from bdl.samplers.resume import Saved

Closure = Callable[[], Tensor]
# Runs the kernels of a function, (work, key, reads) -> its result: see `bdl.engine.graphs.Graphs.run`
Launch = Callable[[Callable[[], Any], Hashable, Sequence[object]], Any]


@dataclass
class BoundGradient:
    """The gradient of the mean losses of one batch, as `Sampler.advance` takes it."""

    write: Callable[[Sequence[Tensor]], Tensor]  # into tensors of the parameters' shapes; returns the () or (C,) losses
    idle: Callable[[], Sequence[int]] = tuple  # parameters for which `write` has just found no gradient, and written 0
    launch: Launch | None = None  # runs a step's kernels together, as a CUDA graph does

    @classmethod
    def of(cls, gradient: Any, x: Any, y: Tensor) -> BoundGradient:
        """A `bdl.engine.gradient.Gradient` on the batch (x, y)."""
        return cls(partial(gradient.write, x, y), lambda: gradient.idle, gradient.launch)


@dataclass
class Evaluation:
    """What one call of the closure says about the present θ."""

    loss: Tensor | None  # () or (C,) mean batch negative log-likelihood
    energy: Tensor | None  # (C,) batch estimate of U, nats; C = 1 without chains
    g: Tensor  # (..., d) gradient of the batch loss; of U/N once the prior is added
    idle: list[int]  # positions of the parameters that have no gradient
    total: Tensor  # () a sum that is not finite if the loss, the energy or the gradient is not


def refuse_shape(loss: Tensor, lead: Sequence[int]) -> None:
    """Raise ConfigError unless a closure has returned one mean loss for each chain, () without chains."""
    if loss.shape != tuple(lead):
        wanted = f"the {lead[0]} mean losses, shape ({lead[0]},)" if lead else "one mean loss, shape ()"
        raise ConfigError(f"the closure must return {wanted}, got shape {tuple(loss.shape)}")


def suspects(e: Evaluation, chain: Chain) -> Named:
    """What may have made the total of an evaluation infinite, with names."""
    yield from (("the loss", e.loss), ("the energy", e.energy))
    for name, view in zip(chain.buffer.names, chain.g_views, strict=True):
        yield f"the gradient of {name}", view


class Potential(Saved):
    """Energies and gradients of U = N loss - log prior. `energy` (C,) is that at the last gradient, nats, or None."""

    saved = ("energy",)

    def __init__(
        self,
        chain: Chain,
        prior: Prior,
        num_data: int,
        clip: Clip | None,
        needs_energy: str | None,
        survivors: Survivors,
    ):
        """needs_energy: name of the weighting that needs the energy of every step, or None."""
        self.survivors = survivors
        self.chain, self.num_data, self.clip = chain, num_data, clip
        self._given = prior
        self.start: Tensor | None = None  # (d,) the weights where the chains began, for a prior centred there
        self.needs_energy = needs_energy
        self.energy: Tensor | None = None
        self.idle = IdleParameters(chain)
        self.sizes = BatchSizes(num_data, chain.dynamics)
        self.closures, self.gradients = Closures(num_data, lambda: chain.buffer.params), GivenGradients(num_data)
        self.energy_watch = EnergyWatch(num_data)
        self.reset()
        if not prior.needs_start:
            self.prior = self._bound(chain.theta)

    @cached_property
    def prior(self) -> Prior:
        """The prior with its scale and its mean per coordinate. Its first use says where the chains began."""
        start = self.chain.theta.clone()
        prior = self._bound(start)
        self.start = start[0].clone() if self.chain.lead else start
        return prior

    def _bound(self, start: Tensor) -> Prior:
        buffer = self.chain.buffer
        return self._given.centred(buffer.names, buffer.shapes, start).bind(buffer.shapes, self.chain.theta)

    def loss(self, closure: Closure | None, of_batch: bool = True) -> Tensor | None:
        """() or (C,) the loss that the closure returns, of a batch or of all the data; it has back-propagated it."""
        loss: Any = None
        if closure is not None:
            host = self.chain.host
            loss = self.closures.call(closure, host.items is None or host.own_backward, host.changes_gradients)
        if loss is not None:
            loss = torch.as_tensor(loss)
            self.chain.watches_gradients = loss.requires_grad
            if loss.requires_grad and self.chain.has_old_gradients():
                raise ConfigError(
                    f"the closure has back-propagated nothing at step {self.chain.steps}: the gradients are those of "
                    "an earlier step; call loss.backward() in it"
                )
            if self.sizes.watches and of_batch:
                self.sizes.watch(loss)
            loss = loss.detach()
            refuse_shape(loss, self.chain.lead)
        elif self.needs_energy:
            cause = "call step(closure)" if closure is None else "the closure returned no loss"
            raise ConfigError(f"{self.needs_energy} needs the energy of every step: {cause}")
        else:
            self.gradients.see(self.chain.buffer.params, self.chain.host.changes_gradients)
        return loss

    def evaluate(self, loss: Tensor | None, idle: list[int], measure: bool = True, notes: bool = True) -> Evaluation:
        """The loss with its energy and its gradient, which is in chain.g already. measure: False skips the energy.

        notes: whether the watch for divergence counts the step here.
        A graph may hold its kernels: they depend neither on the step nor on its numbers, and never wait. `accept` has
        to follow. Ranks of a group stop together: what they share is in `total`, and not the loss of one's own batch.
        """
        self.idle.refuse(idle)
        if self.sizes.weight != 1:
            self.chain.g.mul_(self.sizes.weight)
        mean = None if loss is None or not self.chain.host.loss_is_whole else self.sizes.of_all(loss)
        energy = None if mean is None or not measure else self.energy_of(mean)
        total = self.chain.g.sum()
        if energy is not None:
            total = total + energy.sum()
        elif loss is not None and self.chain.host.group is None:
            total = total + loss.sum()
        if notes:
            self.divergence.note(total)
        return Evaluation(loss, energy, self.chain.g, idle, total)

    def evaluate_by(self, gradient: BoundGradient, measure: bool, reads: tuple[object, ...] = ()) -> Evaluation:
        """`evaluate` for a gradient that needs no autograd. reads: what its kernels read, beside θ and g."""
        self.sizes.see(None)

        def work() -> Evaluation:
            return self.evaluate(gradient.write(self.chain.g_views), list(gradient.idle()), measure)

        if gradient.launch is None:
            return work()
        reads = (self.chain.theta, self.chain.g, self.prior, self.divergence, *reads)
        e = gradient.launch(work, (measure, self.chain.host.loss_is_whole), reads)
        return replace(e, energy=None if e.energy is None else e.energy.clone())  # others keep it beyond this step

    def accept(self, e: Evaluation, lr: Scalar, steps: int = 1) -> None:
        """Make e's energy the present one. Raises DivergedError if e is not finite; on a GPU some steps later.

        steps: how many have been evaluated, of which e is the first.
        """
        if e.idle:
            self.idle.note(e.idle, e.loss)
        self.energy = e.energy
        try:
            self.divergence.see(self.chain.steps, e.total, partial(suspects, e, self.chain), lr, steps)
        except DivergedError as error:
            self._replace(error, e.loss, e.energy)
        self.energy_watch.see(self.chain.steps, e.loss, lr)

    def complete(self, e: Evaluation, add_prior: Callable[[Tensor], None]) -> None:
        """Make e.g the gradient of U/N, in place: add the prior's part by `add_prior`, then clip."""
        add_prior(e.g)
        self.idle.silence(e.idle)
        if self.clip is not None:
            self.clip(e.g)

    def renew_prior(self, temperature: Scalar) -> None:
        """Draw what the prior learns given θ, at T, a float or (C,)."""
        if self.prior.learns:
            self.prior.renew(self.chain.theta, temperature, self.chain.steps, self.chain.generator)

    def energy_of(self, loss: Tensor) -> Tensor:
        """(C,) U = N loss + prior energy, nats, in the widest type; C = 1 without chains. Averaged over `group`."""
        energy = loss.to(self._energy_type, copy=True).mul_(self.num_data)
        if (group := self.chain.host.group) is not None:
            dist.all_reduce(energy, group=group)  # every rank gets the same bits
            energy.div_(dist.get_world_size(group))
        return energy.add_(self.prior.energy(self.chain.theta)).view(-1)

    def full_energy(self, lr: Scalar) -> Tensor:
        """(C,) U over all the data at the present θ, nats."""
        if (full_loss := self.chain.host.full_loss) is None:
            raise ConfigError(
                "a full-data energy needs sampler.full_loss: set it to a function that returns the mean NLL of all data"
            )
        with torch.no_grad():
            energy = self.energy_of(full_loss())
        refuse(self.chain.steps, [("the full-data energy", energy)], lr)
        return energy

    @torch.no_grad()
    def batch_energy_at(self, theta: Tensor) -> Tensor:
        """(C,) estimate of U at theta (..., d) from the step's own batch, nats."""
        if (batch_loss := self.chain.host.batch_loss) is None:
            raise ConfigError(
                'energy="control" needs sampler.batch_loss: set it to a function that returns the mean NLL of the '
                "step's own batch, which BayesianModule does for batches that are not accumulated"
            )
        self.sizes.refuse_unequal('energy="control" compares energies of one batch')
        present = self.chain.theta.clone()
        try:
            self.chain.theta.copy_(theta)
            return self.energy_of(batch_loss())
        finally:
            self.chain.theta.copy_(present)

    @property
    def elbo(self) -> Tensor | None:
        """See `Sampler.elbo`."""
        entropy, energy = self.chain.entropy, self.energy
        if entropy is None or energy is None:
            return None
        constant = self.prior.constant(self.chain.theta.shape[-1])
        return self.chain.per_chain(entropy.reshape(-1) - energy - constant)

    def check(self, lr: Scalar) -> None:
        """Raise DivergedError, or drop chains, if a step so far or θ has numbers that are not finite. A device sync."""
        try:
            self.divergence.check(lr)  # first, because it knows the step
            refuse(self.chain.steps, [("a parameter", self.chain.theta)], lr)
        except DivergedError as error:
            self._replace(error)
        self.chain.stray.refuse(self.chain.dynamics, self.chain.steps)

    def _replace(self, error: DivergedError, *values: Tensor | None) -> None:
        """Let the survivors decide on a divergence. values: (C, ...), of the step that is being made."""
        self.survivors.replace(error, *values)
        self.sizes.forget()
        self.reset()

    def reset(self) -> None:
        """Forget which steps were bad: the chain starts from another state, or is on another device."""
        device = self.chain.theta.device
        self._energy_type = widest(device)
        self.divergence = DivergenceWatch(device, at_once=device.type == "cpu")

    def to(self, theta: Tensor) -> None:
        super().to(theta)
        if "prior" in vars(self):  # an unbound prior is bound at its first use, once the chains stand where they begin
            self.prior = self.prior.to(theta)

    def state_dict(self) -> dict[str, Any]:
        start = {} if self.start is None else {"start": self.start}
        drawn = {"precision": torch.cat(self.prior.learned(), -1)} if self._given.learns else {}
        sizes = self.sizes.state_dict()
        return {**super().state_dict(), "first_loss": self.energy_watch.first, "sizes": sizes, **start, **drawn}

    def load_state_dict(self, state: Mapping[str, Any], theta: Tensor) -> None:
        """Raises ConfigError if one prior is centred where its chains began, and the other is not."""
        start = state.get("start")
        if self.chain.steps > 0 and (start is not None) != self._given.needs_start:
            has, lacks = ("checkpoint", "sampler") if start is not None else ("sampler", "checkpoint")
            raise ConfigError(
                f'the prior of the {has} has mean="start", and that of the {lacks} has not: restore prior.mean, '
                "or start afresh"
            )
        super().load_state_dict(state, theta)
        self.energy_watch.first = state["first_loss"]
        self.sizes.load_state_dict(state.get("sizes", {}), theta)
        if start is not None:
            start = self.start = start.to(theta, copy=True)
            self.prior = self._bound(start)
        if self._given.learns or "precision" in state:
            restore(self.prior, state.get("precision"))
        self.reset()
