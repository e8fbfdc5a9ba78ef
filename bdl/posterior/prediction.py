"""ValuePrediction, what the posterior says of numbers; and predictions of any kind, from the outputs of networks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

import torch
from torch import Tensor

from bdl.errors import ConfigError, check_whole
from bdl.likelihoods import Likelihood, MultiCategoricalNLL
from bdl.posterior.class_prediction import ClassColumnsPrediction, LabelPrediction, Prediction
from bdl.posterior.items import PredictedItems, names_of
from bdl.posterior.mixture import PredictiveMixture
from bdl.posterior.moments import WeightedMoments
from bdl.posterior.stored_outputs import StoredOutputs

Stream = Iterable[tuple[Tensor, Tensor]]  # outputs (s, n, K) of s networks, and their weights (s,)
TABLE_QUANTILES = {"q05": 0.05, "q50": 0.5, "q95": 0.95}  # columns in tables of predictions


@dataclass(frozen=True, repr=False)
class ValuePrediction(PredictedItems):
    """Predictive distribution of k numbers of n items: a mixture with one component for each network of the posterior.

    The uncertainties are standard deviations in the units of y, by the law of total variance:
    std² = aleatoric² + epistemic². Quantiles, intervals and draws are of the mixture, not of a normal distribution.

    The mixture holds the outputs (S, n, K) of all S networks, 4 bytes each: in memory up to 1 GiB, beyond that in a
    temporary file. Everything is computed for a chunk of the items at a time.
    """

    mean: Tensor  # (n, k)
    aleatoric: Tensor  # (n, k) spread of y around the mean of a network: the root of the mean variance
    epistemic: Tensor  # (n, k) spread of the networks' means: what more data would reduce
    std: Tensor  # (n, k) standard deviation of y
    mixture: PredictiveMixture  # in the units that the networks saw
    shift: Tensor  # (k,) y = shift + scale x what the networks saw
    scale: Tensor  # (k,)

    @property
    def shape(self) -> torch.Size:
        return self.mean.shape[:-1]

    @property
    def title(self) -> str:
        targets = self.mean.shape[-1]
        return f"Prediction of {f'{targets} numbers' if targets > 1 else 'a number'} for {len(self):,} items"

    def part(self, items: Tensor) -> ValuePrediction:
        moments = {name: getattr(self, name)[items] for name in ("mean", "aleatoric", "epistemic", "std")}
        return replace(self, **moments, mixture=self.mixture.part(items))

    def columns(self, labels: Any) -> Mapping[str, Sequence[Any] | Tensor]:
        names = names_of(self.mean.shape[-1], labels, "targets")
        parts = {name: getattr(self, name) for name in ("mean", "std", "aleatoric", "epistemic")}
        parts |= {name: self.quantile(q) for name, q in TABLE_QUANTILES.items()}
        if len(names) == 1:
            levels = self.mixture.levels() if self.mixture.likelihood.has_masses else {}
            probs = {f"p_{level:g}": p for level, p in levels.items()}
            return {part: values[:, 0] for part, values in parts.items()} | probs
        return {f"{part}_{name}": values[:, j] for part, values in parts.items() for j, name in enumerate(names)}

    def rescaled(self, shift: Tensor | float, scale: Tensor | float) -> ValuePrediction:
        """The prediction of shift + scale x y: undoes a standardisation of the targets with that mean and std.

        Its numbers are float64: beside a large shift, such as seconds since 1970, float32 has no digits for the scale.

        Raises ConfigError unless scale > 0, and for counts, which have no other units.
        """
        shift, scale = torch.as_tensor(shift, dtype=torch.float64), torch.as_tensor(scale, dtype=torch.float64)
        if self.mixture.likelihood.counts:
            raise ConfigError(
                f"{type(self.mixture.likelihood).__name__} predicts counts, which have no other units: do not rescale "
                "this prediction"
            )
        if not bool((scale > 0).all()):
            raise ConfigError(f"scale must be > 0, the standard deviation of the targets; got {scale.tolist()}")
        parts = {name: getattr(self, name).double() * scale for name in ("aleatoric", "epistemic", "std")}
        moved = {"shift": shift + scale * self.shift, "scale": scale * self.scale}
        return replace(self, mean=shift + scale * self.mean.double(), **parts, **moved)

    @overload
    def quantile(self, q: float) -> Tensor: ...
    @overload
    def quantile(self, q: Sequence[float]) -> Tensor: ...
    def quantile(self, q: float | Sequence[float]) -> Tensor:
        """(n, k) quantiles of each target; (len(q), n, k) for several q. Raises ConfigError unless 0 < q < 1."""
        if isinstance(q, Sequence):
            return torch.stack([self.quantile(one) for one in q])
        return (self.shift + self.scale * self.mixture.quantile(q)).to(self.mean.dtype)

    def interval(self, level: float) -> tuple[Tensor, Tensor]:
        """(low, high), each (n, k): the central interval that holds y with that probability, such as 0.9.

        Raises ConfigError unless 0 < level < 1.
        """
        if not 0 < level < 1:
            raise ConfigError(f"the level of an interval is a probability between 0 and 1, got {level}")
        low, high = ends_of(level)
        return self.quantile(low), self.quantile(high)

    @property
    def bounds(self) -> tuple[Tensor, Tensor]:
        """(k,) the smallest and the largest value that each target can have."""
        low, high = self.mixture.likelihood.bounds
        return self.shift + self.scale * low, self.shift + self.scale * high

    def log_density(self, y: Tensor) -> Tensor:
        """(n,) log densities of y (n,) or (n, k), of all targets of an item together, in nats."""
        seen = self._seen(y)
        change = (self.scale.log() * self.mixture.has_density(seen)).sum(-1)  # a probability has no units
        return (self.mixture.log_density(seen) - change).float()

    def log_density_of_each(self, y: Tensor) -> Tensor:
        """(n, k) log densities of each target of y (n, k) by itself, in nats."""
        seen = self._seen(y)
        change = self.scale.log() * self.mixture.has_density(seen)
        return (self.mixture.log_density_of_each(seen) - change).float()

    def cdf(self, y: Tensor) -> Tensor:
        """(n, k) probabilities that a target is at most y (n,) or (n, k)."""
        return self.mixture.cdf(self._seen(y)).float()

    def below(self, y: Tensor) -> Tensor:
        """(n, k) probabilities that a target is smaller than y: less than `cdf` where y has a mass of its own."""
        return self.mixture.below(self._seen(y)).float()

    def crps(self, y: Tensor) -> Tensor:
        """(n, k) continuous ranked probability scores against y, in its units; see `PredictiveMixture.crps`."""
        return (self.scale * self.mixture.crps(self._seen(y))).float()

    def draw(self, n: int, seed: int = 0) -> Tensor:
        """(n, items, k) draws of y. One draw comes from one network, so its items belong together."""
        check_whole("the number of draws", n)
        return (self.shift + self.scale * self.mixture.draw(n, seed)).to(self.mean.dtype)

    def _seen(self, y: Tensor) -> Tensor:
        """y in the units that the networks saw."""
        return (y.cpu().double() - self.shift) / self.scale


def ends_of(level: float) -> tuple[float, float]:
    """The probabilities below both ends of a central interval."""
    return (1 - level) / 2, (1 + level) / 2


AnyPrediction = Prediction | LabelPrediction | ClassColumnsPrediction | ValuePrediction


def prediction_of(stream: Stream, likelihood: Likelihood) -> AnyPrediction:
    """The prediction of the kind that the likelihood's outputs call for."""
    if likelihood.outputs == "values":
        stored, weights_of = StoredOutputs(), []
        for outputs, weights in stream:
            stored.add(outputs)
            weights_of.append(weights)
        return of_mixture(PredictiveMixture(stored, likelihood, torch.cat(weights_of)))
    likelihood = likelihood.unweighted
    probs, entropy, shape = WeightedMoments(), WeightedMoments(), torch.Size()
    for outputs, weights in stream:
        log_p = log_probs(outputs, likelihood)
        p = log_p.exp()
        entropy.add(-log_p.clamp_min_(torch.finfo(log_p.dtype).min).mul_(p).sum(1), weights)  # 0 log 0 = 0
        probs.add(p, weights)
        shape = outputs.shape[1:]  # (n, k): the labels of an item stand one after the other
    mean = probs.mean.mT.contiguous()
    total, aleatoric, epistemic = (part.float() for part in uncertainty(mean, entropy.mean).values())
    if likelihood.outputs == "logits":
        return Prediction(mean.float(), total, aleatoric, epistemic, probs.std.mT.float().contiguous())
    if isinstance(likelihood, MultiCategoricalNLL):
        parts = (mean.float(), total, aleatoric, epistemic, probs.std.mT.float())
        of_items = [part.unflatten(0, (-1, len(likelihood.classes))) for part in parts]
        return ClassColumnsPrediction(
            tuple(
                Prediction(*(part[:, j, :k] if part.ndim > 2 else part[:, j] for part in of_items))
                for j, k in enumerate(likelihood.classes)
            )
        )
    of_one = (mean[:, 1].float(), total, aleatoric, epistemic, probs.std[1].float())
    return LabelPrediction(*(part.reshape(shape) for part in of_one))


