"""What needs no configuration: `bdl.sample`, `bdl.report` and the callback `bdl.Report`.

They sample a network and report a run of any Trainer, or of any loop that left samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Unpack, overload

import torch
from torch import nn

import bdl
from bdl.checkpoint import found_checkpoint
from bdl.data.fingerprint import fingerprint
from bdl.data.module import DataModule, in_order
from bdl.data.ordered import size_of
from bdl.errors import ConfigError, Stopped
from bdl.identity import architecture, code_of, identity
from bdl.interrupts import explained, signal_in_words, terminable
from bdl.law.measure import measure_law
from bdl.lean import L
from bdl.lightning.blocks import StepCallback
from bdl.lightning.host import batches_of, callbacks_of, find_sampler, loss_of, plain_net
from bdl.lightning.trainer import assemble, fit, silenced_lightning
from bdl.likelihoods import EXAMPLES, BernoulliNLL, CategoricalNLL, Likelihood, Loss, ValueNLL, likelihood_of
from bdl.posterior.traces import read_traces, side_by_side, write_trace
from bdl.run.begun import begun_by, entry_of_code, interruption
from bdl.run.directory import refuse_links_of
from bdl.run.outcome import Outcome
from bdl.run.rehearsal import rehearse
from bdl.run.sample_arguments import SampleArguments, check_arguments, default_keep
from bdl.run.sampled_network import Network, built, checked_data, measures_energies, missing_items, stacked
from bdl.run.sampler_settings import SamplerSettings
from bdl.run.section import own_likelihood
from bdl.run.threads import on_threads, thread_count
from bdl.run.write_report import LabelledData, ReportRequest, TargetWords, find_splits, write_report
from bdl.samplers.dynamics.base import Transition
from bdl.schedules import Keep
from bdl.tune.sampler import ON_BATCHES


@overload
def sample(
    net: Network,
    loss: CategoricalNLL | nn.CrossEntropyLoss | None,
    loader: Iterable[Any],
    run_dir: str | Path,
    **arguments: Unpack[SampleArguments],
) -> bdl.Posterior[bdl.Prediction]: ...
@overload
def sample(
    net: Network,
    loss: BernoulliNLL | nn.BCEWithLogitsLoss,
    loader: Iterable[Any],
    run_dir: str | Path,
    **arguments: Unpack[SampleArguments],
) -> bdl.Posterior[bdl.LabelPrediction]: ...
@overload
def sample(
    net: Network,
    loss: ValueNLL | nn.MSELoss,
    loader: Iterable[Any],
    run_dir: str | Path,
    **arguments: Unpack[SampleArguments],
) -> bdl.Posterior[bdl.ValuePrediction]: ...
@overload
def sample(
    net: Network,
    loss: Loss,
    loader: Iterable[Any],
    run_dir: str | Path,
    **arguments: Unpack[SampleArguments],
) -> bdl.Posterior[Any]: ...
def sample(
    net: Network,
    loss: Loss | None,
    loader: Iterable[Any],
    run_dir: str | Path,
    *,
    steps: int,
    lr: float,
    dynamics: Transition = ON_BATCHES,
    keep: Keep | None = None,
    full_energy: bool | None = None,
    chains: int | None = None,
    start: Literal["fresh", "given"] | None = None,
    test: Iterable[Any] | Mapping[str, Iterable[Any]] | None = None,
    schedule: bdl.Schedule | None = None,
    seed: int = 0,
    checkpoint_every: int = 1000,
    monitor_every: int = 50,
    accelerator: str = "auto",
    threads: int | None = 1,
    callbacks: Sequence[L.Callback] = (),
    **sampler: Any,
) -> bdl.Posterior[Any]:
    """Sample a network, keep the samples in a folder, write the report, and return the posterior.

    It is a `BayesianModule` under a Trainer with `CollectSamples`, `Monitor`, `SaveLast` and `Report`. The same call
    continues a run that was stopped; with more steps it extends one. The batches of a shuffling DataLoader are other
    ones after a stop; with `bdl.data.TensorBatches` the samples are those of an uninterrupted run.

    Args:
        net: the network. With `chains` it is copied, otherwise it is sampled where it is. A function or a class that
            builds it is called for each chain.
        loss: a likelihood of bdl, or any loss that is a mean over the batch; None for classes.
        loader: training batches, which a `bdl.batch.Reader` splits into inputs and target.
        run_dir: the folder of the run.
        steps: how many the sampler takes, in all.
        keep: the rule that chooses the samples; None means 50 to 100 states of the second half, or all of it where it
            has fewer.
        full_energy: measure U over all the data at every kept state; None does so where it costs at most a tenth of the
            steps.
        chains: C copies of the network. Those of a DataLoader share its batches.
        start: where the copies begin: "fresh" initialises each, "given" begins at the network's weights; see
            `bdl.ChainStack`.
        test: labelled batches for the report, see `bdl.report`; None for no report, so that nothing judges the samples,
            of which a VerdictWarning tells.
        threads: of the CPU, for sampling and the report; one is fastest for a small network, None takes all cores.
            Afterwards torch has as many as before.
        callbacks: further ones.
        sampler: further arguments of `bdl.Sampler`, such as temperature, prior, weighting, only. num_data is the number
            of items in the loader's batches; items of several observations, and data without a length, need it.

    Raises ConfigError for settings that cannot be sampled, and for a folder with a run of another network, other data,
    loss, schedule or setting of the sampler, of which it names the first; Stopped after Ctrl-C or SIGTERM, once the
    state is saved (uncaught, it ends a script with 130 or 143); KeyboardInterrupt with what is kept during the report.
    """
    check_arguments(steps, keep, start, test, schedule, seed, callbacks, sampler)
    thread_count(threads)
    one, items = built(net), checked_data(loader, sampler.get("num_data"))
    law = {"dynamics": dynamics, "num_data": items, "lr": lr, "seed": seed, **sampler}
    stack = one if chains is None else stacked(net, loader, chains, start, law)
    module = bdl.BayesianModule(stack, SamplerSettings(**law), loss)
    with missing_items(loader):
        target = {"model": architecture(plain_net(stack)), "data": fingerprint(loader)}
    record = {**_identity(module, loader, law, chains, schedule), **target}
    checkpoint = Path(run_dir) / "checkpoints" / "last.ckpt"
    refuse_links_of(Path(run_dir))
    again, record = begun_by(record, Path(run_dir), checkpoint)
    save = bdl.SaveLast(checkpoint.parent, checkpoint_every, checkpoint.stem, run=record)
    keep = keep or default_keep(steps)
    measures = measures_energies(full_energy, keep.count(steps) / steps, items, batches_of(loader))
    collect = bdl.CollectSamples(keep, run_dir, full_energy=measures, target=target, overwrite=again)
    labelled = test if test is None or isinstance(test, Mapping) else {"test": test, "train": loader}
    later = [*([] if schedule is None else [schedule]), *([] if labelled is None else [bdl.Report(labelled)])]
    ours = [collect, bdl.Monitor(monitor_every), bdl.StepProgress(folder=run_dir), save]
    what = f"Lightning makes no Trainer with accelerator={accelerator!r} and these callbacks"
    settings = {"accelerator": accelerator, "devices": 1, "max_steps": steps, "max_epochs": -1}
    kept = explained(lambda: interruption(run_dir, save.path, module.sampler.steps == steps))
    with silenced_lightning():
        trainer = assemble([*ours, *callbacks, *later], run_dir, refusal=what, **settings)
        with on_threads(threads), terminable(), kept, missing_items(loader):
            fit(trainer, module, loader, found_checkpoint(save.path, "choose another folder"))
    if save.signum is not None:
        raise Stopped(save.signum, f"stopped by {signal_in_words(save.signum)}; the same call resumes from {save.path}")
    return bdl.Posterior.opened(run_dir, one, likelihood=own_likelihood(module.loss))


def _identity(
    module: bdl.BayesianModule, loader: Any, law: Mapping[str, Any], chains: int | None, schedule: bdl.Schedule | None
) -> dict[str, Any]:
    """What the same call of `sample` has in common with this one, but for network and data, as plain values."""
    prior = {"prior": law["prior"].identity()} if "prior" in law else {}
    about = {"chains": chains, "loss": module.loss, "batch_size": getattr(loader, "batch_size", None)}
    about |= entry_of_code(code_of(module.loss))
    return identity({**law, **prior, **about, "schedule": None if schedule is None else schedule.functions})


def report(
    run_dir: str | Path,
    module: nn.Module,
    data: LabelledData = None,
    *,
    likelihood: Likelihood | None = None,
    train_items: int | None = None,
    threads: int | None = 1,
) -> dict[str, float]:
    """Evaluate the samples of a run; write its metrics.json and report.html and print a summary. Returns the metrics.

    It is the report of `train.py`. Temperatures come from the run's `Monitor`: of the Trainer that the module still
    belongs to, or as `bdl.Report` has left them in the folder; otherwise they are unknown, and the report says so.

    Args:
        run_dir: the folder that `CollectSamples` or `SampleStore.append` wrote to.
        module: the network that was sampled, or the module that holds it.
        data: a data module, a loader of labelled test batches, or a dict of loaders named test, val and train. None
            takes those of the module's Trainer. Validation data stand in for test data that are not there.
        likelihood: what the outputs mean, where the run's loss does not say so.
        train_items: number of training items, evenly spaced, for the training metrics; None for all.
        threads: as in `bdl.sample`.

    Raises StoreError for a folder without samples, or with those of another network; ConfigError without test data.
    """
    kept = explained(lambda: f"all samples are kept in {run_dir}: the same call makes the report")
    with on_threads(threads), terminable(), kept:
        return _report(run_dir, module, data, likelihood, train_items)


def _report(
    run_dir: str | Path, module: nn.Module, data: LabelledData, likelihood: Likelihood | None, train_items: int | None
) -> dict[str, float]:
    run, trainer = Path(run_dir), _trainer_of(module)
    likelihood = likelihood or own_likelihood(loss_of(module))
    posterior = bdl.Posterior.opened(run, module, likelihood=likelihood)
    splits = find_splits(data, trainer, train_items)
    datamodule = data if isinstance(data, L.LightningDataModule) or trainer is None else trainer.datamodule  # type: ignore[attr-defined]
    words = TargetWords.of(datamodule) if isinstance(datamodule, DataModule) else TargetWords()
    about = {"title": run.name, "module": type(module).__name__, "network": type(posterior.net).__name__}
    num_data = {"N": f"{posterior.target['num_data']:,}"}
    if trainer is None:
        traces = read_traces(run, sorted({r.stack for r in posterior.records}))
        outcome = Outcome(posterior.records[-1].step, side_by_side(traces) if traces else {}, None)
        return write_report(ReportRequest(run, posterior, splits, outcome, about | num_data, words=words))
    sampler = find_sampler(trainer)
    outcome = Outcome(sampler.steps, _trace(trainer), sampler.swap_rates)
    facts = {**about, "sampler": type(sampler.dynamics).__name__, **num_data}
    law = law_of(trainer, module, posterior, sampler)
    request = ReportRequest(run, posterior, splits, outcome, facts, sampler, None, words, trainer.loggers, law=law)
    return write_report(request)


def law_of(
    trainer: L.Trainer, module: Any, posterior: bdl.Posterior, sampler: bdl.Sampler, states: int | None = None
) -> dict[str, float]:
    """`measure_law` of a run; {} where the loss or the order of the data is not known."""
    loss, loader = loss_of(module), trainer.train_dataloader
    batches = in_order(loader, None)
    if loss is None or batches is None or sampler.host.group is not None:
        return {}
    return measure_law(posterior, sampler, loss, batches, sampler.steps, size_of(loader) or 1, states=states)


class Report(StepCallback):
    """Writes `bdl.report` into the folder of `CollectSamples` when `fit` ends, unless a signal ended it.

    Args:
        data, likelihood, train_items: see `bdl.report`.

    Raises ConfigError at the start of training without a `CollectSamples`, if neither the module's `loss` nor
    `likelihood` says what the outputs mean, and for what `rehearse` finds on the first batch of each split.
    """

    def __init__(
        self, data: LabelledData = None, *, likelihood: Likelihood | None = None, train_items: int | None = None
    ):
        self.data, self.likelihood, self.train_items = data, likelihood, train_items
        self.metrics: dict[str, float] = {}

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._folder(trainer)
        loss = loss_of(pl_module)
        if self.likelihood is None and likelihood_of(loss) is None:
            raise ConfigError(
                f"bdl.Report does not know what the outputs of {type(pl_module).__name__} mean: pass {EXAMPLES}; "
                "bdl.sample takes one of them as its loss"
            )

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        sampler = find_sampler(trainer)
        if sampler.steps == 0 and batch_idx == 0 and trainer.is_global_zero:
            rehearse(pl_module, sampler, find_splits(self.data, trainer, self.train_items), self.likelihood)

    def must_see(self, step: int) -> bool:
        return False

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        stopped = any(save.signum is not None for save in callbacks_of(trainer, bdl.SaveLast))
        tests_code = trainer.fast_dev_run  # type: ignore[attr-defined]
        if stopped or not trainer.is_global_zero or tests_code:
            return
        run = self._folder(trainer)
        write_trace(run, find_sampler(trainer).stack, _trace(trainer))
        self.metrics = _report(run, pl_module, self.data, self.likelihood, self.train_items)  # on the Trainer's threads
        for logger in trainer.loggers:
            logger.log_metrics({k: v for k, v in self.metrics.items() if v == v}, find_sampler(trainer).steps)

    def _folder(self, trainer: L.Trainer) -> Path:
        if not (collectors := callbacks_of(trainer, bdl.CollectSamples)):
            raise ConfigError("bdl.Report needs samples: add bdl.CollectSamples(keep) to the Trainer's callbacks")
        return Path(collectors[0].run_dir or trainer.default_root_dir)


def _trainer_of(module: nn.Module) -> L.Trainer | None:
    """The Trainer that the module belongs to, None if there is none or it never trained."""
    try:
        trainer = module.trainer if isinstance(module, L.LightningModule) else None
    except RuntimeError:  # Lightning's answer of a module without one
        return None
    return trainer if trainer is not None and trainer.optimizers else None


def _trace(trainer: L.Trainer) -> dict[str, torch.Tensor]:
    monitors = callbacks_of(trainer, bdl.Monitor)
    return monitors[0].trace() if monitors else {}
