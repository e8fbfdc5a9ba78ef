"""What a report shows of predictions of numbers, as arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from bdl.posterior.value_evaluation import ValueEvaluation
from bdl.posterior.value_metrics import QUANTILES, shares_below


@dataclass(frozen=True)
class Units:
    """The name and the units of a target: shift + scale x what the network sees."""

    name: str = "target"
    shift: float = 0.0
    scale: float = 1.0


@dataclass(frozen=True)
class Values:
    """The first target of n items in its units, and the calibration of all targets."""

    units: Units
    y: np.ndarray  # (n,)
    mean: np.ndarray  # (n,)
    std: np.ndarray  # (n,)
    low: np.ndarray  # (n,) of the central 90 % interval
    high: np.ndarray  # (n,)
    shares: Mapping[str, tuple[np.ndarray, np.ndarray]]  # name -> (q, share of y below the predicted q-quantile)
    targets: int = 1  # of an item

    @property
    def name(self) -> str:
        return self.units.name

    @classmethod
    def of(cls, evaluation: ValueEvaluation, units: Units | None = None) -> Values:
        """From the average over all chains, and the quantiles of one sample beside it."""
        prediction, y = evaluation.bma, evaluation.y.reshape(len(evaluation.y), -1)
        low, high = prediction.interval(0.9)
        parts = (y, prediction.mean, low, high, prediction.std)
        *places, std = (part[:, 0].double().numpy() for part in parts)
        units, q = units or Units(), torch.tensor(QUANTILES, dtype=torch.float64)
        data, mean, low, high = (units.shift + units.scale * part for part in places)
        named = {"one sample": evaluation.one_sample[0], "average of all chains": prediction}
        shares = {name: (q.numpy(), shares_below(p, y, q).numpy()) for name, p in named.items()}
        return cls(units, data, mean, units.scale * std, low, high, shares, y.shape[1])
