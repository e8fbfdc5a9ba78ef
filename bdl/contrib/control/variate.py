"""Control variates for the gradients of mini-batches: differences to the gradient at an anchor, where all is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import lightning as L
import torch
import torch.distributed as dist
from torch import Tensor

from bdl.contrib.control.check import check_control
from bdl.errors import ConfigError
from bdl.samplers.batch_gradient import BatchGradient
from bdl.samplers.batch_noise import EVERY, KEEP, BatchNoise
from bdl.samplers.chain import Chain
from bdl.samplers.dynamics.base import Transition, mean
from bdl.samplers.estimator import GradientEstimator
from bdl.samplers.potential import BoundGradient, Closure, Evaluation, Potential
from bdl.samplers.weighting.base import Weighting

PASSES = 2  # passes over the data between two anchors; the gradient at an anchor then adds half of a batch to a step
RANDOM = 0.01  # relative difference of two gradients of one batch at one θ that rounding does not make


@dataclass(frozen=True)
class ControlVariate(GradientEstimator):
    """Gradients of batches with a control variate, for any dynamics that moves by gradients.

        g(θ) = g_N(φ) + g_B(θ) - g_B(φ)

    g_B is the gradient of the mean loss over the batch B, g_N that over all the data, and φ the anchor of a chain. The
    estimate is unbiased for every φ that does not depend on B, and the target distribution stays as it is. Its variance
    grows with the square of |θ - φ|, where the variance of g_B itself has a part that does not vanish at the mode. The
    batch energies are estimated in the same way.

    A chain takes its first state as the anchor, and its present state every `every` steps. An `every` beyond the end of
    the run keeps the first one: with the mode as the start that is SGLD-CV (Baker et al. 2019). Renewed anchors are
    as in SVRG-LD (Dubey et al. 2016), here for every dynamics.

    A step costs two gradients of a batch instead of one, and the gradient over all the data once every `every` steps.
    It holds 16 bytes a parameter more in float32: the anchor, its gradient, and two vectors while a step is made. A
    checkpoint holds the first two.

    The gradient over all the data comes from `Sampler.full_gradient`, which BayesianModule sets.

    Args:
        every: steps from one anchor to the next. None: as many as two passes over the data have, which the training
            loader tells; the gradient over all the data then adds half of a batch's cost to each step.

    Raises ConfigError for an `every` below 1.
    """

    every: int | None = None

    def __post_init__(self) -> None:
        if self.every is not None and not self.every >= 1:
            raise ConfigError(f"every must be at least 1 step, or null for {PASSES} passes, got {self.every}")

    def refuse(self, dynamics: Transition, weighting: Weighting) -> None:
        name = type(dynamics).__name__
        if dynamics.full_batch:
            raise ConfigError(f"{name} evaluates all the data, which have no batch noise: leave gradient null")
        if dynamics.variational:
            why = "takes gradients at new draws, which are far from any anchor"
            raise ConfigError(f"{name} {why}: leave gradient null")
        if dynamics.needs & {"per_example", "noise_draws"}:
            raise ConfigError(f"{name} measures batch noise by a batch alone, without its anchor: leave gradient null")
        if weighting.energy == "control":
            raise ConfigError('gradient=control serves batch energies, too: set the energy of the weighting to "batch"')

    def check_trainer(self, trainer: L.Trainer) -> None:
        check_control(trainer)

    def evaluation(self, potential: Potential, follow: Callable[[], None]) -> ControlledGradient:
        return ControlledGradient(potential, self, follow)


class ControlledGradient(BatchGradient):
    """Evaluates a step's batch with a control variate. Each chain of a stack has its own anchor.

    Attributes:
        anchor: (..., d) φ, or None before the first step.
        gradient: (..., d) gradient at φ of the mean loss over all the data.
        loss_there: () or (C,) that loss.
        anchored_at: the step at which the chains were at φ.
        plain: (...) variance of a batch's gradient at φ: a mean over coordinates, and a running mean over steps.
        count: steps in that mean.
    """

    saved = ("anchor", "gradient", "loss_there", "plain", "anchored_at", "count")

    def __init__(self, potential: Potential, control: ControlVariate, follow: Callable[[], None]):
        """follow: lets all pieces of the sampler follow parameters that something has moved."""
        super().__init__(potential)
        self.chain: Chain = potential.chain
        self.control, self._follow = control, follow
        self.anchor: Tensor | None = None
        self.gradient: Tensor | None = None
        self.loss_there: Tensor | None = None
        self.plain: Tensor | None = None
        self.anchored_at = -1
        self.count = 0
        self._scratch: tuple[Tensor, Tensor] | None = None  # (..., d) θ during a step; g_N(φ) - g_B(φ)
        self._loss_difference: Tensor | None = None  # what `loss` has found for `evaluate`

    @property
    def acts(self) -> bool:
        """False where every batch holds all the data: its gradient is g_N(θ), and the anchor's part is 0."""
        return not self.chain.host.sees_all_data

    def loss(self, closure: Closure | None) -> Tensor | None:
        """() or (C,) the loss of the batch at θ. The closure is called at the anchor first."""
        if not self.acts:
            return super().loss(closure)
        if closure is None:
            raise ConfigError("gradient=control evaluates each batch twice: call step(closure)")
        self._follow()
        self._renew_when_due()
        self._loss_difference = self._at_anchor(lambda: (self._loss_of(closure), self.chain.gather()))
        return self._loss_of(closure)

    def evaluate(self, loss: Tensor | None, measure: bool) -> Evaluation:
        if not self.acts:
            return super().evaluate(loss, measure)
        assert loss is not None and self._loss_difference is not None
        idle = self.chain.gather()
        evaluation = self.potential.evaluate(self._add(loss, self._loss_difference), idle, measure)
        self._observe()
        return evaluation

    def evaluate_by(self, gradient: BoundGradient, measure: bool) -> Evaluation:
        if not self.acts:
            return super().evaluate_by(gradient, measure)

        def controlled(out: Any) -> Tensor:
            difference = self._at_anchor(lambda: (gradient.write(out), list(gradient.idle())))
            return self._add(gradient.write(out), difference)

        self._renew_when_due()
        reads = (self.anchor, self.gradient, self.loss_there, self._scratch)
        evaluation = self.potential.evaluate_by(replace(gradient, write=controlled), measure, reads)
        self._observe()
        return evaluation

    @property
    def every(self) -> int:
        """Steps from one anchor to the next."""
        if self.control.every is not None:
            return self.control.every
        if (batches := self.chain.host.batches) is None:
            raise ConfigError(
                "gradient=control does not know how many batches the data have: give the steps between two anchors, "
                f"gradient=bdl.ControlVariate(every=...), such as {PASSES} N / batch size"
            )
        return PASSES * batches

    @property
    def cost(self) -> float:
        """Gradients of a batch that a step takes, with the share of gradients at the anchors; NaN where unknown."""
        batches = self.chain.host.batches
        return math.nan if batches is None else 2 + batches / self.every

    def explain(self, batch_noise: BatchNoise) -> list[str]:
        if not self.acts:
            return ["control variate: none, since every batch holds all the data"]
        if self.plain is None or (variance := batch_noise.variance) is None:
            return ["control variate: what it takes from the variance of the gradient is not measured yet"]
        share, cost = self.chain.host.noise_share, self.cost
        ratio = mean(share * variance.mean(-1) / self.plain)
        takes = "" if math.isnan(cost) else f"; a step takes {cost:.3g} gradients of a batch"
        line = (
            f"control variate: batches give the gradient {ratio:.3g} of the variance that they have without it{takes}; "
            f"anchor of step {self.anchored_at:,}, renewed every {self.every:,} steps"
        )
        if ratio > 1 / (2 if math.isnan(cost) else cost):
            line += "; a larger batch at the same cost gives less: set sampler.gradient=null, or a smaller `every`"
        return [line]

    def load_state_dict(self, state: Mapping[str, Any], theta: Tensor) -> None:
        super().load_state_dict(state, theta)
        if self.anchor is not None and self.gradient is not None:
            self.anchor, self.gradient = self.anchor.to(theta), self.gradient.to(theta)
        self.plain = None if self.plain is None else self.plain.to(theta)
        self._scratch = None
        self._let_follow()

    # ---- the parts of a step ----

    def _loss_of(self, closure: Closure, of_batch: bool = True) -> Tensor:
        loss = self.potential.loss(closure, of_batch)
        if loss is None or not self.chain.host.loss_is_whole:
            raise ConfigError("gradient=control needs a closure that returns the mean loss of the whole batch")
        return loss

    def _renew_when_due(self) -> None:
        """Make the present θ the anchor, at the first step and every `every` steps.

        Batch noise is estimated from three steps each, around the steps 1, 21, 41, ... These see anchors of the ages
        k gcd(20, every) + s. The middle of that interval as s makes their mean that over all ages.
        """
        shared, steps = math.gcd(EVERY, self.every), self.chain.steps
        if self.anchor is None or steps >= self.every and steps % self.every == (1 - shared // 2) % shared:
            self._renew()
        if self._scratch is None:
            self._scratch = torch.empty_like(self.chain.theta), torch.empty_like(self.chain.theta)

    def _renew(self) -> None:
        chain = self.chain
        loss, gradient = self._over_all_data()
        if self.anchor is None or self.gradient is None or self.loss_there is None:
            self.anchor, self.gradient, self.loss_there = chain.theta.clone(), gradient, loss
            self._let_follow()
        else:  # recorded kernels read these tensors, so they are written in place
            for mine, new in ((self.anchor, chain.theta), (self.gradient, gradient), (self.loss_there, loss)):
                mine.copy_(new)
        self.anchored_at = chain.steps

    def _over_all_data(self) -> tuple[Tensor, Tensor]:
        """() or (C,) loss over all the data at the present θ, and its gradient (..., d)."""
        chain, host = self.chain, self.chain.host
        if host.full_gradient is None:
            raise ConfigError(
                "gradient=control needs the gradient over all the data: set sampler.full_gradient to a function that "
                "back-propagates the mean loss of all the data and returns it"
            )
        loss = self._loss_of(host.full_gradient, of_batch=False).clone()
        self.potential.idle.silence(chain.gather())
        gradient = chain.g.clone()
        if host.group is not None:
            for total in (loss, gradient):
                dist.all_reduce(total, group=host.group)
                total.div_(dist.get_world_size(host.group))
        return loss, gradient

    def _at_anchor(self, at_theta: Callable[[], tuple[Tensor, list[int]]]) -> Tensor:
        """() or (C,) the loss over all the data less the batch's, at φ; the gradients' difference goes to _scratch.

        at_theta: evaluates the batch at the present θ. A graph may hold the kernels.
        """
        assert self.anchor is not None and self.gradient is not None and self.loss_there is not None
        assert self._scratch is not None
        chain, (present, difference) = self.chain, self._scratch
        present.copy_(chain.theta)
        try:
            chain.theta.copy_(self.anchor)
            loss, idle = at_theta()
            self.potential.idle.silence(idle)
            torch.sub(self.gradient, chain.g, out=difference)
            return self.loss_there - loss  # before the next call, which may write into the same tensor
        finally:
            chain.theta.copy_(present)

    def _add(self, loss: Tensor, difference: Tensor) -> Tensor:
        """Add what `_at_anchor` has found to the gradient in chain.g; returns its sum with the loss."""
        assert self._scratch is not None
        self.chain.g.add_(self._scratch[1])
        return loss + difference

    def _observe(self) -> None:
        """Follow what the variance would be without the anchor: g_B(φ) - g_N(φ) is an error of a batch's gradient."""
        assert self._scratch is not None
        chain, difference = self.chain, self._scratch[1]
        if self.anchored_at == chain.steps:
            self._refuse_random(difference)
        if BatchNoise.reads(chain.steps):
            square = difference.square().mean(-1)
            self.count += 1
            if self.plain is None:
                self.plain = square
                self._let_follow()
            else:
                self.plain.lerp_(square, max(1 - KEEP, 1 / self.count))

    def _refuse_random(self, difference: Tensor) -> None:
        """Raise ConfigError if the batch has two gradients at one θ, which is the anchor. A device sync."""
        assert self.gradient is not None
        norm = torch.linalg.vector_norm
        usual = norm(self.gradient) + norm(self.gradient - difference)  # the norms for all the data and for the batch
        if bool(norm(self.chain.g - self.gradient) > RANDOM * usual):
            raise ConfigError(
                f"gradient=control subtracts two gradients of one batch, and at step {self.chain.steps} they differ at "
                "the same θ: the loss is random, as dropout makes it, or the closure draws another batch; remove that, "
                "or set sampler.gradient=null"
            )

    def _let_follow(self) -> None:
        """Let what belongs to a chain's state go where that state goes, when chains swap or one replaces another."""
        found = (self.anchor, self.gradient, self.loss_there, self.plain)
        self.chain.companions = tuple(t for t in found if t is not None and t.ndim > 0) if self.chain.lead else ()
