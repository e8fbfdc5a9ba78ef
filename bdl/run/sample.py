"""bdl.sample: samples of a network, kept, resumable and reported, in one call."""

from __future__ import annotations

import functools
import numbers
import warnings
from collections.abc import Iterable, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any

import lightning as L
from torch import nn
from torch.utils.data import IterableDataset

import bdl
from bdl.checkpoint import is_checkpoint
from bdl.data.fingerprint import fingerprint
from bdl.errors import ConfigError, Stopped
from bdl.frozen import check_parameters, refuse_parallel
from bdl.identity import architecture, identity
from bdl.lightning.host import plain_net
from bdl.likelihoods import Loss
from bdl.run.build import fit, silence_lightning
from bdl.run.law import own_likelihood
from bdl.samplers.dynamics.base import Transition
from bdl.samplers.dynamics.langevin import SGHMC
from bdl.schedules import EveryStep, Keep


def sample(
    net: nn.Module,
    loss: Loss | None,
    loader: Iterable[Any],
    run_dir: str | Path,
    *,
    steps: int,
    lr: float,
    dynamics: Transition = SGHMC(friction=0.1),  # noqa: B008
    keep: Keep | None = None,
    chains: int | None = None,
    test: Iterable[Any] | Mapping[str, Iterable[Any]] | None = None,
    schedule: bdl.Schedule | None = None,
    seed: int = 0,
    checkpoint_every: int = 1000,
    monitor_every: int = 50,
    accelerator: str = "auto",
    callbacks: Sequence[L.Callback] = (),
    **sampler: Any,
) -> bdl.Posterior:
    """Sample a network, keep the samples in a folder, write the report, and return the posterior.

    It is a `BayesianModule` under a Trainer with `CollectSamples`, `Monitor`, `SaveLast` and `Report`. The same call
    continues a run that was stopped; with more steps it extends one. The batches of a shuffling DataLoader are other
    ones after a stop; with `bdl.data.TensorBatches` the samples are those of an uninterrupted run.

    Args:
        net: the network. With `chains` it is copied, otherwise it is sampled where it is.
        loss: a likelihood of bdl, or any loss that is a mean over the batch; None for classes.
        loader: training batches, which a `bdl.batch.Reader` splits into inputs and target.
        run_dir: the folder of the run.
        steps: of the sampler, in all.
        keep: the rule that chooses the samples; None means 100 states of the second half.
        chains: C copies of the network. Those of a DataLoader share its batches.
        test: labelled batches for the report, see `bdl.report`; None for no report.
        callbacks: further ones.
        sampler: further arguments of `bdl.Sampler`, such as temperature, prior, weighting, only. num_data is the length
            of the loader's data set.

    Raises ConfigError for settings that cannot be sampled, and for a folder that holds a run of another network, other
    data, another loss, schedule or setting of the sampler, of which it names the first; Stopped after Ctrl-C or
    SIGTERM, once the state is saved.
    """
    dataset = _checked(net, loader, steps, keep)
    law = {"dynamics": dynamics, "num_data": len(dataset), "lr": lr, "seed": seed, **sampler}
    per_chain = getattr(loader, "chains", None) is not None
    part = {"only": sampler.get("only"), "frozen": sampler.get("frozen", "eval")}
    stack = net if chains is None else bdl.ChainStack(net, chains, seed=seed, shared=not per_chain, **part)
    module = bdl.BayesianModule(stack, functools.partial(bdl.Sampler, **law), loss)
    target = {"model": architecture(plain_net(stack)), "data": fingerprint(loader)}
    about = {**law, "chains": chains, "loss": module.loss, "batch_size": getattr(loader, "batch_size", None)}
    about |= {"schedule": None if schedule is None else schedule.functions}
    save = bdl.SaveLast(Path(run_dir) / "checkpoints", checkpoint_every, run={**identity(about), **target})
    keep = keep or EveryStep(burn_in=steps // 2, every=max(1, steps // 200))
    parts = [
        bdl.CollectSamples(keep, run_dir, target=target),
        bdl.Monitor(monitor_every),
        bdl.StepProgress(),
        save,
        *callbacks,
    ]
    if schedule is not None:
        parts.append(schedule)
    if test is not None:
        parts.append(bdl.Report(test if isinstance(test, Mapping) else {"test": test, "train": loader}))
    if save.path.exists() and not is_checkpoint(save.path):
        raise ConfigError(
            f"{save.path} is truncated, altered or no checkpoint: restore that of this run, or choose another folder"
        )
    trainer = L.Trainer(
        accelerator=accelerator, devices=1, max_steps=steps, max_epochs=-1, logger=False, num_sanity_val_steps=0,
        enable_model_summary=False, default_root_dir=run_dir, callbacks=parts,
    )  # fmt: skip
    with warnings.catch_warnings():
        silence_lightning()
        fit(trainer, module, loader, save.path if save.path.exists() else None)
    if save.signum is not None:
        raise Stopped(save.signum, f"stopped by signal {save.signum}; the same call resumes from {save.path}")
    return bdl.Posterior.load(run_dir, net, likelihood=own_likelihood(module.loss))


def _checked(net: nn.Module, loader: Any, steps: int, keep: Keep | None) -> Sized:
    """The data set of the loader. Raises ConfigError for arguments that are not what `sample` takes."""
    if not isinstance(net, nn.Module):
        raise ConfigError(f"bdl.sample needs a network, got {net!r}: with chains= it makes the copies itself")
    if not isinstance(steps, numbers.Integral) or steps < 1:
        raise ConfigError(f"steps must be a whole number of at least 1, got {steps!r}")
    if keep is not None and not isinstance(keep, Keep):
        raise ConfigError(f"keep must be a rule such as bdl.schedules.EveryStep(burn_in=0, every=10), got {keep!r}")
    refuse_parallel(net)
    check_parameters(net.named_parameters())
    dataset = getattr(loader, "dataset", None)
    if not isinstance(dataset, Sized) or isinstance(dataset, IterableDataset):
        raise ConfigError(f"bdl.sample needs a loader over a data set with a length, got {type(loader).__name__}")
    if not len(dataset) or not len(loader):
        what = f"the loader has no batch of its {len(dataset)} items"
        raise ConfigError(f"{what}: give it data, or lower batch_size")
    return dataset