def uncertainty(mean_probs: Tensor, mean_entropy: Tensor) -> dict[str, Tensor]:
    """Parts of the predictive entropy, each (n,) in nats: total = aleatoric + epistemic (Depeweg et al. 2018).

        total = H(E p),    aleatoric = E H(p),    epistemic = total - aleatoric = I(y; θ) >= 0

    mean_probs: (n, K) mean of the samples' probabilities. mean_entropy: (n,) mean of the samples' entropies, nats.
    """
    total = torch.special.entr(mean_probs).sum(-1)
    # By Jensen's inequality the difference is >= 0; only rounding makes it negative.
    return {"total": total, "aleatoric": mean_entropy, "epistemic": (total - mean_entropy).clamp_min(0)}


def with_elements(prediction: AnyPrediction, elements: torch.Size | None) -> AnyPrediction:
    """The prediction of n items with the axes of their elements, (n, ..., K), from rows (n x ..., K)."""
    if not elements or isinstance(prediction, ValuePrediction | ClassColumnsPrediction):
        return prediction
    shape = (-1, *elements)
    return replace(prediction, **{k: v.unflatten(0, shape) for k, v in vars(prediction).items()})


def log_probs(outputs: Tensor, likelihood: Likelihood) -> Tensor:
    """(s, K, n) log probabilities of classes from outputs (s, n, K), or (s, 2, n k) of labels from outputs (s, n, k).

    A label is a class 0 or 1, or one of the K classes of its column. The k labels of an item count as k items.

    Raises ConfigError for other shapes.
    """
    if outputs.ndim != 3 or likelihood.outputs == "logits" and outputs.shape[-1] == 1:
        raise ConfigError(
            f"outputs of shape {tuple(outputs.shape[1:])} under {likelihood} are not class probabilities: "
            "likelihood=bdl.BernoulliNLL() reads one output as one logit, and posterior.moments(x) takes any shape"
        )
    if likelihood.outputs == "logits":
        return outputs.mT.log_softmax(1)
    if isinstance(likelihood, MultiCategoricalNLL):
        return likelihood.padded(outputs).log_softmax(-1).flatten(1, 2).mT
    logits = outputs.flatten(1)
    return torch.stack([torch.nn.functional.logsigmoid(-logits), torch.nn.functional.logsigmoid(logits)], 1)


def of_mixture(mixture: PredictiveMixture) -> ValuePrediction:
    """The prediction that a mixture makes, in the units that its networks saw."""
    mean, aleatoric, epistemic = mixture.moments()
    noise, spread, std = (variance.sqrt().float() for variance in (aleatoric, epistemic, aleatoric + epistemic))
    return ValuePrediction(mean.float(), noise, spread, std, mixture, *torch.tensor([0.0, 1.0], dtype=torch.float64))
