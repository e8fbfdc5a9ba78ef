"""How a chain moves by one gradient a step; and what it has in common with kernels that take all the data."""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from bdl.errors import ConfigError
from bdl.samplers.batch_gradient import BatchGradient
from bdl.samplers.batch_noise import EVERY, WEIGHTS, BatchNoise
from bdl.samplers.batch_sizes import checked_items
from bdl.samplers.chain import Chain
from bdl.samplers.compiled.steps import CompiledSteps
from bdl.samplers.compiled.update import CompiledUpdate
from bdl.samplers.divergence import CHECK_EVERY
from bdl.samplers.dynamics.base import Scalar
from bdl.samplers.exchange import Replicas
from bdl.samplers.parallel import alike
from bdl.samplers.potential import BoundGradient, Closure, Evaluation, Launch, Potential
from bdl.samplers.settings import StepSettings
from bdl.samplers.weighting.reweighting import Reweighting
from bdl.samplers.whole_steps import LONGEST, GradientSteps, WalkBatches, WholeSteps

Walk = Callable[[Sequence[Tensor], Tensor, int, int], int]  # (gradients, losses, after, context): see `Gradient.walk`
READ = 2**20  # numbers that the gradients which a walk keeps for the batch noise have at most: 4 MiB
FEWEST = 2  # steps that are worth a walk
GENERAL_REMEDY = "set sampler.extras['{}'] to a function that returns it"
REMEDIES = {
    "per_example": "BayesianModule has them; in a plain loop set sampler.extras['per_example'] to a function that "
    "returns bdl.per_example_gradients(net, loss, x, y) of the batch",
    "noise_draws": "BayesianModule has them; in a plain loop set sampler.extras['noise_draws'] to a function that "
    "returns bdl.noise_draws(net, loss, x, y) of the batch",
    "curvature": "set sampler.extras['curvature'] to a function that returns the diagonal of the Hessian of U/N, or "
    "take a > 0 on a network",
}


@dataclass(eq=False)
class Moves(ABC):
    """The steps of a chain: one by one, or many in one call of compiled code, which is a walk.

    A step of a walk is the one that is made by itself in compiled code, to the bit, noise included.
    """

    chain: Chain
    potential: Potential
    batch_noise: BatchNoise
    replicas: Replicas | None

    compiled: CompiledSteps = field(init=False)  # says which steps it `takes`
    whole: WholeSteps = field(init=False)  # the same on a GPU

    def loss(self, closure: Closure | None, items: int | None) -> Tensor | None:
        """What has to be known of the batch before `step`: the loss of a closure that is called once.

        items: how many the batch holds; None where the host may know it.
        """
        return None

    @abstractmethod
    def step(self, closure: Closure | None, loss: Tensor | None, now: StepSettings, measure: bool) -> Tensor | None:
        """One step by autograd; returns the loss. loss: what `loss` has returned. measure: see `Sampler.step`."""

    @abstractmethod
    def advance(self, gradient: BoundGradient, now: StepSettings, measure: bool) -> Tensor:
        """One step by a gradient that needs no autograd; returns the () or (C,) losses."""

    def is_single(self, step: int) -> bool:
        """Whether no walk may make this step, because it does more than others. step: how many come before it."""
        return False

    def can_walk(self, settings: Sequence[StepSettings]) -> bool:
        """Whether compiled code or graphs make the update in each of the steps, and nothing else has a part in them."""
        if self.chain.steps == 0 or self.replicas is not None:
            return False  # the first step sees whether anything tells the chains apart
        if self.on_gpu:
            return self.whole.takes(settings)
        distinct = {id(now): now for now in settings}.values()
        return all(self.compiled.takes(self.potential.prior, self.potential.num_data, *now.pair) for now in distinct)

    @property
    def on_gpu(self) -> bool:
        return self.chain.theta.device.type == "cuda"

    @property
    def graphs(self) -> tuple[bool, bool]:
        """Whether CUDA graphs may hold the gradient, and whether in whole steps alone."""
        dynamics = self.chain.dynamics
        return dynamics.recordable or not dynamics.full_batch, dynamics.full_batch

    @property
    def longest(self) -> int:
        """How many steps a walk may have; 0 where one would not pay."""
        if self.on_gpu:
            return LONGEST
        steps = READ * EVERY // (len(WEIGHTS) * self.chain.theta.numel())  # so many gradients of EVERY are kept
        return steps if steps >= FEWEST else 0

    def walk(self, gradients: Walk | WalkBatches, settings: Sequence[StepSettings]) -> int:
        """Make the steps with these settings, for which `can_walk` holds. Returns how many were made."""
        if self.on_gpu:
            return self.whole.walk(cast(WalkBatches, gradients), settings)
        made = self.walk_in_c(cast(Walk, gradients), settings)
        if made:
            self.chain.note_walk(made)
        return made

    @abstractmethod
    def walk_in_c(self, gradients: Walk, settings: Sequence[StepSettings]) -> int:
        """Make the steps in compiled code; returns how many. The chain has still to count them."""

    def lr_and_tau(self, settings: Sequence[StepSettings]) -> list[tuple[float, float]]:
        """Of steps that have one lr and one T."""
        return [(now.lr, now.temperature / self.potential.num_data) for now in settings]  # type: ignore[misc]


