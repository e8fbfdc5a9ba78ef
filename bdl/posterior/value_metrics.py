"""Scores of predictive laws of numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from bdl.likelihoods import as_columns
from bdl.posterior.prediction import ValuePrediction

LEVELS = (0.5, 0.9)  # of the central intervals whose coverage and width are scored
QUANTILES = tuple(q / 20 for q in range(1, 20))  # .05 ... .95


def value_metrics(prediction: ValuePrediction, y: Tensor) -> dict[str, float]:
    """Scores of a prediction of n items against y (n,) or (n, k). Smaller is better, except for coverage.

        rmse           = root of the mean squared error of the predicted mean, in the units of y
        nll            = mean -log p(y), p the predictive mixture (the negative of LPPD), nats per item
        nll_normal     = mean -log N(y; mean, std²) with the predicted mean and total std, nats per item
        crps           = mean E|Y - y| - ½ E|Y - Y'| (Gneiting & Raftery 2007, eq. 20), in the units of y
        coverage_90    = share of y inside the central 90 % intervals; coverage_50 of those of 50 %
        width_90       = mean width of these intervals, in the units of y; width_50 of those of 50 %
        quantile_error = mean |share of y below the q-quantile - q| over q = .05, .1, ... .95 (Kuleshov et al. 2018)

    nll sums over the k targets of an item, the others average over them.
    """
    from torchmetrics.functional.regression import mean_squared_error

    columns = as_columns(y.double(), prediction.mean.shape)
    normal = torch.distributions.Normal(prediction.mean.double(), prediction.std.double(), validate_args=False)
    scores = {
        "rmse": mean_squared_error(prediction.mean.double(), columns.contiguous(), squared=False).item(),
        "nll": -prediction.log_density(columns).double().mean().item(),
        "nll_normal": -normal.log_prob(columns).sum(-1).mean().item(),
        "crps": prediction.crps(columns).double().mean().item(),
    }
    for level in LEVELS:
        low, high = prediction.interval(level)
        inside = (columns >= low) & (columns <= high)
        scores[f"coverage_{100 * level:.0f}"] = inside.double().mean().item()
        scores[f"width_{100 * level:.0f}"] = (high - low).double().mean().item()
    q = torch.tensor(QUANTILES, dtype=torch.float64)
    return scores | {"quantile_error": (shares_below(prediction, y, q) - q).abs().mean().item()}


def shares_below(prediction: ValuePrediction, y: Tensor, q: Tensor) -> Tensor:
    """(len(q),) shares of y below their predicted q-quantiles; q where the prediction is calibrated.

    For counts, whose quantiles jump, a value that sits on the quantile counts in proportion (Czado et al. 2009, eq. 2).
    """
    columns = as_columns(y.double(), prediction.mean.shape)
    upper = prediction.cdf(columns).double()
    if not prediction.mixture.likelihood.counts:
        return torch.stack([(upper <= one).double().mean() for one in q])
    lower = prediction.cdf(columns - 1).double()
    width = (upper - lower).clamp_min(torch.finfo(torch.float64).tiny)
    return torch.stack([((one - lower) / width).clamp(0, 1).mean() for one in q])
