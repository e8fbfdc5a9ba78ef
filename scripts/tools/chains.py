"""What scripts use to run chains: a Trainer that says nothing, a clock of its steps, and the default run of a table."""

import functools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import Any

import lightning as L
from torch import Tensor, nn

import bdl
from bdl.data import TensorBatches

QUIET: dict[str, Any] = {  # for a Trainer on one CPU that leaves no files and prints nothing
    "accelerator": "cpu", "devices": 1, "max_epochs": -1, "logger": False, "enable_checkpointing": False,
    "enable_progress_bar": False, "enable_model_summary": False,
}  # fmt: skip


class Clock(L.Callback):
    """CPU seconds of this process at the end of every step; other processes of a shared machine do not count."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_train_batch_end(self, *_: Any, **__: Any) -> None:
        self.ends.append(time.process_time())

    def mean(self, first: int) -> float:
        """Seconds of a step after the first ones: a multiple of ten, so that readings count with their share."""
        return (self.ends[-1] - self.ends[first - 1]) / (len(self.ends) - first)


@contextmanager
def posterior_of_table(
    net: nn.Module, likelihood: Any, items: tuple[Tensor, Tensor], *, chains: int, steps: int, kept: int,
    precision: Any = 1.0, energy_var: float = 0.01, patience: int = 20, seed: int = 0,
) -> Iterator[tuple[bdl.Posterior, float]]:  # fmt: skip
    """Full-batch MCLMC from a deep ensemble: the posterior, in double precision, and the core-seconds of both.

    kept: samples of a chain, of the last 60 % of the steps. precision: of the prior. patience: epochs without progress
    that the deep ensemble allows.
    """
    began, burn_in = time.process_time(), int(0.4 * steps)
    stack = bdl.ChainStack(net, chains, seed=seed)
    batches = TensorBatches(*items, len(items[1]), chains=chains, seed=seed)
    bdl.AdamWStart(patience=patience).train(stack, batches, likelihood)
    build = functools.partial(
        bdl.Sampler, dynamics=bdl.MCLMC(energy_var=energy_var, energy_var_start=0.5, adapt_steps=burn_in),
        num_data=len(items[1]), lr=1e-3, prior=bdl.Gaussian(precision), seed=seed,
    )  # fmt: skip
    with TemporaryDirectory() as folder:
        keep = bdl.CollectSamples(bdl.schedules.EveryStep(burn_in, (steps - burn_in) // kept), full_energy=False)
        trainer = L.Trainer(**QUIET, max_steps=steps, default_root_dir=folder, callbacks=[keep])
        trainer.fit(bdl.BayesianModule(stack, build, loss=likelihood), batches)
        seconds = round(time.process_time() - began, 1)
        yield bdl.Posterior.load(folder, net.double(), likelihood=likelihood), seconds
