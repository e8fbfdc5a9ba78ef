"""Chains of a Sampler on a target: a bare loop without networks and without Lightning."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bdl.errors import ConfigError
from bdl.samplers.dynamics.base import Scalar, Transition
from bdl.samplers.priors.independent import Uniform
from bdl.samplers.sampler import Sampler
from bdl.samplers.weighting.base import Flat, Weighting
from bdl.seeding import generator
from literature.targets.base import cast, curvature, value_and_grad


class Chains:
    """C chains of one sampler on a target, all steps on one (C, d) array.

    Args:
        target: anything with `dim` and `energy`. Its `energy_and_grad`, or for data `num_data` and `loss_and_grad`, are
            used if it has them (see `literature.targets.base`).
        dynamics, lr, temperature, weighting, sampler_options: see `bdl.Sampler`. With num_data = 1 (no data) lr is
            the canonical step: θ <- θ - lr ∇U + sqrt(2 lr T) z for SGLD.
        start: (C, d); the run takes its dtype and device.
        gradient_noise: standard deviation, a number or (d,), of normal noise added to ∇U at every evaluation.
        batch: items in a mini-batch of a target with data, drawn with replacement for every chain and evaluation.
        box: (low, high), numbers or (d,). A chain that leaves it returns to where the step began, as in the authors'
            code of AWSGLD. For dynamics without momentum: the box does not reset a momentum.
        seed: names three random streams: injected noise, gradient noise and batches.

    `theta` is the present (C, d) state, a view; `gradients` counts the evaluations of the gradient per chain. The
    sampler's extras `curvature` and, for data, `per_example` serve the dynamics that need them.

    >>> import bdl
    >>> from literature.targets import Chains, GaussianLaw
    >>> law = GaussianLaw([0.0], [[4.0]])
    >>> chains = Chains(law, bdl.SGLD(), torch.zeros(1000, 1), lr=0.1)
    >>> samples = chains.run(steps=100, every=10, burn_in=500)
    >>> samples.shape  # kept states, chains, coordinates
    torch.Size([10, 1000, 1])
    >>> bool(3.5 < samples.var() < 4.5)  # the variance of the law is 4
    True
    """

    def __init__(
        self, target: Any, dynamics: Transition, start: Tensor, *, lr: Scalar, temperature: Scalar = 1.0,
        weighting: Weighting = Flat(), seed: int = 0, gradient_noise: float | Tensor | None = None,
        batch: int | None = None, box: tuple[Any, Any] | None = None, **sampler_options: Any,
    ):  # fmt: skip
        num_data = getattr(target, "num_data", None)
        self._theta = start.detach().clone().requires_grad_()
        self.sampler = Sampler(
            [self._theta], dynamics, num_data=num_data or 1, prior=Uniform(), lr=lr, temperature=temperature,
            weighting=weighting, chains=len(start), seed=seed, **sampler_options,
        )  # fmt: skip
        self.theta = self._theta.detach()  # shares the sampler's memory
        self.target = cast(target, self.theta)
        self.gradients = 0
        self._theta.grad = self._grad = torch.zeros_like(self.theta)
        self._function = _loss_and_grad(self.target, num_data)
        self._batch = None if batch is None else torch.empty(len(start), batch, dtype=torch.long, device=start.device)
        self._indices = generator(start.device, "batches", seed)
        self._noise = generator(start.device, "gradient noise", seed)
        self._std = None if gradient_noise is None else self._like(gradient_noise) / self.sampler.num_data
        self._z = torch.empty_like(self.theta)
        self._box = None if box is None else [self._like(edge) for edge in box]
        self._before = torch.empty_like(self.theta)
        if self._box is not None and bool(self._outside().any()):
            raise ConfigError(f"start must lie in the box {box}: draw it there")
        self._serve(per_example=num_data is not None)

    def _like(self, value: Any) -> Tensor:
        return torch.as_tensor(value).to(self.theta)

    def _serve(self, per_example: bool) -> None:
        """Give the sampler what some dynamics and weightings need: the full loss, curvatures, gradients per example."""
        self.sampler.full_loss = lambda: self._function(self.theta)[0]
        self.sampler.extras["curvature"] = lambda: curvature(self.target, self.theta) / self.sampler.num_data
        if per_example:
            self.sampler.extras["per_example"] = self._per_example

    def closure(self) -> Tensor:
        """Set the gradient of U/N at the present state, on a new batch and with new noise; return the loss U/N (C,)."""
        self.gradients += 1
        if self._batch is None:
            loss, grad = self._function(self.theta)
        else:
            self._batch.random_(0, self.sampler.num_data, generator=self._indices)
            loss, grad = self._function(self.theta, self._batch)
        if self._std is None:
            self._grad.copy_(grad)
        else:
            torch.addcmul(grad, self._z.normal_(generator=self._noise), self._std, out=self._grad)
        if self._theta.grad is not self._grad:  # an accept/reject step has called zero_grad
            self._theta.grad = self._grad
        return loss

    def step(self) -> None:
        """One step of every chain; a chain that leaves the box returns."""
        if self._box is None:
            self.sampler.step(self.closure)
            return
        self._before.copy_(self.theta)
        self.sampler.step(self.closure)
        self.theta.copy_(torch.where(self._outside(), self._before, self.theta))

    def run(self, steps: int, every: int = 1, burn_in: int = 0) -> Tensor:
        """Run `burn_in` steps, then `steps` more, and keep every `every`-th of these: (steps // every, C, d)."""
        for _ in range(burn_in):
            self.step()
        kept = self.theta.new_empty(steps // every, *self.theta.shape)
        for i in range(len(kept)):
            for _ in range(every):
                self.step()
            kept[i] = self.theta
        for _ in range(steps % every):
            self.step()
        return kept

    def _per_example(self) -> Tensor:
        """(C, B, d) gradient of every item of the last batch, each with 1/N of the prior's gradient."""
        chains, n = len(self.theta), self.sampler.num_data
        index = torch.arange(n, device=self.theta.device).expand(chains, n) if self._batch is None else self._batch
        theta = self.theta.unsqueeze(1).expand(-1, index.shape[1], -1)
        return self._function(theta, index.unsqueeze(-1))[1]

    def _outside(self) -> Tensor:
        """(C, 1) whether the chain has left its box."""
        low, high = self._box  # type: ignore[misc]
        return ((self.theta < low) | (self.theta > high)).any(-1, keepdim=True)


def _loss_and_grad(target: Any, num_data: int | None) -> Callable[..., tuple[Tensor, Tensor]]:
    """x -> (loss U/N, its gradient): the target's own function if it has one, otherwise by autograd."""
    if num_data is not None:
        return getattr(target, "loss_and_grad", None) or (
            lambda x, index=None: value_and_grad(lambda y: target.loss(y, index), x)
        )
    return getattr(target, "energy_and_grad", None) or (lambda x: value_and_grad(target.energy, x))
