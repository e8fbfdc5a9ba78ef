"""CollectSamples: writes the states that a keep-rule chooses to the sample store."""

from __future__ import annotations

import json
import warnings
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import lightning as L
import torch
from torch import Tensor

from bdl.disk.owner import sole_owner
from bdl.engine.stack import ChainStack
from bdl.errors import BdlWarning, ConfigError
from bdl.frozen import hold_in_eval
from bdl.lightning.blocks import SamplerCallback
from bdl.lightning.callbacks.batchnorm import refreshed_tensors
from bdl.lightning.callbacks.sample_writer import SampleWriter
from bdl.lightning.host import find_sampler, host_under, loss_of, reader_of, sampled_net
from bdl.lightning.module import BayesianModule
from bdl.lightning.refuse import check_data, check_keep_rule, check_saved, check_trainer
from bdl.lightning.training_inputs import see_first_batch
from bdl.lightning.visits import Visits
from bdl.posterior.samples import brief, first_difference
from bdl.posterior.store import SampleStore
from bdl.posterior.tensors import KEY as FROZEN_KEY
from bdl.posterior.tensors import FrozenPart, copies_of, frozen_names, stacked_tensors
from bdl.schedules import Keep
from bdl.snapshot import NETWORK, describe_target


def refuse_idle_epoch(last: tuple[int, int] | None, now: tuple[int, int]) -> tuple[int, int]:
    """What is `now`. Raises ConfigError where an epoch made no step. Each: the epoch, the steps before it."""
    if last is not None and last[0] < now[0] and last[1] == now[1]:
        raise ConfigError(
            f"epoch {last[0]} made no step: a StopIteration in the network, the loss or a callback ends an epoch in "
            "silence, as next() of an iterator without further items raises one: begin it anew"
        )
    return now


