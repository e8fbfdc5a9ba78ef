"""`bdl.metrics`: scores of predictive distributions as `torchmetrics.Metric`, for a loop of your own.

    self.aurc = bdl.metrics.AURC()                              # in the LightningModule
    self.log("val/aurc", self.aurc(probs, y), on_epoch=True)    # in its validation_step

They add up over batches and over the processes of DDP: what `compute` returns is the score of all items together. The
definitions are those of `bdl.posterior.metrics`, in double precision.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from bdl.errors import ConfigError
from bdl.likelihoods import as_columns
from bdl.posterior.metrics import BINS, RISK, SMALLEST, adaptive_gap, checked_classes, confidence_and_errors, risk_of
from bdl.posterior.ood import detection
from bdl.posterior.prediction import Prediction, ValuePrediction

__all__ = [
    "AURC", "AdaptiveECE", "BrierScore", "CRPS", "CoverageAtRisk", "IntervalCoverage", "OODDetection", "PredictiveNLL",
]  # fmt: skip

NO_ITEM = "the metric has seen no item: call update before compute"


class AddedScore(Metric):
    """Base of a score that is a mean over items."""

    is_differentiable = False
    higher_is_better: bool | None = False
    full_state_update = False
    total: Tensor
    count: Tensor

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.add_state("total", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def add(self, scores: Tensor) -> None:
        """Add the scores of items, of any shape. NaN, of a target that is missing, does not count."""
        self.total += scores.double().nansum().to(self.total.device)
        self.count += int((~scores.isnan()).sum())

    def compute(self) -> Tensor:
        if not self.count:
            raise ConfigError(NO_ITEM)
        return self.total / self.count


class PredictiveNLL(AddedScore):
    """Mean -log p(y) of the predictive distribution, nats an item.

    `update(prediction, y)`: probabilities (n, K) or a `bdl.Prediction` with labels (n,), or a `bdl.ValuePrediction`
    with numbers (n,) or (n, k), over whose k targets it sums. Raises ConfigError for values out of range.
    """

    def update(self, prediction: Tensor | Prediction | ValuePrediction, y: Tensor) -> None:
        if isinstance(prediction, ValuePrediction):
            self.add(-prediction.log_density(y))
            return
        probs, labels = checked_classes(probabilities(prediction), y)
        self.add(-probs.gather(1, labels[:, None]).double().clamp_min(SMALLEST).log())


class BrierScore(AddedScore):
    """Mean Σ_k (p_k - 1{k = y})², in [0, 2], of probabilities (n, K) or a `bdl.Prediction`, with labels (n,)."""

    def update(self, prediction: Tensor | Prediction, y: Tensor) -> None:
        probs, labels = checked_classes(probabilities(prediction), y)
        self.add((probs.double() - torch.nn.functional.one_hot(labels, probs.shape[1])).square().sum(1))


class CRPS(AddedScore):
    """Mean continuous ranked probability score, in the units of y (Gneiting & Raftery 2007, eq. 20).

    `update(prediction, y)`: a `bdl.ValuePrediction` and numbers (n,) or (n, k), over whose k targets it averages.
    """

    def update(self, prediction: ValuePrediction, y: Tensor) -> None:
        self.add(prediction.crps(y))


class IntervalCoverage(AddedScore):
    """Share of y in the central intervals of a `bdl.ValuePrediction`, which should be the level.

    Args:
        level: the probability that an interval should hold.

    Raises ConfigError for a level outside (0, 1).
    """

    higher_is_better = None

    def __init__(self, level: float = 0.9, **kwargs: Any):
        super().__init__(**kwargs)
        if not 0 < level < 1:
            raise ConfigError(f"level must be a probability between 0 and 1, got {level}")
        self.level = level

    def update(self, prediction: ValuePrediction, y: Tensor) -> None:
        low, high = prediction.interval(self.level)
        columns = as_columns(y.cpu().double(), low.shape)
        self.add(((low <= columns) & (columns <= high)).double().masked_fill(columns.isnan(), torch.nan))


class JoinedScore(Metric):
    """Base of a score that needs all items together: its states are lists of float64 tensors."""

    is_differentiable = False
    higher_is_better: bool | None = False
    full_state_update = False
    states: tuple[str, ...] = ()

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        for name in self.states:
            self.add_state(name, [], dist_reduce_fx="cat")

    def sync(self, *args: Any, **kwargs: Any) -> None:
        """Join the items of all processes, also where this one has none: gloo aborts on tensors of two dtypes."""
        for name in self.states:
            if isinstance(state := getattr(self, name), list) and not state:
                state.append(torch.empty(0, dtype=torch.float64, device=self.device))
        super().sync(*args, **kwargs)


class RankedScore(JoinedScore):
    """Base of a score that orders all items by their confidence. It keeps 16 bytes an item."""

    states = ("confidence", "errors")
    confidence: list[Tensor]
    errors: list[Tensor]

    def update(self, prediction: Tensor | Prediction, y: Tensor) -> None:
        """Add probabilities (n, K) or a `bdl.Prediction`, with labels (n,)."""
        confidence, errors = confidence_and_errors(*checked_classes(probabilities(prediction), y))
        self.confidence.append(confidence.double())
        self.errors.append(errors.double())

    def items(self) -> tuple[Tensor, Tensor]:
        """(n,) confidences and errors of all items. Raises ConfigError where there are none."""
        return joined_state(self.confidence), joined_state(self.errors)


class AdaptiveECE(RankedScore):
    """Gap between confidence and accuracy over bins of equally many items, top label (Nixon et al. 2019).

    Args:
        bins: their number.
    """

    def __init__(self, bins: int = BINS, **kwargs: Any):
        super().__init__(**kwargs)
        self.bins = bins

    def compute(self) -> Tensor:
        confidence, errors = self.items()
        return torch.tensor(adaptive_gap(confidence, errors, self.bins), dtype=torch.float64, device=confidence.device)


class AURC(RankedScore):
    """Area under the curve of error against coverage, the most confident items first (El-Yaniv & Wiener 2010)."""

    def compute(self) -> Tensor:
        return risk_of(*self.items()).mean()


class CoverageAtRisk(RankedScore):
    """Largest share of items, the most confident first, whose error is at most the risk.

    Args:
        risk: the error that is tolerated.
    """

    higher_is_better = True

    def __init__(self, risk: float = RISK, **kwargs: Any):
        super().__init__(**kwargs)
        self.risk = risk

    def compute(self) -> Tensor:
        risk = risk_of(*self.items())
        allowed = (risk <= self.risk).nonzero()
        last = allowed[-1] + 1 if len(allowed) else risk.new_zeros(1)
        return (last.double() / len(risk)).squeeze(0)


class OODDetection(JoinedScore):
    """AUROC, AUPR and false alarms at 95 % recall of a score that is larger for strange items; see `bdl.ood`.

    `update(scores, strange)`: scores (n,), such as `prediction.entropy`, and whether each item is a strange one, (n,)
    or one value for all. `compute` returns the three by the names `auroc`, `aupr` and `fpr95`.
    """

    higher_is_better = None
    states = ("scores", "strange")
    scores: list[Tensor]
    strange: list[Tensor]

    def update(self, scores: Tensor, strange: Tensor | bool) -> None:
        self.scores.append(scores.flatten().double())
        flags = torch.as_tensor(strange, device=scores.device).bool().double()
        self.strange.append(flags.expand(scores.shape).flatten())

    def compute(self) -> dict[str, Tensor]:
        scores, strange = joined_state(self.scores), joined_state(self.strange).bool()
        each = detection(scores[~strange], scores[strange])
        return {name: torch.tensor(value, dtype=torch.float64, device=scores.device) for name, value in each.items()}


def probabilities(prediction: Tensor | Prediction) -> Tensor:
    """(n, K) probabilities of a prediction, or as they are given."""
    return prediction if isinstance(prediction, Tensor) else prediction.probs


def joined_state(state: list[Tensor] | Tensor) -> Tensor:
    """A state that is a list of batches until processes have joined theirs. Raises ConfigError without any item."""
    items = state if isinstance(state, Tensor) else torch.cat(state) if state else torch.empty(0)
    if not len(items):
        raise ConfigError(NO_ITEM)
    return items
