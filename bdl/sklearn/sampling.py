"""From tensors to a posterior in memory: the run that an estimator's `fit` makes."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import lightning as L
import torch
from torch import Tensor, nn

import bdl
from bdl.data.loader import TensorBatches, TensorSlices
from bdl.errors import BdlWarning, ConfigError
from bdl.likelihoods import Likelihood
from bdl.posterior.report.numbers import summarise
from bdl.posterior.verdict import verdict
from bdl.samplers.dynamics.base import Transition

SAMPLERS: dict[str, Callable[[int], Transition]] = {  # by name, for runs with that many steps of burn-in
    "mclmc": lambda burn_in: bdl.MCLMC(energy_var=0.1, energy_var_start=0.5, adapt_steps=burn_in),
    "hmc": lambda burn_in: bdl.HMC(adapt_steps=burn_in),
    "sghmc": lambda burn_in: bdl.SGHMC(),
}
BURN_IN = 0.4  # of the steps, before samples are kept
CHECKED = 1000  # training rows that the verdict looks at, evenly spaced
ROWS = 100  # of the trace of a run


@dataclass(frozen=True)
class Plan:
    """How to sample; the estimators' arguments of the same names say what they mean."""

    sampler: str | Transition
    lr: float
    chains: int
    samples: int
    steps: int
    batch_size: int | None
    temperature: float
    prior_std: float | str
    seed: int
    verbose: bool

    def keep(self) -> bdl.schedules.EveryStep:
        """The rule that keeps just `samples` states, after at least BURN_IN of the steps."""
        if self.samples < 1 or self.chains < 1:
            raise ConfigError(f"chains and samples must be at least 1, got {self.chains} and {self.samples}")
        every = int((1 - BURN_IN) * self.steps) // self.samples
        if every < 1:
            raise ConfigError(
                f"steps={self.steps} are too few to keep samples={self.samples} of them after burn-in: set steps to at "
                f"least {math.ceil(self.samples / (1 - BURN_IN))}, or lower samples"
            )
        return bdl.schedules.EveryStep(self.steps - every * self.samples, every)

    def dynamics(self) -> Transition:
        """Raises ConfigError for an unknown name."""
        if not isinstance(self.sampler, str):
            return self.sampler
        if self.sampler not in SAMPLERS:
            raise ConfigError(
                f"sampler must be one of {', '.join(SAMPLERS)}, or dynamics such as bdl.SGHMC(0.05); "
                f"got {self.sampler!r}"
            )
        return SAMPLERS[self.sampler](self.keep().burn_in)

    def prior(self) -> bdl.Gaussian:
        """Raises ConfigError for a scale that is neither positive nor a name."""
        if isinstance(self.prior_std, str):
            return bdl.Gaussian(self.prior_std)
        if not self.prior_std > 0:
            raise ConfigError(f"prior_std must be > 0, or a name such as 'fan_in'; got {self.prior_std}")
        return bdl.Gaussian(self.prior_std**-2)


def sample(net: nn.Module, likelihood: Likelihood, x: Tensor, y: Tensor, plan: Plan) -> bdl.Posterior:
    """Sample the posterior of a network for all items x (n, features) and y.

    The posterior holds its samples in memory, and no file remains. It computes in double precision, so that a row has
    the same prediction whatever the other rows are.
    """
    dynamics = plan.dynamics()
    size = len(x) if dynamics.full_batch or plan.batch_size is None else min(plan.batch_size, len(x))
    batches = TensorBatches(x, y, size, chains=plan.chains, seed=plan.seed)
    stack = bdl.ChainStack(net, plan.chains, seed=plan.seed)
    build = functools.partial(
        bdl.Sampler, dynamics=dynamics, num_data=len(x), lr=plan.lr, temperature=plan.temperature,
        prior=plan.prior(), seed=plan.seed,
    )  # fmt: skip
    monitor = bdl.Monitor(max(1, plan.steps // ROWS))
    callbacks = [bdl.CollectSamples(plan.keep(), full_energy=False), monitor]
    with tempfile.TemporaryDirectory() as folder, quiet_lightning(), one_thread():
        trainer = L.Trainer(
            max_steps=plan.steps, max_epochs=-1, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
            enable_progress_bar=plan.verbose, enable_model_summary=False, default_root_dir=folder,
            callbacks=callbacks + [bdl.StepProgress()] * plan.verbose,
        )  # fmt: skip
        trainer.fit(bdl.BayesianModule(stack, build, loss=likelihood), batches)
        posterior = bdl.Posterior.load(folder, net.double(), likelihood=likelihood).cache()
        if plan.verbose:
            print_verdict(posterior, x, y, monitor)
    return posterior


def print_verdict(posterior: bdl.Posterior, x: Tensor, y: Tensor, monitor: bdl.Monitor) -> None:
    """Print whether the samples can be trusted, from what the chains say of the training items."""
    rows = torch.linspace(0, len(x) - 1, min(len(x), CHECKED)).long()
    summary = summarise(posterior, {"train": TensorSlices(x[rows].double(), y[rows])}, monitor.trace())
    for check in verdict(summary.metrics, warnings=summary.warnings):
        print(f"{check.level:4}  {check.name}: {check.value}: {check.words}")


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread, which is the fastest for small networks, and whose sums never differ."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def quiet_lightning() -> Iterator[None]:
    """Hide Lightning's messages and warnings, but not those of bdl."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.WARNING)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="lightning.*")
            warnings.filterwarnings("default", category=BdlWarning)  # those of modules count as Lightning's
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