@dataclass(eq=False)
class GradientMoves(Moves):
    """The steps of a `Dynamics`. extras: functions by name that return what it needs besides a gradient.

    What watches the steps is told of a walk after it: the estimate of the batch noise gets the gradients that it reads,
    and the watch over energies its losses. A walk ends before a step that is not finite; made by itself it says why.
    """

    reweighting: Reweighting
    evaluation: BatchGradient
    extras: Mapping[str, Callable[[], Tensor]]

    compiled: CompiledUpdate = field(init=False)

    def __post_init__(self) -> None:
        self.compiled, self.python = CompiledUpdate(self.chain), PythonUpdate(self.chain, self.potential)
        self.whole = GradientSteps(self.chain, self.potential, self.batch_noise, self.reweighting)

    def loss(self, closure: Closure | None, items: int | None) -> Tensor | None:
        sizes, told = self.potential.sizes, self.chain.host.items
        sizes.watches = items is None and told is None
        items = None if items is None else checked_items(items)
        loss = self.evaluation.loss(closure)
        items = told() if items is None and told is not None else items
        if items is None or (group := self.chain.host.group) is None:
            sizes.see(items)
        else:
            ranks = dist.get_world_size(group)
            sizes.see(ranks * alike(items, self.chain.theta.device, group), ranks)
        return loss

    def step(self, closure: Closure | None, loss: Tensor | None, now: StepSettings, measure: bool) -> Tensor | None:
        e = self.evaluation.evaluate(loss, self._measures(measure))
        self.move(e, now)
        return e.loss

    def advance(self, gradient: BoundGradient, now: StepSettings, measure: bool) -> Tensor:
        e = self.evaluation.evaluate_by(gradient, self._measures(measure))
        self.move(e, now, gradient.launch)
        return e.loss  # type: ignore[return-value]

    def move(self, e: Evaluation, now: StepSettings, launch: Launch | None = None) -> None:
        """One step from e: energy (C,), nats, and gradient (..., d) of the batch loss.

        launch: runs the kernels of a weighting, or of a swap, together.
        """
        chain, potential = self.chain, self.potential
        potential.accept(e, now.lr)
        self.batch_noise.observe(chain.steps, e.g)  # before prior, clipping and weighting, which bring no batch noise
        update = self._update(e, now)
        potential.complete(e, update.add_prior)  # e.g is the gradient of U/N, unless nobody but the update reads it
        if self.replicas is not None:
            self.replicas.swap(chain, potential, self.batch_noise, now, launch)
        multiplier = self.reweighting.weigh(e.g, e.energy, potential, now, update.scale, launch)  # (..., 1)
        chain.measure(chain.theta, e.g, e.idle, potential.num_data, potential.prior.offset)
        numbers = self.whole.numbers(now)
        step = update.step if numbers is None else self.whole.step
        lr, tau = numbers or chain.per_coordinate(now.lr, now.temperature, potential.num_data)
        chain.entropy = chain.dynamics.entropy(chain.state)
        alone = potential.idle.values(e.idle)
        z = update.noise(now.temperature)
        chain.advance(step(chain.state, e.g, lr, tau, z, *self._extra(multiplier)))
        potential.idle.put_back(alone)
        potential.renew_prior(now.temperature)

    def is_single(self, step: int) -> bool:
        return self.on_gpu and self.whole.room == 0

    def can_walk(self, settings: Sequence[StepSettings]) -> bool:
        in_graphs = self.on_gpu or self.potential.clip is None and not self._weighted
        return in_graphs and type(self.evaluation) is BatchGradient and super().can_walk(settings)

    def walk_in_c(self, gradients: Walk, settings: Sequence[StepSettings]) -> int:
        chain, steps = self.chain, len(settings)
        losses = chain.theta.new_empty(steps, chain.chains or 1)
        read = {k: torch.empty_like(chain.g) for k in range(steps) if self.batch_noise.reads(chain.steps + k)}
        seen = (ctypes.c_void_p * steps)(*(read[k].data_ptr() if k in read else None for k in range(steps)))
        if not self.compiled.prepare(self.lr_and_tau(settings), losses, seen):
            return 0
        made = gradients(chain.g_views, losses, self.compiled.after, self.compiled.address)
        for k, now in enumerate(settings[:made]):
            step = chain.steps + k
            if k in read:
                self.batch_noise.observe(step, read[k])
            if step % CHECK_EVERY == 0:
                self.potential.energy_watch.see(step, losses[k].view(chain.lead), now.lr)
        return made

    @property
    def _weighted(self) -> bool:
        return self.reweighting.weighting.needs_energy

    def _measures(self, asked: bool) -> bool:
        """Whether a step has to know its energy."""
        return asked or self.replicas is not None or self._weighted

    def _update(self, e: Evaluation, now: StepSettings) -> PythonUpdate | CompiledUpdate:
        """What makes the update: compiled code where it can, which adds the prior where nobody else reads that."""
        chain, potential = self.chain, self.potential
        if not self.compiled.takes(potential.prior, potential.num_data, *now.pair):
            return self.python
        read = e.idle or chain.measures_next or self.replicas is not None or potential.clip is not None
        self.compiled.at_once = not read
        return self.compiled

    def _extra(self, multiplier: Tensor | None) -> tuple[dict[str, Tensor], ...]:
        """The last argument of the dynamics' step, if it takes one. multiplier: (..., 1) by the weighting, or None."""
        names = self.chain.dynamics.needs
        if not names:
            return ()
        if not self.chain.dynamics.reads_extra(self.chain.state):
            return ({},)
        return ({name: self._quantity(name, multiplier) for name in names},)

    def _quantity(self, name: str, multiplier: Tensor | None) -> Tensor:
        """grad_var and prior_gradient come from the sampler itself, the others from `extras` and the host."""
        chain, theta = self.chain, self.chain.theta
        if name == "grad_var":
            v = self.batch_noise.variance
            v = torch.zeros_like(theta) if v is None else chain.host.of_one_batch(v)
            return v if multiplier is None else v * multiplier.square()  # Var(w g) = w² Var(g)
        if name == "prior_gradient":
            g = torch.zeros_like(theta)
            self.potential.prior.add_grad_(g, theta, self.potential.num_data)
            return g
        if name == "noise_draws" and chain.sees_all_data:
            return torch.zeros_like(theta).unsqueeze(-2)
        from_host = {"per_example": chain.host.per_example, "noise_draws": chain.host.noise_draws}
        source = self.extras.get(name, from_host.get(name))
        if source is None:
            remedy = REMEDIES.get(name, GENERAL_REMEDY.format(name))
            raise ConfigError(f"{type(chain.dynamics).__name__} needs {name}: {remedy}")
        with torch.enable_grad():
            value = source().detach()
        if multiplier is None or name == "per_example":
            return value
        return value * (multiplier.unsqueeze(-1) if name == "noise_draws" else multiplier)


@dataclass(eq=False)
class PythonUpdate:
    """The update by the dynamics itself; `CompiledUpdate` has the same functions."""

    chain: Chain
    potential: Potential

    def add_prior(self, g: Tensor) -> None:
        """Make g (..., d), the gradient of the mean loss, that of U/N."""
        self.potential.prior.add_grad_(g, self.chain.theta, self.potential.num_data)

    def scale(self, g: Tensor, multiplier: Tensor) -> None:
        """Multiply the gradient of U/N by (..., 1)."""
        g.mul_(multiplier)

    def noise(self, temperature: Scalar) -> Tensor:
        """z (..., n) for the step."""
        return self.chain.draw(temperature)

    def step(self, s: Any, g: Tensor, lr: Scalar, tau: Scalar, z: Tensor, *extra: Any) -> Any:
        return self.chain.dynamics.step(s, g, lr, tau, z, *extra)  # type: ignore[attr-defined]
