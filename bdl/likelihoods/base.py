"""What every likelihood knows: its outputs, its law, its losses, and which targets it takes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, NegativeBinomial, Normal

from bdl.errors import ConfigError
from bdl.torch_private import note_nll

Loss = Callable[[Tensor, Tensor], Tensor]  # (outputs, y) -> losses per item, or their mean over the batch
Outputs = Literal["logits", "labels", "values", "unknown"]


def _noting(losses_of: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The same function, whose losses autograd's graph knows, so that a sampler sees sums and multiples of them."""

    @functools.wraps(losses_of)
    def losses(self: Any, outputs: Tensor, y: Tensor) -> Tensor:
        of_items = losses_of(self, outputs, y)
        note_nll(of_items)
        return of_items

    return losses


class Likelihood:
    """A law of y given the network's outputs, and its negative log density per item, in nats.

    It allows any leading axes, such as chains. A new likelihood states `outputs` and `distribution`; everything else
    follows. Concrete likelihoods are frozen dataclasses.

    `outputs` says what the network's outputs are: "logits" (softmax gives the probabilities of K classes), "labels"
    (each of k labels has probabilities of its own, such as the sigmoid of each output), "values" (the parameters of a
    law of k numbers) or "unknown". `per_target` is the number of outputs for each of the k targets. Where there are
    several, the k outputs of the first parameter come first.
    """

    outputs: ClassVar[Outputs] = "unknown"
    counts: ClassVar[bool] = False  # whether y is 0, 1, 2, ...

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__call__" in vars(cls) and cls.__module__.startswith("bdl."):  # runs record the code of others
            cls.__call__ = _noting(vars(cls)["__call__"])

    @property
    def per_target(self) -> int:
        return 1

    def distribution(self, outputs: Tensor) -> Distribution:
        """The law of y for outputs (..., B, K): batch shape (..., B), event shape () for classes and else (k,).

        Raises ConfigError for a likelihood that gives a loss alone.
        """
        raise ConfigError(
            f"{type(self).__name__} does not say which distribution it stands for: define distribution(outputs), a "
            "torch.distributions object, to predict with it"
        )

    @_noting
    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        """(..., B) losses of the items, in nats, from outputs (..., B, K) and targets y (..., B) or (..., B, k)."""
        law = self.distribution(outputs)
        y = as_columns(y, torch.Size((*law.batch_shape, *law.event_shape)))
        return -law.log_prob(y.to(outputs.dtype))  # integers would make float32 of their lgamma

    def mean_and_gradient(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """(...,) mean losses over the batch, and the gradient (..., B, K) of each with respect to its outputs."""
        return by_autograd(lambda outputs: self(outputs, y).mean(-1), outputs)

    def num_outputs(self, targets: int) -> int:
        """How many outputs a network needs for k targets, or for K classes."""
        return targets * self.per_target

    def num_targets(self, outputs: int) -> int:
        """How many targets a network with that many outputs predicts; for classes, K.

        Raises ConfigError if the outputs cannot be divided among targets.
        """
        if outputs % self.per_target:
            raise ConfigError(
                f"{type(self).__name__} needs {self.per_target} outputs for each target, and the network has {outputs}"
            )
        return outputs // self.per_target

    def arranged(self, outputs: Tensor) -> Tensor:
        """The outputs with the K numbers of an element on the last axis, where `distribution` reads them."""
        return outputs

    def rows(self, outputs: Tensor) -> Tensor:
        """(s, n, K) from the outputs (s, n, ..., K) of s networks: each element, such as a token, is a row.

        Raises ConfigError for numbers, whose outputs must be (s, n, K).
        """
        outputs = self.arranged(outputs)
        if outputs.ndim <= 3:
            return outputs
        if self.outputs == "values":
            raise ConfigError(
                f"outputs of shape {tuple(outputs.shape[1:])} under {self} are no numbers of items (n, K): flatten "
                "the elements of an item to K; posterior.moments(x) takes any shape"
            )
        return outputs.flatten(1, -2)

    def of_rows(self) -> Likelihood:
        """The same law for outputs that `rows` has arranged."""
        return self

    @property
    def unweighted(self) -> Likelihood:
        """The law of one row, whatever its weight."""
        return self

    def split(self, y: Tensor) -> tuple[Tensor, Tensor | None]:
        """The targets by themselves, and the weights (..., B) of their rows; None for 1 each."""
        return y, None

    def counted(self, y: Tensor) -> Tensor | None:
        """Which targets count, as booleans of the shape of y; None for all."""
        return None

    def marginals(self, outputs: Tensor) -> Distribution:
        """The law of each of the k targets: batch shape (..., B, k). For classes it is the distribution itself."""
        law = self.distribution(outputs)
        return law.base_dist if isinstance(law, Independent) else law

    def mean(self, outputs: Tensor) -> Tensor:
        """(..., B, k) expected values of the targets."""
        return self.marginals(outputs).mean

    def variance(self, outputs: Tensor) -> Tensor:
        """(..., B, k) variances of the targets around their means."""
        return self.marginals(outputs).variance

    def log_density(self, outputs: Tensor, y: Tensor) -> Tensor:
        """(..., B, k) log densities, or log probabilities, of each target y (..., B, k) by itself, in nats."""
        return self.marginals(outputs).log_prob(y)

    def seen_log_density(self, outputs: Tensor, y: Tensor, seen: Tensor) -> Tensor:
        """(..., B) log densities of the targets (..., B, k) that were seen, in nats; y is 0 where they were not.

        Here the targets of an item are independent, given the outputs.
        """
        return torch.where(seen, self.log_density(outputs, y), 0).sum(-1)

    def cdf(self, outputs: Tensor, y: Tensor) -> Tensor:
        """(..., B, k) probabilities that each target is at most y (..., B, k).

        Raises ConfigError for a law without one in torch.distributions.
        """
        try:
            return self.marginals(outputs).cdf(y)
        except NotImplementedError as error:
            raise ConfigError(
                f"{type(self).__name__} has no distribution function: define cdf(outputs, y) for quantiles and "
                "intervals"
            ) from error

    @property
    def has_masses(self) -> bool:
        """Whether single values have a probability of their own."""
        return self.counts

    @property
    def bounds(self) -> tuple[float, float]:
        """The smallest and the largest value that y can have."""
        return (0.0 if self.counts else -math.inf), math.inf

    def has_density(self, y: Tensor) -> Tensor:
        """Whether the law has a density at values y, which has units, and no probability."""
        return torch.full_like(y, not self.counts, dtype=torch.bool)

    def mass(self, outputs: Tensor, y: Tensor) -> Tensor:
        """(..., B, k) probabilities that each target is exactly y (..., B, k): the jumps of `cdf`."""
        if not self.counts:
            return torch.zeros_like(self.log_density(outputs, y))
        return self.cdf(outputs, y) - self.cdf(outputs, y - 1)

    def constant(self, y: Tensor) -> Distribution:
        """The law of targets y (n, k) for all items alike, by their moments: batch shape (k,).

        It is what predictions are compared with: normal, or for counts negative binomial.
        """
        mean, variance = moments_of(y)
        if not self.counts:
            return Normal(mean, variance.sqrt())
        mean = mean.clamp_min(torch.finfo(y.dtype).tiny)
        excess = (variance - mean).clamp_min(1e-6 * mean)  # hardly more than the mean: Poisson
        return NegativeBinomial(mean.square() / excess, probs=excess / (mean + excess))

    def check_items(self, y: Tensor, outputs: int | None = None) -> None:
        """Raise ConfigError as `check` does, for the targets (n, ...) of items that may have several elements each."""
        counted = self.counted(y) if y.ndim > 1 and y.shape[1] > 1 else None
        self.check(y if counted is None else y[counted], outputs)

    def check(self, y: Tensor, outputs: int | None = None) -> None:
        """Raise ConfigError, in one line, for targets (n,) or (n, k) outside the domain of the law.

        outputs: those of the network, where they are known, to compare the number of targets or classes with.
        """
        if outputs is not None:
            targets = self.num_targets(outputs)
            if (y.shape[1] if y.ndim > 1 else 1) != targets or y.ndim > 2:
                raise ConfigError(
                    f"y has shape {tuple(y.shape)}, and a network with {outputs} outputs predicts {targets} "
                    f"target{'s' if targets > 1 else ''} under {type(self).__name__}: change y or the outputs"
                )
        refuse_targets(~y.isfinite(), y, "not finite", "drop these rows or fill them")
        if self.counts:
            refuse_targets(
                (y < 0) | (y != y.floor()), y, "no counts 0, 1, 2, ...", f"{type(self).__name__} takes counts only"
            )


def halves(likelihood: Likelihood, outputs: Tensor) -> tuple[Tensor, Tensor]:
    """The two numbers (..., k) of each target, in outputs (..., 2k). Raises ConfigError for an odd width."""
    if outputs.shape[-1] % 2:
        what = f"2 outputs for each target, and the network has {outputs.shape[-1]}"
        raise ConfigError(f"{type(likelihood).__name__} takes {what}: give its last layer 2 for one target")
    first, second = outputs.chunk(2, -1)
    return first, second


def as_columns(y: Tensor, shape: torch.Size) -> Tensor:
    """Targets y, where (..., B) may stand for (..., B, 1). Raises ConfigError if y does not fit the shape.

    Without this check y (B,) and outputs (B, 1) would broadcast to B x B pairs.
    """
    if shape[-1] == 1 and y.shape == shape[:-1]:  # first: one item (1,) is not the targets of every item
        return y.unsqueeze(-1)
    if y.ndim <= len(shape) and y.shape == shape[len(shape) - y.ndim :]:
        return y
    raise ConfigError(
        f"targets of shape {tuple(y.shape)} do not fit the network, which predicts targets of shape {tuple(shape)}: "
        "give y one column for each"
    )


def moments_of(y: Tensor) -> tuple[Tensor, Tensor]:
    """(k,) means and variances of targets y (n, k); NaN stands for one that is missing."""
    mean = y.nanmean(0)
    return mean, (y - mean).square().nanmean(0).clamp_min(torch.finfo(y.dtype).tiny)


def refuse_targets(wrong: Tensor, y: Tensor, what: str, remedy: str) -> None:
    """Raise ConfigError if any entry of `wrong` is True; it names how many, and the first."""
    if bool(wrong.any()):
        first = wrong.flatten(1).any(1).nonzero()[0] if wrong.ndim > 1 else wrong.nonzero()[0]
        value = y[wrong].flatten()[0].item()
        raise ConfigError(
            f"y has {int(wrong.sum()):,} of {y.numel():,} values that are {what}; the first is {value:g} in row "
            f"{int(first)}: {remedy}"
        )


def mean_loss(loss: Loss, outputs: Tensor, y: Tensor, chains: int | None) -> Tensor:
    """() mean loss of the batch, or (C,) mean losses per chain. Outputs and y lead with C if chains is given.

    Where an item has several elements, such as the tokens of a text or the pixels of an image, it is their mean: all
    elements together count as one observation, as in torch's own losses.
    """
    if not isinstance(loss, Likelihood):
        if chains is None:
            return loss(outputs, y)
        return torch.stack([loss(outputs[c], y[c]) for c in range(chains)])
    each, lead = loss(outputs, y), 0 if chains is None else 1
    counted = loss.counted(y) if each.ndim > lead + 1 else None
    each = each.flatten(lead)
    if counted is None:
        return each.mean(-1)
    counted = counted.flatten(lead)
    return (each * counted).sum(-1) / counted.sum(-1)


def mean_loss_and_gradient(loss: Loss, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """(C,) mean losses per chain and their gradient (C, B, K) with respect to the outputs (C, B, K)."""
    if isinstance(loss, Likelihood):
        return loss.mean_and_gradient(outputs, y)
    return by_autograd(lambda outputs: mean_loss(loss, outputs, y, len(outputs)), outputs)


def by_autograd(mean: Callable[[Tensor], Tensor], outputs: Tensor) -> tuple[Tensor, Tensor]:
    """The losses mean(outputs), and the gradient of their sum."""
    with torch.enable_grad():
        live = outputs.detach().requires_grad_()
        losses = mean(live)
        (gradient,) = torch.autograd.grad(losses.sum(), live)
    return losses.detach(), gradient
