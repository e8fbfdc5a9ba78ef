"""BoTorchModel: a posterior over networks as a model of BoTorch, whose functions are the networks."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bdl.data.targets import number_targets
from bdl.errors import ConfigError
from bdl.likelihoods import Likelihood
from bdl.posterior.networks import WeightKind
from bdl.posterior.predict import Posterior
from bdl.sklearn.estimators import BayesianMLPRegressor

try:
    from botorch.models.ensemble import EnsembleModel  # pyright: ignore[reportMissingImports]
    from botorch.posteriors.ensemble import EnsemblePosterior  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise ConfigError("BoTorchModel needs BoTorch: pip install 'bdl[botorch]'") from error


class FunctionPosterior(EnsemblePosterior):
    """The values of S functions (b, S, q, m), whose weights (b', S) may differ between batches, as fantasies' do."""

    @property
    def variance(self) -> Tensor:
        """(b, q, m) of the functions, unbiased for independent ones."""
        w = self.weights[..., None, None]
        squares = w * (self.values - self.mean.unsqueeze(-3)).square()
        return squares.sum(-3) / (1 - w.square().sum(-3)).clamp_min(torch.finfo(w.dtype).eps)


class BoTorchModel(EnsembleModel):
    """The posterior over functions: each network is one, jointly over all points, with its weight.

    Acquisition functions draw networks (`IndexSampler`, BoTorch's choice for ensembles): a draw is one function, as
    Thompson sampling needs it. Observations are learned by weights: a network counts in proportion to the density
    that it gives them. That is exact for the networks at hand, and rests on fewer of them with each observation: it is
    meant for fantasies; sample anew for data.

    Args:
        posterior: of networks that predict m numbers from x (n, d).
        x_mean, x_std, y_mean, y_std: the networks see (x - x_mean) / x_std, and y = y_mean + y_std x what they predict.
        outputs: m.
        samples: how many networks, evenly spaced along every chain; None for all.
        kind: weights of the samples, see `Posterior.predict`.
    """

    x_mean: Tensor
    x_std: Tensor
    y_mean: Tensor
    y_std: Tensor
    ensemble_weights: Tensor  # (..., S)

    def __init__(
        self, posterior: Posterior[Any], *, x_mean: Any = 0.0, x_std: Any = 1.0, y_mean: Any = 0.0, y_std: Any = 1.0,
        outputs: int = 1, samples: int | None = None, kind: WeightKind | None = None,
    ):  # fmt: skip
        networks = posterior.as_module(kind, samples)
        super().__init__(networks.weights.double())
        self.networks, self.outputs = networks, outputs
        self.chosen = list(range(outputs))  # the outputs that are left
        for name, value in (("x_mean", x_mean), ("x_std", x_std), ("y_mean", y_mean), ("y_std", y_std)):
            self.register_buffer(name, torch.as_tensor(value, dtype=torch.float64))

    @classmethod
    def of(cls, regressor: BayesianMLPRegressor, samples: int | None = None) -> BoTorchModel:
        """The model of a fitted regressor, in the units of its X and y."""
        columns: Any = regressor.encoding_.columns
        targets = number_targets(regressor.target_)
        return cls(
            regressor.posterior_, x_mean=[c.mean for c in columns], x_std=[c.std for c in columns],
            y_mean=[t.mean for t in targets], y_std=[t.std for t in targets], outputs=len(targets), samples=samples,
        )  # fmt: skip

    @property
    def num_outputs(self) -> int:
        return len(self.chosen)

    @property
    def batch_shape(self) -> torch.Size:
        return self.ensemble_weights.shape[:-1]

    def forward(self, X: Tensor) -> Tensor:
        """(b, S, q, m) the means of y by every network at X (b, q, d)."""
        return self._moments(X)[0]

    def _outputs(self, X: Tensor) -> tuple[Likelihood, Tensor]:
        """The likelihood, and what the networks put out, (b, S, q, K)."""
        x = ((X - self.x_mean) / self.x_std).to(next(self.networks.net.parameters()))
        law, each = self.networks.of_each(x.flatten(0, -2))  # (S, b q, K)
        return law, each.unflatten(1, X.shape[:-1]).movedim(0, -3).to(X)

    def _moments(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Means and standard deviations of y (b, S, q, m) by every network, with the batches of the weights."""
        law, outputs = self._outputs(X)
        mean, std = self.y_mean + self.y_std * law.mean(outputs), self.y_std * law.variance(outputs).sqrt()
        batch = torch.broadcast_shapes(mean.shape[:-2], self.ensemble_weights.shape)
        return mean.expand(*batch, *mean.shape[-2:])[..., self.chosen], std.expand_as(mean)[..., self.chosen]

    def posterior(
        self, X: Tensor, output_indices: list[int] | None = None, posterior_transform: Any = None, **kwargs: Any
    ) -> Any:
        """The functions' values at X (b, q, d), without noise of y."""
        values = self.forward(X)
        values = values if output_indices is None else values[..., output_indices]
        found = FunctionPosterior(values, self.ensemble_weights)
        return found if posterior_transform is None else posterior_transform(posterior=found, X=X)

    def condition_on_observations(self, X: Tensor, Y: Tensor, **kwargs: Any) -> BoTorchModel:
        """The model with new weights (..., S), given Y (..., q, m) at X (b, q, d)."""
        law, outputs = self._outputs(X)
        y = torch.zeros(*Y.shape[:-1], self.outputs).to(outputs)
        y[..., self.chosen] = Y.to(outputs)
        y = (y - self.y_mean) / self.y_std
        density = law.log_density(outputs, y.unsqueeze(-3))[..., self.chosen].sum((-1, -2))
        model = copy.copy(self)
        model.ensemble_weights = (self.ensemble_weights.log() + density).softmax(-1)
        return model

    def fantasize(self, X: Tensor, sampler: Any, observation_noise: Any = None, **kwargs: Any) -> BoTorchModel:
        """The model given observations at X that one network each makes up, with its noise."""
        mean, std = self._moments(X)
        drawn, noise = sampler(FunctionPosterior(torch.cat([mean, std], -1), self.ensemble_weights)).chunk(2, -1)
        random = torch.Generator().manual_seed(sampler.seed)  # the same at every call, as the drawn networks are
        z = torch.randn(drawn.shape, generator=random, dtype=drawn.dtype)
        return self.condition_on_observations(X, drawn + noise * z.to(drawn))

    def subset_output(self, idcs: Sequence[int]) -> BoTorchModel:
        model = copy.copy(self)
        model.chosen = [self.chosen[i] for i in idcs]
        return model
