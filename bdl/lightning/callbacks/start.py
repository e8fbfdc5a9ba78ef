"""EnsembleStart: trains the chains as a deep ensemble before the sampler is built, and keeps the ensemble on disk."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor

from bdl.data.module import as_data_module
from bdl.display import Progress
from bdl.engine.stack import ChainStack
from bdl.errors import ConfigError
from bdl.identity import identity
from bdl.lightning.host import sampled_net
from bdl.lightning.module import BayesianModule
from bdl.likelihoods import Loss, outputs_of
from bdl.posterior.store import SampleStore
from bdl.posterior.tensors import FrozenPart, stacked_tensors
from bdl.posterior.trained import START
from bdl.start import AdamWStart, Trained


class EnsembleStart(L.Callback):
    """Trains the stack of a BayesianModule by `AdamWStart`; the sampler begins at these parameters.

    The ensemble is written to `<run_dir>/start`, one file per stack, once the run has passed its
    checks: `Posterior.load(run_dir / "start", net)` predicts with it. A run that finds its ensemble there loads it. A
    run that was killed before begins again and trains the same ensemble to the bit.

    Args:
        start: the settings of the training.
        run_dir: the folder of the run.
        stack: the number of this stack; it names the file.
        target: further names of the law (data, model), as in `CollectSamples`.
        progress: makes a context whose value is called after every epoch, see `AdamWStart.train`.
        report: called with what the training did.

    Raises ConfigError for a network that is no ChainStack, and for data in another loader than those of bdl.data.
    """

    def __init__(
        self,
        start: AdamWStart,
        run_dir: str | Path,
        stack: int = 0,
        target: dict[str, Any] | None = None,
        progress: Callable[[], AbstractContextManager[Progress | None]] = nullcontext,
        report: Callable[[Trained], None] = lambda trained: None,
    ):
        self.start, self.store, self.stack = start, SampleStore(Path(run_dir) / START), stack
        self.target, self.progress, self.report = target or {}, progress, report
        self._write: Callable[[], None] | None = None  # writes an ensemble that was trained, once
        self._ready = False

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        if stage == "fit":
            datamodule: Any = trainer.datamodule  # type: ignore[attr-defined]
            if datamodule is None:
                raise ConfigError("EnsembleStart needs a data module: trainer.fit(module, datamodule)")
            pl_module.to(trainer.strategy.root_device)
            self.prepare(pl_module, datamodule)

    def prepare(self, module: L.LightningModule, datamodule: Any) -> None:
        """Give the module's stack the parameters of the ensemble: from disk, or by training. Once is enough."""
        if self._ready:
            return
        stack = sampled_net(module, None)
        if not isinstance(module, BayesianModule) or not isinstance(stack, ChainStack):
            raise ConfigError("start needs a BayesianModule of a ChainStack: bdl.ChainStack(net, chains)")
        if self.store.manifest(self.stack).samples():
            self._load(stack)
        else:
            self._train(module, stack, datamodule)
        self._ready = True

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._write is not None and trainer.is_global_zero:
            self._write()
        self._write = None

    def _train(self, module: BayesianModule, stack: ChainStack, datamodule: Any) -> None:
        data = as_data_module(datamodule)
        val = data.val_dataloader() or None
        with self.progress() as progress:
            trained = self.start.train(
                stack, data.train_dataloader(), module.loss, val, compiled=module.compiled, progress=progress,
                groups=data.groups.get("train"),
            )  # fmt: skip
        tensors = {k: v.to("cpu", copy=True) for k, v in stacked_tensors(stack, stack.chains).items()}
        self._write = partial(self._save, module.loss, tensors, FrozenPart(stack), trained.epochs)
        self.report(trained)

    @torch.no_grad()
    def _load(self, stack: ChainStack) -> None:
        """Raises StoreError for a damaged file."""
        (record,) = [r for r in self.store.records() if r.stack == self.stack]
        saved = self.store.read(record)
        for name, tensor in stacked_tensors(stack, stack.chains).items():
            tensor.copy_(saved[name])

    def _save(self, loss: Loss, tensors: dict[str, Tensor], frozen: FrozenPart, epochs: int) -> None:
        shapes = {k: list(v.shape[1:]) for k, v in tensors.items()}
        target = {"loss": identity(loss), "outputs": outputs_of(loss), "injects_noise": False, "shapes": shapes}
        target |= {"start": identity(self.start), **self.target}
        self.store.write_target(target, self.stack, frozen)
        chains = len(next(iter(tensors.values())))
        self.store.write(
            tensors, step=epochs, stack=self.stack, chains=[self.stack * chains + c for c in range(chains)],
            lr=self.start.lr, temperature=0.0,
        )  # fmt: skip
