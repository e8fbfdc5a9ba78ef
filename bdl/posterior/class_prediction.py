"""Predictions of classes, of labels and of several columns of classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from bdl.display import count_of
from bdl.posterior.items import PredictedItems, names_of


@dataclass(frozen=True, repr=False)
class PredictedProbabilities(PredictedItems):
    """What predictions of classes and of labels share. Entropies are (n,) of classes and (n, k) of labels, in nats."""

    probs: Tensor  # (n, K) mean probabilities of the classes, or (n, k) of label 1
    entropy: Tensor  # entropy of the mean: total uncertainty
    aleatoric: Tensor  # mean entropy of the samples
    epistemic: Tensor  # entropy - aleatoric, the mutual information between y and θ
    std: Tensor  # (n, K) or (n, k) standard deviation of the probabilities over the posterior

    @property
    def shape(self) -> torch.Size:
        return self.probs.shape[:-1]

    def part(self, items: Tensor) -> Self:
        return replace(self, **{name: values[items] for name, values in vars(self).items()})


@dataclass(frozen=True, repr=False)
class Prediction(PredictedProbabilities):
    """Predictive distribution of n items over K classes, averaged over the posterior."""

    @property
    def title(self) -> str:
        return f"Prediction of {count_of(len(self), 'item')} over {self.probs.shape[-1]} classes, entropies in nats"

    def columns(self, labels: Any) -> Mapping[str, Sequence[Any] | Tensor]:
        rows = self.probs.flatten(0, -2)
        names = names_of(rows.shape[1], labels, "classes")
        likeliest = rows.argmax(-1).tolist()
        classes = likeliest if labels is None else [labels[k] for k in likeliest]
        probs = {f"p_{name}": p for name, p in zip(names, rows.T, strict=True)}
        return {"class": classes, **probs, "entropy": self.entropy.flatten(), "epistemic": self.epistemic.flatten()}


@dataclass(frozen=True, repr=False)
class LabelPrediction(PredictedProbabilities):
    """Predictive distribution of k labels of n items, each 0 or 1 and by itself, averaged over the posterior."""

    @property
    def title(self) -> str:
        return f"Prediction of {self.probs.shape[-1]} labels of {count_of(len(self), 'item')}, entropies in nats"

    def columns(self, labels: Any) -> Mapping[str, Sequence[Any] | Tensor]:
        names = names_of(self.probs.shape[-1], labels, "labels")
        parts = {"p": self.probs, "entropy": self.entropy, "epistemic": self.epistemic}
        return {f"{part}_{name}": v[..., j].flatten() for part, v in parts.items() for j, name in enumerate(names)}


@dataclass(frozen=True, repr=False)
class ClassColumnsPrediction(PredictedItems):
    """Predictive distributions of n items in several columns of classes, each by itself."""

    of_columns: tuple[Prediction, ...]

    @property
    def shape(self) -> torch.Size:
        return self.of_columns[0].shape

    @property
    def title(self) -> str:
        counts = " and ".join(f"{column.probs.shape[-1]}" for column in self.of_columns)
        return f"Prediction of {count_of(len(self), 'item')} over {counts} classes, entropies in nats"

    @property
    def entropy(self) -> Tensor:
        """(n, k) nats."""
        return torch.stack([column.entropy for column in self.of_columns], -1)

    @property
    def epistemic(self) -> Tensor:
        """(n, k) nats."""
        return torch.stack([column.epistemic for column in self.of_columns], -1)

    def part(self, items: Tensor) -> ClassColumnsPrediction:
        return ClassColumnsPrediction(tuple(column.part(items) for column in self.of_columns))

    def columns(self, labels: Any) -> Mapping[str, Sequence[Any] | Tensor]:
        """labels: the names of the classes by the name of their column."""
        named = dict.fromkeys(map(str, range(len(self.of_columns)))) if labels is None else labels
        names_of(len(self.of_columns), list(named), "columns")
        columns: dict[str, Sequence[Any] | Tensor] = {}
        for (name, of_classes), prediction in zip(named.items(), self.of_columns, strict=True):
            for part, values in prediction.columns(of_classes).items():
                kind, _, label = part.partition("_")
                columns["_".join([kind, name, *[label] * bool(label)])] = values
        return columns
