"""From tensors to a posterior in memory: the run that an estimator's `fit` makes."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor, nn

import bdl
from bdl.data.loader import TensorBatches, TensorSlices
from bdl.disk.temporary import own_folder
from bdl.errors import ConfigError, VerdictWarning, check_choice, check_whole
from bdl.law.measure import measure_law
from bdl.lightning.trainer import assemble, fit, silenced_lightning
from bdl.likelihoods import Likelihood, WeightedNLL, with_weights
from bdl.posterior.report.next_steps import of_an_estimator
from bdl.posterior.report.numbers import without_scores
from bdl.posterior.verdict import Verdict, verdict
from bdl.run.sampler_settings import SamplerSettings
from bdl.run.threads import on_threads
from bdl.samplers.dynamics.base import Transition
from bdl.samplers.priors.scales import NAMED
from bdl.tune.find import rows_of_trials
from bdl.tune.sampler import SAMPLERS, choose_length, choose_sampler

BURN_IN = 0.4  # share of the steps before samples are kept
LR = 1e-3  # samplers that find their step size begin here
CHECKED = 100  # training rows that the verdict looks at, evenly spaced: more of them would cost a third of a fit
ROWS = 100  # length of the trace of a run


class NotConverged(VerdictWarning, ConvergenceWarning):
    """The verdict on the samples of an estimator is not "trust"."""


@dataclass(frozen=True)
class SamplingPlan:
    """How to sample; the estimators' arguments of the same names say what they mean."""

    sampler: str | Transition
    start: bdl.AdamWStart | str | None
    chains: int
    samples: int
    steps: Any  # int; None until `for_rows` has chosen it
    lr: float | None
    batch_size: int | None
    temperature: float | str
    prior_std: float | str | None
    seed: int
    verbose: bool

    def __post_init__(self) -> None:
        for name in ("chains", "samples", "steps"):
            if name != "steps" or self.steps is not None:
                check_whole(name, getattr(self, name))
        if self.steps is not None and self.steps * (1 - BURN_IN) < self.samples:
            raise ConfigError(
                f"steps={self.steps} are too few to keep samples={self.samples} of them after burn-in: set steps to at "
                f"least {math.ceil(self.samples / (1 - BURN_IN))}, or lower samples"
            )
        if self.sampler not in ("auto", *SAMPLERS) if isinstance(self.sampler, str) else isinstance(self.sampler, type):
            raise ConfigError(
                f"sampler must be auto or one of {', '.join(SAMPLERS)}, or dynamics such as bdl.SGHMC(0.05); "
                f"got {self.sampler!r}"
            )
        if isinstance(self.start, str) and self.start != "adamw":
            raise ConfigError(f"start must be 'adamw', None or a bdl.AdamWStart, got {self.start!r}")
        if isinstance(self.prior_std, str):
            check_choice("prior_std", self.prior_std, sorted(NAMED))
        if isinstance(self.prior_std, int | float) and not self.prior_std > 0:
            raise ConfigError(f"prior_std must be > 0, got {self.prior_std}")
        if isinstance(self.temperature, str) and self.temperature != "auto":
            raise ConfigError(f"temperature must be 'auto' or a number, got {self.temperature!r}")

    def for_rows(self, rows: int, rhat: float = math.nan) -> SamplingPlan:
        """The plan with a sampler in place of "auto" and a number of steps, see `choose_length`."""
        sampler = choose_sampler(rows) if self.sampler == "auto" else self.sampler
        name = sampler if isinstance(sampler, str) else "mclmc" if sampler.full_batch else "sghmc"
        steps = choose_length(name, rows, rhat) if self.steps is None else self.steps
        return dataclasses.replace(self, sampler=sampler, steps=steps)

    def dynamics(self) -> Transition:
        return SAMPLERS[self.sampler](self.keep(None).burn_in) if isinstance(self.sampler, str) else self.sampler

    def target(self, likelihood: Likelihood) -> float | None:
        """T; None where it is to be found: for classes, with a prior that is found too."""
        if not isinstance(self.temperature, str):
            return self.temperature
        classes = likelihood.outputs in ("logits", "labels")
        is_open = classes and self.prior_std is None and self.dynamics().full_batch
        return None if is_open else 1.0

    def keep(self, burn_in: int | None) -> bdl.schedules.EveryStep:
        """The rule that keeps `samples` states, the last one at the end; None: after 40 % of the steps."""
        burn_in = int(BURN_IN * self.steps) if burn_in is None else burn_in
        every = max(1, (self.steps - burn_in) // self.samples)
        return bdl.schedules.EveryStep(self.steps - every * self.samples, every)

    def given(self, dynamics: Transition) -> dict[str, Any]:
        """The settings that need not be found, by the names of `bdl.find_settings`."""
        prior = self.prior_std if self.prior_std is None or isinstance(self.prior_std, str) else self.prior_std**-2
        given = frozenset() if isinstance(self.sampler, str) else dynamics.tunable
        settings = {
            "lr": self.lr,
            "batch_size": self.batch_size,
            "prior": None if prior is None else bdl.Gaussian(prior),
            "friction": dynamics.friction if "friction" in given else None,
        }
        return {name: value for name, value in settings.items() if value is not None}


def sample(
    net: nn.Module,
    law: Likelihood,
    x: Tensor,
    y: Tensor,
    plan: SamplingPlan,
    groups: Tensor | None = None,
    weights: Tensor | None = None,
) -> tuple[bdl.Posterior, Verdict]:
    """Sample the posterior of a network for all items x (n, features) and y.

    groups: (n,) of the items; a part of them that is held out for a while has whole groups.

    Warns with `NotConverged` where the verdict is not "trust"; where it is printed, printing is enough. The posterior
    holds its samples in memory, and no file remains. It computes in double precision, so that a row has
    the same prediction whatever the other rows are. weights: (n,) of the rows; None for 1 each.
    """
    likelihood, targets = (law, y) if weights is None else (WeightedNLL(law), with_weights(y, weights))
    asked, plan = plan, plan.for_rows(len(x))
    with quiet_on_one_thread(), own_folder() as folder:
        stack = bdl.ChainStack(net, plan.chains, seed=plan.seed)
        if plan.start is not None:
            start, (rows, _) = plan.start, rows_of_trials(len(x), plan.seed, groups)  # trials begin there too
            start = start if isinstance(start, bdl.AdamWStart) else bdl.AdamWStart()
            start.train(stack, batches_of(x, targets, len(x), plan), likelihood, groups=groups, rows=rows)
        settings = find_missing(stack, likelihood, x, targets, plan, groups)
        plan = asked.for_rows(len(x), settings.pop("rhat", math.nan))
        monitor, sampler = run(stack, likelihood, x, targets, plan, settings, folder)
        kept = bdl.Posterior.opened(folder, net, likelihood=law)
        size = sampler.dynamics.batch_of(len(x), settings.get("batch_size"))
        measured = measure_law(kept, sampler, likelihood, TensorSlices(x, targets), plan.steps, size)
        posterior = bdl.Posterior.opened(folder, net.double(), likelihood=law).cache()
        judged = judge(posterior, x, y, monitor, measured)
    given = {name: value for name in ("lr", "prior_std") if (value := getattr(asked, name)) is not None}
    steps = of_an_estimator(judged, plan.steps, plan.samples, plan.chains, given)
    following = [f"next: {words[0].lower()}{words[1:]}: {line}" for words, line in steps]
    if plan.verbose:
        use = "next: predictive(X) has means, errors and quantiles; pickle or joblib.dump keeps the fitted estimator"
        answers = (f"{question} {answer}" for question, answer in judged.answers)
        print(*answers, judged.line, *following, use, sep="\n")
    elif judged.outcome != "trust":
        warnings.warn("; ".join([judged.line, *following]), NotConverged, stacklevel=4)  # at the call of `fit`
    return posterior, judged


def run(
    stack: bdl.ChainStack, likelihood: Likelihood, x: Tensor, y: Tensor, plan: SamplingPlan, settings: dict[str, Any],
    folder: Path,
) -> tuple[bdl.Monitor, bdl.Sampler]:  # fmt: skip
    """Sample with these settings, and leave the samples in the folder. Returns what watched and moved the chains."""
    dynamics: Any = plan.dynamics()
    if "friction" in settings:
        dynamics = dataclasses.replace(dynamics, friction=settings["friction"])
    sampler = SamplerSettings(
        dynamics=dynamics, num_data=len(x), lr=settings.get("lr", LR), temperature=settings["temperature"],
        prior=settings["prior"], seed=plan.seed,
    )  # fmt: skip
    collect = bdl.CollectSamples(plan.keep(settings.get("burn_in")), full_energy=False)
    monitor = bdl.Monitor(max(10, plan.steps // ROWS))
    may_lower = plan.lr is None and "lr" in dynamics.tunable
    promises = bdl.callbacks.Promises([collect], may_lower, say=print if plan.verbose else lambda line: None)
    trainer = assemble(
        [promises, collect, monitor, *[bdl.StepProgress()] * plan.verbose], folder, max_steps=plan.steps, max_epochs=-1,
        accelerator="cpu", devices=1, enable_checkpointing=False, enable_progress_bar=plan.verbose,
    )  # fmt: skip
    module = bdl.BayesianModule(stack, sampler, loss=likelihood)
    fit(trainer, module, batches_of(x, y, dynamics.batch_of(len(x), settings.get("batch_size")), plan))
    return monitor, module.sampler


def batches_of(x: Tensor, y: Tensor, size: int, plan: SamplingPlan) -> TensorBatches:
    return TensorBatches(x, y, size, chains=plan.chains, seed=plan.seed)


def find_missing(
    stack: bdl.ChainStack, likelihood: Likelihood, x: Tensor, y: Tensor, plan: SamplingPlan, groups: Tensor | None
) -> dict[str, Any]:
    """All settings: those given, and those that `bdl.find_settings` finds for the stack."""
    dynamics, temperature = plan.dynamics(), plan.target(likelihood)
    given, fixed = plan.given(dynamics), {} if temperature is None else {"temperature": temperature}
    if given.keys() >= ({"prior"} if dynamics.full_batch else {"prior", "lr", "batch_size"}):
        return given | fixed
    tuning = bdl.find_settings(
        stack, likelihood, (x, y), dynamics=dynamics, temperature=temperature, steps=plan.steps, given=given,
        seed=plan.seed, groups=groups,
    )  # fmt: skip
    if plan.verbose:
        print(*tuning.choices, sep="\n")
    found = tuning.settings
    return {
        "rhat": tuning.rhat,
        **fixed,
        **given,
        **found,
        **({"prior": bdl.Gaussian(found["prior"])} if "prior" in found else {}),
    }


def judge(posterior: bdl.Posterior, x: Tensor, y: Tensor, monitor: bdl.Monitor, law: Mapping[str, float]) -> Verdict:
    """Whether the samples can be trusted, from what chains and exact gradients say of the training items."""
    rows = torch.linspace(0, len(x) - 1, min(len(x), CHECKED)).long()
    evaluations = posterior.evaluate_all({"train": TensorSlices(x[rows].double(), y[rows])})
    metrics, told = without_scores(posterior, evaluations, monitor.trace())
    return verdict({**metrics, **law}, warnings=told)


@contextlib.contextmanager
def quiet_on_one_thread() -> Iterator[None]:
    """Hide Lightning's messages, and run torch on one thread: the fastest for small networks, and sums never differ."""
    with silenced_lightning(), on_threads(1):
        yield
