"""ScaledPoint: a trained network whose logits are divided by a temperature, fitted on held-out items."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from bdl.baselines.base import Baseline, Material, Tensors, check_outputs, last_linear, parameter_names
from bdl.batch import Inputs
from bdl.engine.forward import Forward
from bdl.engine.functional import call, evaluating
from bdl.errors import ConfigError
from bdl.likelihoods import Likelihood
from bdl.posterior.calibration import TemperatureScaling
from bdl.posterior.outputs import output_shape
from bdl.posterior.prediction import LabelPrediction, Prediction, prediction_of


@dataclass(frozen=True)
class ScaledPoint(Baseline):
    """The last network of every chain, with temperature scaling (Guo et al. 2017) fitted on the validation items.

        logits / T = (W / T) h + b / T,        so T goes into the last layer

    Each chain has its own T. One chain is the usual point estimate, several are a deep ensemble of scaled members.

    Raises ConfigError without validation items, for predictions of numbers, and for a network that does not end with a
    Linear layer.
    """

    draws = 1
    temperature = 0.0

    def check(self, net: nn.Module, inputs: Inputs, likelihood: Likelihood | None, val: bool) -> None:
        if not val:
            raise ConfigError(f"ScaledPoint needs val data: {self.remedies['val']}")
        if likelihood is not None and likelihood.outputs == "values":
            raise ConfigError("ScaledPoint scales probabilities, and this run predicts numbers: use another method")
        last_linear(net, inputs, "ScaledPoint")

    def networks(self, material: Material) -> Iterator[list[Tensors]]:
        net, trained = material.trained.net, material.trained
        batches = material.batches("val", self)
        likelihood = trained.likelihood(material.val)  # type: ignore[arg-type]
        inputs = material.first(self, "val")
        self.check(net, inputs, likelihood, True)
        layer = last_linear(net, inputs, "ScaledPoint")
        names, labels = parameter_names(net, layer), batches.labels(len(output_shape(net, batches)))
        forward, scaled = Forward(net), []
        for tensors in material.last_states():
            with torch.no_grad():
                outputs = batches.rows(forward, {k: v.unsqueeze(0) for k, v in tensors.items()}, likelihood)
            prediction = prediction_of(iter([(outputs, torch.ones(1, dtype=torch.float64))]), likelihood)
            assert isinstance(prediction, Prediction | LabelPrediction)
            T = TemperatureScaling.fit(prediction, labels).temperature
            scaled.append({**tensors, **{name: tensors[name] / T for name in names}})
            with torch.no_grad(), evaluating(net):
                wanted = call(net, tensors, inputs) / T
            check_outputs(net, scaled[-1], inputs, wanted, "the last layer of this network is used more than once")
        yield scaled
