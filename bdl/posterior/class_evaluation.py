"""Evaluation of class probabilities and of labels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from bdl.likelihoods import Likelihood, MultiCategoricalNLL
from bdl.posterior.class_scores import ClassScores, unpredicted
from bdl.posterior.diagnostics import repeat_error, spaced
from bdl.posterior.evaluation import RECORDED_ITEMS, ROWS, PosteriorEvaluation
from bdl.posterior.metrics import SMALLEST, classification_metrics, constant_class_entropy, constant_class_losses
from bdl.posterior.ood import logit_energy
from bdl.posterior.prediction import log_probs


class ClassEvaluation(PosteriorEvaluation):
    """Evaluation of class probabilities, and of labels, where the k labels of an item count as k items.

    A label is one of two classes, or one of those of its column; missing ones, below 0, are left out.

    It holds a few tensors (chains, K, n), however many samples there are. Sums run in double precision.

    tokens: the n items are the tokens of texts. Their scores have a perplexity, and the entropy of the average is
    split in two.
    parts: keep what `uncertainty` and `strangeness` need; evaluations of tokens always keep it.
    pixels: the n items are pixels of images, whose scores have a mean IoU.
    """

    def __init__(
        self,
        likelihood: Likelihood,
        y: Tensor,
        chains: int,
        tokens: bool = False,
        parts: bool = False,
        pixels: bool = False,
    ):
        super().__init__(likelihood, y, chains)
        self.tokens, self.parts, self.pixels = tokens, tokens or parts, pixels
        self._entropies = torch.zeros((), dtype=torch.float64)  # (n,) sums over networks
        self._energies = torch.zeros((), dtype=torch.float64)  # (n,) of logits, sums over networks
        flat = (self.y.flatten() if likelihood.outputs == "labels" else self.y).long()
        self._there = None if likelihood.outputs != "labels" or bool((flat >= 0).all()) else flat >= 0
        self.labels = flat if self._there is None else flat[self._there]
        self._last: dict[int, Tensor] = {}  # (K, n) the last of each chain
        self._sum = torch.zeros(())  # (chains, K, n) sums of probabilities, from the first network on
        self._weighted: Tensor | None = None  # (K, n) sum of weight x probabilities
        self._weight = 0.0
        self._points = spaced(RECORDED_ITEMS, len(self.labels))

    @property
    def one_sample(self) -> Tensor:
        """(chains, n, K) probabilities of each chain's last sample."""
        return torch.stack([self._last[chain] for chain in sorted(self._last)]).mT

    @property
    def chain_bma(self) -> Tensor:
        """(chains, n, K) uniform average over the samples of each chain."""
        seen = self._networks.count > 0
        return (self._sum[seen] / self._networks.count[seen].view(-1, 1, 1)).float().mT

    @property
    def bma(self) -> Tensor:
        """(n, K) uniform average over all samples of all chains."""
        return (self._sum.sum(0) / self._networks.count.sum()).float().mT

    @property
    def bma_weighted(self) -> Tensor | None:
        """(n, K) importance-weighted average over all samples; None without such weights."""
        return None if self._weighted is None else (self._weighted / self._weight).float().mT

    @property
    def bma_stacked(self) -> Tensor | None:
        """(n, K) average of the chains' own averages by weights of the chains; None without such weights."""
        return None if self.stacking is None else torch.tensordot(self._shares(self.stacking), self._sum, 1).float().mT

    def repeat_error(self) -> dict[str, float]:
        errors = repeat_error(self.chain_bma.numpy(), 1.0, np.exp(self.log_probs))
        return {k: min(v, 0.5) for k, v in errors.items()}  # twice the number bounds the error, which is 1 at most

    def losses(self) -> Tensor:
        return self.losses_of(self.bma)

    def stacked_losses(self) -> Tensor:
        assert (stacked := self.bma_stacked) is not None
        return self.losses_of(stacked)

    def constant_losses(self, seen: Tensor | None = None) -> Tensor:
        classes = self.likelihood.classes if isinstance(self.likelihood, MultiCategoricalNLL) else ()
        return constant_class_losses(self.y, seen, classes)

    def constant_score(self, seen: Tensor | None = None) -> dict[str, float]:
        y = self.y.long().reshape(len(self.y), -1)
        known = y if seen is None else seen.long().reshape(len(seen), -1)
        likeliest = torch.stack([column[column >= 0].mode().values for column in known.T])
        return {"accuracy": float((y == likeliest)[y >= 0].double().mean())}

    def entropy(self, seen: Tensor | None = None) -> float:
        y = self.y if seen is None else seen
        if isinstance(self.likelihood, MultiCategoricalNLL):
            return constant_class_entropy(y, self.likelihood.classes)
        return constant_class_entropy(y, [self._sum.shape[1]] * y.reshape(len(y), -1).shape[1])

    def claim(self) -> float:
        columns = [(p.double(), len(labels) / len(self.labels)) for p, labels in self.columns(self.bma)]
        claims = [torch.special.entr(p.mean(0)).sum() - torch.special.entr(p).sum(-1).mean() for p, _ in columns]
        return float(sum(share * claim for claim, (_, share) in zip(claims, columns, strict=True)))

    def columns(self, probs: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Probabilities (m, K) and labels (m,) of each column of classes, from those of all labels, such as `bma`.

        Classes, and labels of two classes, are one column.
        """
        if not isinstance(self.likelihood, MultiCategoricalNLL):
            return [(probs, self.labels)]
        column = torch.arange(len(self.likelihood.classes)).repeat(len(self.y))
        column = column if self._there is None else column[self._there]
        return [(probs[column == j, :k], self.labels[column == j]) for j, k in enumerate(self.likelihood.classes)]

    @property
    def uncertainty(self) -> dict[str, Tensor]:
        """(n,) nats of each item: `entropy` of the average, `aleatoric`, the mean entropy of a network, and the rest.

        That is `epistemic`, the mutual information between the label and the network, as in `Prediction`.
        """
        entropy, aleatoric = torch.special.entr(self.bma.double()).sum(-1), self._entropies / self._networks.count.sum()
        return {"entropy": entropy, "aleatoric": aleatoric, "epistemic": entropy - aleatoric}

    def class_scores(self) -> list[ClassScores]:
        """The scores of each class, of the average over all networks; for each column of classes."""
        return [ClassScores.of(*column) for column in self.columns(self.bma)]

    def never_predicted(self) -> dict[int, int]:
        """The items of each class, or of each of several labels, that is the most probable one of none.

        The classes of several columns are counted through.
        """
        if self.tokens:
            return {}
        if self.likelihood.outputs != "labels" or isinstance(self.likelihood, MultiCategoricalNLL):
            columns = self.columns(self.bma)
            items = [labels.bincount(minlength=p.shape[1]) for p, labels in columns]
            chosen = [p.argmax(1).bincount(minlength=p.shape[1]) for p, _ in columns]
            return unpredicted(torch.cat(items), torch.cat(chosen))
        chosen = (self.bma[:, 1] > 0.5).view_as(self.y).sum(0)
        return unpredicted(self.y.sum(0), chosen)

    @property
    def strangeness(self) -> dict[str, Tensor]:
        """(n,) scores of items, larger for stranger ones, see `bdl.ood`."""
        parts = self.uncertainty
        scores = {"entropy": parts["entropy"], "mutual_information": parts["epistemic"]}
        return scores | (
            {"energy": self._energies / self._networks.count.sum()} if self.likelihood.outputs == "logits" else {}
        )

    def metrics(self, rows: Sequence[str] = ROWS) -> dict[str, float]:
        if not self.tokens:
            of_columns = [scores.means() for scores in self.class_scores()]
            means = {name: float(np.mean([each[name] for each in of_columns])) for name in of_columns[0]}
            shown = {f"bma/{name}": value for name, value in means.items() if name != "mean_iou" or self.pixels}
            return super().metrics(rows) | shown
        parts = {f"bma/{name}": float(of_token.mean()) for name, of_token in self.uncertainty.items()}
        return super().metrics(rows) | parts

    def scores(self, prediction: Tensor) -> dict[str, float]:
        scores = classification_metrics(prediction, self.labels)
        return scores | ({"perplexity": math.exp(scores["nll"])} if self.tokens else {})

    def losses_of(self, probs: Tensor) -> Tensor:
        """(n,) -log p(y|x) by probabilities (n, K), nats."""
        p = probs[torch.arange(len(self.labels)), self.labels].double()
        return -p.clamp_min(SMALLEST).log()

    def _record(self, chains: Sequence[int], outputs: Tensor, weights: Tensor | None) -> Tensor:
        """(s, K, n) the probabilities."""
        probs = log_probs(outputs, self.likelihood).exp()
        probs = probs if self._there is None else probs[..., self._there]
        if not self._last:
            self._sum = torch.zeros(self.chains, *probs.shape[1:], dtype=torch.float64)
        if self.parts:
            self._entropies = self._entropies + torch.special.entr(probs).sum(1).double().sum(0)
            if self.likelihood.outputs == "logits":
                self._energies = self._energies + logit_energy(outputs).double().sum(0)
        of_labels = probs[:, self.labels[self._points], self._points]
        self._networks.log_p.add(chains, of_labels.clamp_min(torch.finfo(probs.dtype).tiny).log().numpy())
        for chain, i in {chain: i for i, chain in enumerate(chains)}.items():
            self._last[chain] = probs[i].clone()  # a view would keep the other networks' values in memory
        if weights is not None and bool(weights.any()):
            self._weighted = (0 if self._weighted is None else self._weighted) + (probs * weights.view(-1, 1, 1)).sum(0)
            self._weight += float(weights.sum())
        return probs

    def _add_up(self, chain: int, values: Tensor) -> None:
        self._sum[chain] += values

    def _means_of_one(self, values: Tensor) -> Tensor:
        return torch.tensor(accuracy_and_nll(values[None], 1, self.labels), dtype=torch.float64)

    def _scores_of_sums(self, count: int) -> tuple[float, float, float, float]:
        together = accuracy_and_nll(self._sum.sum(0, keepdim=True), count * self.chains, self.labels)
        return *together, *accuracy_and_nll(self._sum, count, self.labels)


def accuracy_and_nll(sums: Tensor, count: int, labels: Tensor) -> tuple[float, float]:
    """The curve's two scores, means over chains and items, of sums (chains, K, n) of `count` probabilities."""
    classes_last = sums.mT.contiguous()  # argmax takes ten times as long along an axis that is not the last in memory
    correct = (classes_last.argmax(-1) == labels).double().mean().item()
    p_of_label = sums[:, labels, torch.arange(len(labels))] / count
    return correct, -p_of_label.clamp_min_(SMALLEST).log_().mean().item()


def class_metrics(
    evaluations: Mapping[str, PosteriorEvaluation], names: Sequence[str], columns: Mapping[str, Sequence[str]]
) -> dict[str, float]:
    """`never_predicted` and `column_metrics`. names: of the classes; columns: those of each of several columns."""
    return never_predicted(evaluations, names) | column_metrics(evaluations, columns)


def never_predicted(evaluations: Mapping[str, PosteriorEvaluation], names: Sequence[str] = ()) -> dict[str, float]:
    """`test/never_predicted/NAME`, the items of each class that the average never predicts, by split; {} for others."""
    return {
        f"{split}/never_predicted/{names[k] if k < len(names) else k}": float(items)
        for split, evaluation in evaluations.items()
        if isinstance(evaluation, ClassEvaluation)
        for k, items in evaluation.never_predicted().items()
    }


def column_metrics(
    evaluations: Mapping[str, PosteriorEvaluation], columns: Mapping[str, Sequence[str]]
) -> dict[str, float]:
    """`test/bma/<column>/accuracy` and so on: the scores of each of several columns of classes by itself, by split.

    `test/one_sample/...` are those of the last sample of the first chain; `test/targets/<column>` counts the items that
    have it. {} for other predictions.
    """
    metrics: dict[str, float] = {}
    for split, evaluation in evaluations.items():
        if not isinstance(evaluation, ClassEvaluation) or not columns:
            continue
        for row, probs in (("one_sample", evaluation.one_sample[0]), ("bma", evaluation.bma)):
            for name, (p, labels) in zip(columns, evaluation.columns(probs), strict=True):
                scores = classification_metrics(p, labels)
                scores |= ClassScores.of(p, labels).means() if row == "bma" else {}
                metrics |= {f"{split}/{row}/{name}/{score}": v for score, v in scores.items() if score != "mean_iou"}
                metrics[f"{split}/targets/{name}"] = len(labels)
    return metrics
