"""The largest curvature of U/N where the chains are, by power iteration."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from bdl.batch import map_tensors
from bdl.likelihoods import mean_loss
from bdl.seeding import generator
from bdl.tune.trial import Trial
from bdl.tune.work import curvature_rows

CURVATURE_ITEMS = 1024  # items whose loss is differentiated twice; fewer where that costs more than a trial
FIRST, NEXT = 10, 3  # products of the Hessian with a vector, which come within 10 % where the largest stands apart
CALLS = 6  # calls of one trial


class Curvature:
    """Keeps the directions of the last call, so that they follow the stiffest directions of moving chains."""

    def __init__(self, trial: Trial):
        self.params = [p for p in trial.stack.parameters() if p.requires_grad]
        stream = generator("cpu", "curvature", trial.problem.seed)
        self.directions = [torch.randn(p.shape, generator=stream).to(p) for p in self.params]
        x, y = trial.problem.items
        self.products = FIRST
        count = curvature_rows(trial.problem, FIRST + (CALLS - 1) * NEXT, most=min(CURVATURE_ITEMS, len(y)))
        rows = torch.linspace(0, len(y) - 1, count, device=y.device).long()
        c = trial.stack.chains
        self.x = map_tensors(lambda t: t[rows].expand(c, *[-1] * t.ndim), x)
        self.y = y[rows].expand(c, *[-1] * y.ndim)

    def __call__(self, trial: Trial) -> Tensor:
        """(C,) |largest eigenvalue| of the Hessian of U/N, prior included, double."""
        # the fused kernels of attention have no second derivative
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
            losses = mean_loss(trial.problem.loss, trial.stack(self.x), self.y, trial.stack.chains)
            gradients = torch.autograd.grad(losses.sum(), self.params, create_graph=True)
            for _ in range(self.products):
                sizes = _norms(self.directions)
                self.directions = [v / _like(sizes, v) for v in self.directions]
                products = torch.autograd.grad(gradients, self.params, self.directions, retain_graph=True)
                self.directions = [h.detach() for h in products]
        self.products = NEXT
        return _norms(self.directions) + self._of_prior(trial)

    def _of_prior(self, trial: Trial) -> float:
        """The largest curvature of the prior energy over N, where it is Gaussian; 0 for others, which are flat."""
        precision = getattr(trial.sampler.prior, "precision", 0.0)
        largest = float(precision.max()) if isinstance(precision, Tensor) else float(precision)
        return largest / trial.problem.num_data


def _norms(vectors: list[Tensor]) -> Tensor:
    """(C,) Euclidean norms over all tensors (C, ...), double; at least the smallest positive number."""
    square = sum(v.double().reshape(len(v), -1).square().sum(1) for v in vectors)
    return torch.as_tensor(square).sqrt().clamp_min(math.sqrt(torch.finfo(torch.float32).tiny))


def _like(sizes: Tensor, v: Tensor) -> Tensor:
    return sizes.to(v).view(-1, *[1] * (v.ndim - 1))
