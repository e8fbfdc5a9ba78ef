"""What one network puts out to say what an average over networks says; and how far the two are apart, in nats.

The first outputs are the outputs of an ordinary likelihood. Where there are more, a sigmoid of them is the share of the
uncertainty that is epistemic: of the entropy of classes and labels, of the variance of numbers.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bdl.errors import ConfigError
from bdl.likelihoods import BernoulliNLL, CategoricalNLL, HeteroscedasticNLL, Likelihood, MultiCategoricalNLL
from bdl.posterior.mixture import PredictiveMixture
from bdl.posterior.prediction import AnyPrediction, LabelPrediction, Prediction, ValuePrediction, of_mixture
from bdl.posterior.stored_outputs import StoredOutputs

POINTS = 32  # that stand for the law of an item's numbers


@dataclass(frozen=True)
class StudentOutputs(ABC):
    """The outputs (..., width) of a student, of which the last `shares` are logits of epistemic shares."""

    width: int
    shares: int  # 0: the student does not split the uncertainty

    @property
    @abstractmethod
    def likelihood(self) -> Likelihood:
        """What the outputs before the shares mean."""

    @abstractmethod
    def lesson(self, teacher: AnyPrediction) -> Tensor:
        """(n, ..., L) float32 numbers of a prediction that `divergence` compares with; L may differ from the width."""

    @abstractmethod
    def _law_divergence(self, outputs: Tensor, lesson: Tensor) -> Tensor:
        """(n, ...) by the outputs before the shares."""

    @abstractmethod
    def prediction(self, outputs: Tensor) -> AnyPrediction:
        """The student's prediction from its outputs (n, ..., width). NaN stands for what it does not keep."""

    def divergence(self, outputs: Tensor, lesson: Tensor) -> Tensor:
        """(n, ...) KL(teacher | student) in nats of the law of y, plus the KL of the shares, each a Bernoulli law."""
        law, shares = self._split(outputs)
        total = self._law_divergence(law, lesson)
        if not self.shares:
            return total
        share = lesson[..., -self.shares :]
        loss = F.binary_cross_entropy_with_logits(shares, share, reduction="none")
        return total + (loss - torch.special.entr(share) - torch.special.entr(1 - share)).sum(-1)

    def _split(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        end = self.width - self.shares
        return outputs[..., :end], outputs[..., end:]

    def _share(self, logits: Tensor, like: Tensor) -> Tensor:
        return logits.sigmoid() if self.shares else torch.full_like(like, math.nan)


@dataclass(frozen=True)
class ClassOutputs(StudentOutputs):
    """K logits, and the share of the predictive entropy."""

    class_axis: int = -1

    @property
    def likelihood(self) -> CategoricalNLL:
        return CategoricalNLL(self.class_axis)

    def lesson(self, teacher: AnyPrediction) -> Tensor:
        assert isinstance(teacher, Prediction)
        share = share_of(teacher.epistemic, teacher.entropy).unsqueeze(-1)
        return torch.cat([teacher.probs, share], -1) if self.shares else teacher.probs

    def _law_divergence(self, outputs: Tensor, lesson: Tensor) -> Tensor:
        log_q = outputs.log_softmax(-1)
        return F.kl_div(log_q, lesson[..., : log_q.shape[-1]], reduction="none").sum(-1)

    def prediction(self, outputs: Tensor) -> Prediction:
        logits, shares = self._split(outputs)
        probs = logits.softmax(-1)
        entropy = torch.special.entr(probs).sum(-1)
        epistemic = entropy * self._share(shares[..., 0] if self.shares else shares, entropy)
        return Prediction(probs, entropy, entropy - epistemic, epistemic, torch.full_like(probs, math.nan))


@dataclass(frozen=True)
class LabelOutputs(StudentOutputs):
    """k logits of labels; a share for each, of its entropy."""

    @property
    def likelihood(self) -> BernoulliNLL:
        return BernoulliNLL()

    def lesson(self, teacher: AnyPrediction) -> Tensor:
        assert isinstance(teacher, LabelPrediction)
        return torch.cat([teacher.probs, share_of(teacher.epistemic, teacher.entropy)][: 2 if self.shares else 1], -1)

    def _law_divergence(self, outputs: Tensor, lesson: Tensor) -> Tensor:
        p = lesson[..., : outputs.shape[-1]]
        loss = F.binary_cross_entropy_with_logits(outputs, p, reduction="none")
        return (loss - torch.special.entr(p) - torch.special.entr(1 - p)).sum(-1)

    def prediction(self, outputs: Tensor) -> LabelPrediction:
        logits, shares = self._split(outputs)
        probs = logits.sigmoid()
        entropy = torch.special.entr(probs) + torch.special.entr(1 - probs)
        epistemic = entropy * self._share(shares, entropy)
        return LabelPrediction(probs, entropy, entropy - epistemic, epistemic, torch.full_like(probs, math.nan))


@dataclass(frozen=True)
class ValueOutputs(StudentOutputs):
    """C components, each of k means and k log variances of normal laws, that count alike; a share for each number.

    The share is of the variance.
    """

    components: int = 1  # C

    @property
    def likelihood(self) -> HeteroscedasticNLL:
        return HeteroscedasticNLL()

    def lesson(self, teacher: AnyPrediction) -> Tensor:
        """POINTS points of each item's law, the mean of their log densities under it, and the shares."""
        assert isinstance(teacher, ValuePrediction)
        variance = teacher.std.square()
        wrong = (~variance.isfinite() | (variance <= 0)).any(-1)
        if bool(wrong.any()):
            raise ConfigError(
                f"the average predicts a variance of 0 or infinity for {int(wrong.sum())} items, which no network can "
                "learn: leave out samples that have diverged, or these items"
            )
        points, log_p = teacher.mixture.points(POINTS)
        parts = [points.flatten(1).float(), log_p.mean(1, keepdim=True).float()]
        return torch.cat([*parts, *([share_of(teacher.epistemic.square(), variance)] if self.shares else [])], -1)

    def _law_divergence(self, outputs: Tensor, lesson: Tensor) -> Tensor:
        """KL(teacher | student), with the teacher's law at its points."""
        mean, log_variance = (part.unsqueeze(1) for part in self._components(outputs).chunk(2, -1))  # (n, 1, C, k)
        end = POINTS * mean.shape[-1]
        y = lesson[:, :end].unflatten(1, (POINTS, 1, -1))
        squares = (y - mean).square() * (-log_variance).exp()
        each = -0.5 * (squares + log_variance + math.log(2 * math.pi)).sum(-1)  # (n, POINTS, C)
        return lesson[:, end] + math.log(self.components) - each.logsumexp(-1).mean(1)

    def prediction(self, outputs: Tensor) -> ValuePrediction:
        law, shares = self._split(outputs)
        stored = StoredOutputs()
        stored.add(self._components(law).movedim(1, 0))
        whole = of_mixture(PredictiveMixture(stored, self.likelihood, torch.ones(self.components)))
        share = self._share(shares, whole.std)
        parts = {"aleatoric": whole.std * (1 - share).sqrt(), "epistemic": whole.std * share.sqrt()}
        return ValuePrediction(
            whole.mean, **parts, std=whole.std, mixture=whole.mixture, shift=whole.shift, scale=whole.scale
        )

    def _components(self, law: Tensor) -> Tensor:
        """(n, C, 2k) from the outputs (n, 2kC) before the shares."""
        return law.unflatten(-1, (self.components, -1))


def share_of(part: Tensor, whole: Tensor) -> Tensor:
    """part / whole between 0 and 1; 0 where the whole is 0."""
    return torch.where(whole > 0, part / whole, torch.zeros_like(whole)).clamp(0, 1)


def numbers_kept(likelihood: Likelihood, outputs: int) -> tuple[int, int]:
    """How many outputs a student needs for the law of networks with so many, and how many shares it may have besides.

    For numbers it is those of one component.

    Raises ConfigError for counts, and for other laws with masses.
    """
    if isinstance(likelihood, MultiCategoricalNLL):
        raise ConfigError(
            "one network in place of many is made for one column of classes: thin(k, data) makes the posterior smaller "
            "for any likelihood"
        )
    if likelihood.has_masses:
        what = "counts" if likelihood.counts else "values that repeat"
        raise ConfigError(
            f"{type(likelihood).__name__} predicts {what}, whose average one simple distribution cannot keep: "
            "thin(k, data) makes the posterior smaller for any likelihood"
        )
    targets = likelihood.num_targets(outputs)
    if likelihood.outputs == "values":
        return 2 * targets, targets
    return targets, 1 if likelihood.outputs == "logits" else targets


def outputs_for(likelihood: Likelihood, sampled: Sequence[int], shape: Sequence[int]) -> StudentOutputs:
    """What a student keeps of predictions under a likelihood.

    sampled, shape: of the outputs (1, ...) of the sampled networks, and of the student.

    Raises ConfigError, which names the numbers of outputs that there may be, for another number and for counts.
    """
    class_axis = likelihood.class_axis if isinstance(likelihood, CategoricalNLL) else -1
    (kept, shares), outputs = numbers_kept(likelihood, sampled[class_axis]), shape[class_axis]
    components, rest = divmod(outputs, kept) if likelihood.outputs == "values" else (1, outputs - kept)
    if rest not in (0, shares) or not components:
        words = f"the logits, or {kept + shares}"
        if likelihood.outputs == "values":
            words = f"the means and log variances, for each component of a mixture, or {shares} more"
        raise ConfigError(
            f"the student has {outputs} outputs: give it {kept}, {words}, to keep the epistemic share of the "
            "uncertainty too"
        )
    if likelihood.outputs == "logits":
        return ClassOutputs(outputs, rest, class_axis)
    return ValueOutputs(outputs, rest, components) if likelihood.outputs == "values" else LabelOutputs(outputs, rest)
