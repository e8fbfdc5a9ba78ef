"""What one network puts out to say what an average over networks says; and how far the two are apart, in nats.

The first outputs are those of an ordinary likelihood. Where there are more, a sigmoid of them is the share of the
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
from bdl.likelihoods import BernoulliNLL, CategoricalNLL, HeteroscedasticNLL, Likelihood
from bdl.posterior.mixture import PredictiveMixture
from bdl.posterior.prediction import AnyPrediction, LabelPrediction, Prediction, ValuePrediction, of_mixture
from bdl.posterior.stored_outputs import StoredOutputs


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
        """(n, ...) that of the outputs before the shares."""

    @abstractmethod
    def prediction(self, outputs: Tensor) -> AnyPrediction:
        """The student's prediction from its outputs (n, ..., width). NaN stands for what it does not keep."""

    def divergence(self, outputs: Tensor, lesson: Tensor) -> Tensor:
        """(n, ...) KL(teacher | student) in nats of the law of y, plus that of the shares, each a Bernoulli law."""
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
    """K logits; the share is that of the predictive entropy."""

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
    """k means and k log variances of normal laws; a share for each, of its variance."""

    @property
    def likelihood(self) -> HeteroscedasticNLL:
        return HeteroscedasticNLL()

    def lesson(self, teacher: AnyPrediction) -> Tensor:
        assert isinstance(teacher, ValuePrediction)
        variance = teacher.std.square()
        wrong = (~variance.isfinite() | (variance <= 0)).any(-1)
        if bool(wrong.any()):
            raise ConfigError(
                f"the average predicts a variance of 0 or infinity for {int(wrong.sum())} items, which no network can "
                "learn: leave out samples that have diverged, or these items"
            )
        parts = [teacher.mean, variance.log(), share_of(teacher.epistemic.square(), variance)]
        return torch.cat(parts[: 3 if self.shares else 2], -1)

    def _law_divergence(self, outputs: Tensor, lesson: Tensor) -> Tensor:
        """KL(N(m, v) | N(mean, variance)), which differs from the KL of the teacher's own law by a constant.

        For any law with these moments E[-log N(y; mean, variance)] is the same, so that both have one minimum.
        """
        mean, log_variance = outputs.chunk(2, -1)
        m, log_v = lesson[..., : outputs.shape[-1]].chunk(2, -1)
        ratio = (log_v - log_variance).exp() + (m - mean).square() * (-log_variance).exp()
        return 0.5 * (ratio - 1 + log_variance - log_v).sum(-1)

    def prediction(self, outputs: Tensor) -> ValuePrediction:
        law, shares = self._split(outputs)
        stored = StoredOutputs()
        stored.add(law.unsqueeze(0))
        whole = of_mixture(PredictiveMixture(stored, self.likelihood, torch.ones(1)))
        share = self._share(shares, whole.std)
        parts = {"aleatoric": whole.std * (1 - share).sqrt(), "epistemic": whole.std * share.sqrt()}
        return ValuePrediction(
            whole.mean, **parts, std=whole.std, mixture=whole.mixture, shift=whole.shift, scale=whole.scale
        )


def share_of(part: Tensor, whole: Tensor) -> Tensor:
    """part / whole between 0 and 1; 0 where the whole is 0."""
    return torch.where(whole > 0, part / whole, torch.zeros_like(whole)).clamp(0, 1)


def numbers_kept(likelihood: Likelihood, outputs: int) -> tuple[int, int]:
    """How many outputs a student needs for the law of networks with so many, and how many shares it may have besides.

    Raises ConfigError for counts.
    """
    if likelihood.counts:
        raise ConfigError(
            f"{type(likelihood).__name__} predicts counts, whose average one simple distribution cannot keep: "
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
    if outputs not in (kept, kept + shares):
        words = "means and log variances" if likelihood.outputs == "values" else "logits"
        raise ConfigError(
            f"the student has {outputs} outputs: give it {kept}, the {words}, or {kept + shares}, to keep the "
            "epistemic share of the uncertainty too"
        )
    split = shares if outputs > kept else 0
    if likelihood.outputs == "logits":
        return ClassOutputs(outputs, split, class_axis)
    return (ValueOutputs if likelihood.outputs == "values" else LabelOutputs)(outputs, split)
