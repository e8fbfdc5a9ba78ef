"""ProblyPredictor: a posterior as probly takes a model whose uncertainty it quantifies."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bdl.posterior.export import expected
from bdl.posterior.predict import Posterior


class ProblyPredictor(torch.nn.Module):
    """probly's methods of an ensemble, `predict_pointwise` and `predict_representation`, over the samples of a run.

    probly counts all samples alike, so weights are not passed on: take samples of uniform weights.

    samples: how many networks, evenly spaced along every chain; None for all.
    """

    def __init__(self, posterior: Posterior[Any], samples: int | None = None):
        super().__init__()
        self.networks = posterior.as_module("uniform", samples)

    @torch.no_grad()
    def predict_representation(self, x: Tensor, logits: bool = False) -> Tensor:
        """(n, S, K) class probabilities, or logits, by each network; (n, S, 2) mean and variance for a number."""
        law, outputs = self.networks.of_each(x)
        if law.outputs == "values":
            each = torch.cat([law.mean(outputs), law.variance(outputs)], -1)
        else:
            each = outputs if logits else expected(law, outputs)
        return each.transpose(0, 1)

    def predict_pointwise(self, x: Tensor, logits: bool = False) -> Tensor:
        """(n, K) their mean."""
        return self.predict_representation(x, logits).mean(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.predict_pointwise(x)
