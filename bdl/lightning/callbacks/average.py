"""ModelAverage: metrics of the predictive average over the samples so far, during training."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from torch import Tensor

from bdl.batch import Inputs, feed, map_tensors, part_of
from bdl.engine.functional import evaluating
from bdl.errors import ConfigError
from bdl.lightning.blocks import SamplerCallback
from bdl.lightning.host import loss_of, reader_of
from bdl.likelihoods import EXAMPLES, Likelihood, likelihood_of
from bdl.posterior.outputs import Batches
from bdl.posterior.running import RunningAverage, running_average
from bdl.schedules import Keep


class ModelAverage(SamplerCallback):
    """Averages the predictions of all kept states on a loader, and logs metrics of the average.

    The callback averages probabilities, or laws of numbers, never logits. It holds a few tensors of the size of one
    network's predictions, however many samples there are. They are part of the checkpoint. When a chain diverges and
    the others go on, the average begins anew.

    Args:
        keep: the rule that chooses the steps.
        loader: labelled batches in a fixed order; None means the datamodule's validation loader. A loader that shuffles
            is read once and its batches are kept in memory.
        name: metrics are logged as `<name>/bma/accuracy`, `<name>/bma/nll`, ...
        likelihood: what the outputs mean; None means the module's `loss`.

    Raises ConfigError at the start of training without a loader, if the module returned no Sampler, if neither it nor
    the caller says what the outputs mean, and for targets that do not fit the outputs.
    """

    def __init__(self, keep: Keep, loader: Any = None, name: str = "val", likelihood: Likelihood | None = None):
        self.keep, self.loader, self.name, self.likelihood = keep, loader, name, likelihood
        self.metrics: dict[str, float] = {}
        self.average: RunningAverage | None = None
        self._counted: Tensor | None = None  # marks the elements of the items that count; None for all
        self._state: dict[str, Any] | None = None  # the state in a checkpoint, until training starts

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        self.ends_block = pl_module.device.type != "cpu"  # an accelerator replays recorded steps, which own the buffers
        if self.loader is None and trainer.datamodule is not None:  # type: ignore[attr-defined]
            self.loader = trainer.datamodule.val_dataloader()  # type: ignore[attr-defined]
        if not self.loader:
            raise ConfigError(
                "ModelAverage has no data: pass loader=, (x, y) batches in a fixed order, or a datamodule that holds "
                "validation data"
            )
        self._batches = Batches(self.loader, pl_module.device, reader_of(pl_module))
        self.average = self.average or self._average(pl_module)
        self._lost = 0 if self._state is None else self._state.pop("lost", 0)
        if self._state is not None:
            self.average.load_state_dict(self._state)
            self._state = None

    @torch.no_grad()
    def after_step(self, trainer: L.Trainer, pl_module: L.LightningModule, step: int) -> None:
        if self._lost != len(self.sampler.survivors.lost):  # the average holds networks of a chain that has diverged
            self.average, self._lost = self._average(pl_module), len(self.sampler.survivors.lost)
        if not self.sampler.target_chains:  # all have begun again
            return
        average, counted = self.average, self._counted
        assert average is not None
        with evaluating(pl_module):
            rows = [average.likelihood.rows(self._outputs(pl_module, x)).cpu() for x, _ in self._batches]
        each = torch.cat(rows, 1)  # (C, n, K)
        average.add((each if counted is None else each[:, counted])[self.sampler.target_chains])
        self.metrics = average.scores()
        for logger in trainer.loggers:
            logger.log_metrics({f"{self.name}/bma/{k}": v for k, v in self.metrics.items()}, step)

    @property
    def count(self) -> int:
        """Number of networks in the average."""
        return 0 if self.average is None else self.average.count

    def must_see(self, step: int) -> bool:
        return self.keep(step)

    @torch.no_grad()
    def _average(self, pl_module: L.LightningModule) -> RunningAverage:
        """An empty average, after a look at the outputs for one item: better to refuse them now than at the end."""
        inputs, _ = next(iter(self._batches))
        with evaluating(pl_module):
            outputs = self._outputs(pl_module, part_of(inputs, slice(0, 1)))
        axes, width = outputs.ndim - 1, outputs.shape[-1]
        likelihood = self.likelihood or likelihood_of(loss_of(pl_module), width, axes)
        if likelihood is None:
            raise ConfigError(
                f"ModelAverage does not know what the outputs of {type(pl_module).__name__} mean: pass {EXAMPLES}"
            )
        labels, _ = likelihood.split(self._batches.labels(axes))
        likelihood = likelihood.unweighted
        self._counted = likelihood.counted(labels) if axes > 2 else None  # all but the padding
        labels = labels if self._counted is None else labels[self._counted]
        likelihood.check(labels, likelihood.rows(outputs).shape[-1])
        return running_average(likelihood, labels)

    def _outputs(self, pl_module: L.LightningModule, inputs: Inputs) -> Tensor:
        """(C, B, ...) float32 outputs for a batch; C = 1 for a single chain."""
        inputs = map_tensors(lambda t: t.to(pl_module.device), inputs)
        outputs = feed(pl_module, pl_module.trainer.precision_plugin.convert_input(inputs)).float()
        return outputs if self.sampler.chains else outputs.unsqueeze(0)

    def state_dict(self) -> dict[str, Any]:
        return {} if self.average is None else {**self.average.state_dict(), "lost": self._lost}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._state = state_dict or None