class CollectSamples(SamplerCallback):
    """Writes samples to `<run_dir>/samples/`, under any LightningModule that returns a Sampler.

    The callback writes the state after step k during step k + 1, when the sampler has measured the state's energy on a
    new batch. The batch of step k would give too low an energy, because the step has followed its gradient. The last
    state of a run has no such batch, so it gets no batch energy and no importance weight.

    Under ddp every rank follows the chain and the first rank writes. Chains are numbered through all stacks. The
    checkpoint holds the state that awaits its energy, and torch's random streams (dropout), so a resumed run writes the
    same files.

    Args:
        keep: the rule that chooses the steps (`bdl.schedules.EveryStep`, `PerCycle`).
        run_dir: the folder of the run; None means the trainer's `default_root_dir`.
        net: name of the submodule whose tensors are saved. None means `net`, or the whole module where it has no `net`;
            "" means the whole module.
        full_energy: also record U over all the data. It needs `sampler.full_loss`, which BayesianModule provides.
        batchnorm: "running" saves the buffers as they stand. "refresh" recomputes BatchNorm statistics over the
            training data, augmented as in training, for every sample; this costs a forward epoch per sample.
            Measured on ResNet8 and CIFAR-10, second epoch, 8 samples of one chain, running / refresh: at lr 0.1 the
            accuracy of one sample is 48.8 / 54.9 %, of the average 58.7 / 59.0 %, with NLL 1.19 / 1.14; at lr 0.01 they
            are 62.1 / 62.5 %, 62.7 / 62.8 % and 1.034 / 1.032. Refresh where lr is large and samples are used alone.
        freeze_weighting: stop psi from learning at the first kept step at which it has settled. Importance weights need
            this.
        overwrite: remove the samples that the folder holds already. Without it such a folder is refused.
        target: further names of the law (data, model). Runs that differ in them are not merged.

    Raises ConfigError when the run would keep no sample, keep samples while the dynamics adapts, lose sampled
    parameters, or overwrite another run; and for what `check_trainer` and `check_data` refuse. Raises StoreError when
    another process writes this stack, and when a resumed run lacks samples that its checkpoint knows.
    """

    def __init__(
        self,
        keep: Keep,
        run_dir: str | Path | None = None,
        net: str | None = None,
        full_energy: bool = True,
        batchnorm: Literal["running", "refresh"] = "running",
        freeze_weighting: bool = True,
        overwrite: bool = False,
        target: dict[str, Any] | None = None,
    ):
        if batchnorm not in ("running", "refresh"):
            raise ConfigError(f'batchnorm must be "running" or "refresh", got {batchnorm!r}')
        self.keep, self.run_dir, self.net, self.full_energy = keep, run_dir, net, full_energy
        self.batchnorm, self.freeze_weighting = batchnorm, freeze_weighting
        self.overwrite, self.target = overwrite, target or {}
        self._restored: dict[str, Any] | None = None  # the loaded checkpoint, until it is put into effect
        self._writer: SampleWriter | None = None  # the present run's, or the last one's
        self._begun: tuple[int, int] | None = None  # the last epoch, and the steps before it
        self._ownership = ExitStack()  # holds the samples of the stack as ours while the run writes

    # ---- Lightning's hooks ------------------------------------------------------------------------------------------

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        # A refresh reads the loader that a block moves on; an accelerator replays recorded steps, which own the buffers
        self.ends_block = self.batchnorm == "refresh" or pl_module.device.type != "cpu"
        check_trainer(trainer, self.sampler)
        check_data(trainer, self.sampler)
        if not isinstance(pl_module, BayesianModule):  # a BayesianModule says more itself
            self._visits = Visits(trainer, pl_module, self.sampler, weighs_parts=False)
            alone = trainer.accumulate_grad_batches == 1
            host = replace(self.sampler.host, items=lambda: self._visits.items if alone else None)
            self.sampler.host = host_under(trainer, host)
        self._total = trainer.estimated_stepping_batches  # infinite for a run without an end
        tests_code = trainer.fast_dev_run  # type: ignore[attr-defined]
        if not tests_code:  # which has too few steps for a sample
            check_keep_rule(self.keep, self.sampler, self._total)
        self.store = SampleStore(self.run_dir or trainer.default_root_dir)
        check_saved(sampled_net(pl_module, self.net), pl_module, self.sampler)
        self._find_frozen(pl_module)
        writer = self._writer = SampleWriter(self.store, self.sampler, writes=trainer.is_global_zero)
        if writer.writes:
            self._ownership.enter_context(sole_owner(self.store.folder / f"owner-{self.sampler.stack}.json"))
        self._refuse_overwriting()
        self._begin(trainer, pl_module, writer)

    def _begin(self, trainer: L.Trainer, pl_module: L.LightningModule, writer: SampleWriter) -> None:
        """Leave in the folder what the run has kept up to here, and go on writing."""
        waiting = None if self._restored is None else self._restored["pending"]
        if writer.writes:
            target = self._describe_target(pl_module)
            self._refuse_other_law(target)
            writer.truncate(self.sampler.steps - (waiting is not None), self._known("kept"))
            writer.begin(target, self._frozen)
        if waiting is not None:
            writer.waiting = {**waiting, "tensors": self._tensors(trainer, pl_module, waiting["rows"])}

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if self._restored is not None:  # no earlier, because making a data iterator draws from the global stream
            torch.set_rng_state(self._restored["rng"])
            if self._restored["cuda_rng"] is not None and torch.cuda.is_initialized():
                torch.cuda.set_rng_state(self._restored["cuda_rng"])
            self._restored = None
        if batch_idx == 0:
            self._begun = refuse_idle_epoch(self._begun, (trainer.current_epoch, self.sampler.steps))
        if not isinstance(pl_module, BayesianModule):
            self._visits.see(batch, batch_idx)
        if self.sampler.steps == 0 and batch_idx == 0:
            seen = see_first_batch(trainer, pl_module, sampled_net(pl_module, self.net), batch, self.sampler)
            self._writer.describe_inputs(seen)  # type: ignore[union-attr]

    def after_step(self, trainer: L.Trainer, pl_module: L.LightningModule, step: int) -> None:
        sampler, writer = self.sampler, self._writer
        assert writer is not None
        if writer.waiting is not None:
            sampler.check()  # a GPU reports numbers that are not finite only when asked
        writer.leave_out_diverged()
        writer.write(sampler.energy, sampler.log_weight)
        if self.keep(step):
            if self._frozen.differs_from(self._frozen_entry):
                writer.settle()
            self.store.refuse_other_frozen(self._frozen, self._frozen_entry)
            now = sampler.snapshot(self.full_energy, self.freeze_weighting)
            writer.leave_out_diverged()
            writer.keep(now, self.keep.cycle_of(now.step), self._tensors(trainer, pl_module, now.rows))
        if step >= self._total:
            writer.finish()  # last step: write now, because on_train_end may never run

    def must_see(self, step: int) -> bool:
        waits = self._writer is not None and self._writer.waiting is not None
        return waits or self.keep(step) or step >= self._total

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.global_step == 0:
            line = "the run made no step: its loader has no batch, or the Trainer's limits leave none"
            warnings.warn(f"{line}; give it data, or lower batch_size", BdlWarning, stacklevel=2)
        if self._restored is not None and trainer.is_global_zero:  # a run that had ended: no step was made
            sampler = find_sampler(trainer)
            sampler.host = host_under(trainer, sampler.host)  # what it says of batch noise depends on the batches
            self.store = SampleStore(self.run_dir or trainer.default_root_dir)
            SampleWriter(self.store, sampler, writes=True).truncate(sampler.steps, self._known("written"))

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        self._let_go()

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        self._let_go()

    def _let_go(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._ownership.close()

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._writer is not None:
            if not trainer.should_stop:  # a run that was asked to stop writes its waiting state after it is resumed
                self._writer.finish()
            self._writer.write_weighting()

    def state_dict(self) -> dict[str, Any]:
        cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None  # this process's device
        written = {"pending": None} if self._writer is None else self._writer.state_dict()
        return {**written, "rng": torch.get_rng_state(), "cuda_rng": cuda}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._restored = state_dict

    # ---- what is written --------------------------------------------------------------------------------------------

    def _tensors(self, trainer: L.Trainer, pl_module: L.LightningModule, rows: list[int]) -> dict[str, Tensor]:
        """Copies on the CPU of these rows of the tensors (C, ...)."""
        net, sampler = sampled_net(pl_module, self.net), self.sampler
        if self.batchnorm == "refresh":
            loader = trainer.train_dataloader
            tensors = refreshed_tensors(net, sampler, loader, reader_of(pl_module), self._frozen.tensors)
        else:
            tensors = stacked_tensors(net, sampler.chains, self._frozen.tensors)
        return copies_of(rows, tensors, sampler.chains, sampler.chain.theta)

    def _describe_target(self, pl_module: L.LightningModule) -> dict[str, Any]:
        net = sampled_net(pl_module, self.net)
        tensors = stacked_tensors(net, self.sampler.chains, self._frozen.tensors)
        return describe_target(self.sampler, loss_of(pl_module), tensors, net) | self.target

    def _known(self, which: Literal["kept", "written"]) -> str | None:
        """The last hash of the manifest that the checkpoint knows: of a run that goes on, or as it was at the end."""
        return None if self._restored is None else self._restored.get("manifest", {}).get(which)

    # ---- what is refused --------------------------------------------------------------------------------------------

    def _find_frozen(self, pl_module: L.LightningModule) -> None:
        """Hold the frozen part as the sampler says, and know it. A resumed run must have that of its samples."""
        net, sampler = sampled_net(pl_module, self.net), self.sampler
        if sampler.frozen == "eval" and not isinstance(net, ChainStack):
            hold_in_eval(net, {id(p) for p in sampler.sampled})
        resumed = self.store.target() if sampler.steps > 0 and self.store.has_target() else None
        self._frozen = FrozenPart(net, sampler, None if resumed is None else frozen_names(resumed))
        if resumed is not None:
            self.store.refuse_other_frozen(self._frozen, resumed)
        self._frozen_entry = self._frozen.entry()
        if self.batchnorm == "refresh" and any(name.endswith("running_mean") for name in self._frozen.tensors):
            what = 'batchnorm="refresh" recomputes the statistics of the whole network, and part of it is frozen'
            raise ConfigError(f'{what}: use "running", or frozen="train"')

    def _refuse_other_law(self, target: dict[str, Any]) -> None:
        """Raise ConfigError for a run that goes on in a folder whose samples are of another target distribution."""
        if self.sampler.steps == 0 or not self.store.has_target():
            return
        recorded, present = (
            {key: value for key, value in each.items() if key not in (FROZEN_KEY, NETWORK)}
            for each in (self.store.target(), json.loads(json.dumps(target)))
        )
        if (difference := first_difference(recorded, present)) is not None:
            key, there, here = difference
            raise ConfigError(
                f"{self.store.folder} holds samples of another target distribution: {key} is {brief(there)} there, and "
                f"{brief(here)} here; choose another run_dir"
            )

    def _refuse_overwriting(self) -> None:
        fresh = self.sampler.steps == 0 and not self.overwrite
        if fresh and self.store.has_files(self.sampler.stack):
            ways = "resume with Trainer.fit(ckpt_path=...), choose another run_dir, or remove them"
            raise ConfigError(f"{self.store.folder} holds samples already: {ways}")
