"""CollectSamples: writes the states that a keep-rule chooses to the sample store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from bdl.errors import ConfigError
from bdl.files import write_atomically
from bdl.lightning.find import find_sampler, per_chain, sampled_net, stacked_tensors
from bdl.lightning.refuse import check_data, check_trainer
from bdl.lightning.module import one_epoch
from bdl.models.stack import ChainStack
from bdl.posterior.store import SampleStore
from bdl.samplers import Sampler
from bdl.schedules import Keep
from bdl.seeding import derive_seed


class CollectSamples(Callback):
    """Keeps samples of a Sampler under any LightningModule, as `<run_dir>/samples/`.

    The state after step k is written during step k + 1, when the sampler has measured its energy on a batch that this
    state has not seen: an energy of the batch that made the state would be too low. The last state of a run has no such
    batch and no importance weight.

    Args:
        keep: which steps (`bdl.schedules.EveryStep`, `PerCycle`).
        run_dir: where; the trainer's `default_root_dir` unless given.
        net: name of the submodule that is saved; `net` unless given, or else the whole module ("" always means that).
        full_energy: also record U over all the data (needs `sampler.full_loss`; BayesianModule provides it).
        batchnorm: "running" saves the buffers as they stand, "refresh" recomputes BatchNorm statistics over the
            training data, augmented as in training, for every sample. ResNet8 on CIFAR-10, second epoch, 8 samples
            of one chain, running / refresh: at lr .1 accuracy of one sample 48.8 / 54.9 %, of the average 58.7 / 59.0,
            its NLL 1.19 / 1.14; at lr .01 then 62.1 / 62.5, 62.7 / 62.8, 1.034 / 1.032. So refresh where lr is large
            and samples are used alone; it costs a forward epoch per sample.
        freeze_weighting: stop psi from learning at the first kept step at which it has settled, so that importance
            weights mean something.
        overwrite: start anew in a folder that holds samples already, and remove those; refused unless given.
        target: more of what names the law (data, model), so that runs of different targets are never merged.

    Under ddp every rank follows the chain and the first one writes. Chains are numbered through all stacks.

    Its checkpoint holds what it awaits and torch's RNG states (dropout), so that a resumed run writes the same files.

    Raises ConfigError when the run would keep no sample, lose sampled parameters, or overwrite another run.
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
        self._pending: dict[str, Any] | None = None
        self._restored: dict[str, Any] | None = None
        self._finished = False

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._sampler = find_sampler(trainer)
        check_trainer(trainer, self._sampler)
        check_data(trainer, self._sampler)
        self._total = trainer.estimated_stepping_batches  # infinite for a run without an end
        if self._total != float("inf") and self.keep.count(int(self._total)) == 0:
            raise ConfigError(
                f"{self.keep} keeps no sample in {int(self._total)} steps: shorten burn_in or every, or run longer"
            )
        adapting = getattr(self._sampler.dynamics, "adapt_steps", None) or 0
        if self.keep.count(adapting):
            raise ConfigError(
                f"{self.keep} keeps samples within the first {adapting} steps, in which "
                f"{type(self._sampler.dynamics).__name__} still adapts: raise burn_in or lower adapt_steps"
            )
        self.store = SampleStore(self.run_dir or trainer.default_root_dir)
        self._writes = trainer.is_global_zero
        self._seen = self._sampler.steps
        self._refuse_missing_parameters(pl_module)
        self._pending, self._finished = None, False
        self._refuse_overwriting()
        awaited = None if self._restored is None else self._restored["pending"]
        if self._writes:
            self.store.truncate(self._sampler.stack, self._sampler.steps - (awaited is not None))
            self._write_target(pl_module)
        if awaited is not None:
            self._pending = {**awaited, "tensors": self._tensors(trainer, pl_module)}

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if self._restored is not None:  # as late as this, because making a data iterator draws from the global RNG
            torch.set_rng_state(self._restored["rng"])
            if self._restored["cuda_rng"] is not None and torch.cuda.is_initialized():
                torch.cuda.set_rng_state(self._restored["cuda_rng"])
            self._restored = None

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._sampler.steps == self._seen:  # a micro-batch: gradients accumulate, nothing has moved
            return
        self._seen = self._sampler.steps
        if self._pending is not None:
            self._sampler.check()  # or an energy that is not finite would be written where a device has yet to say so
        self._write(self._sampler.energy, self._sampler.log_weight)
        if self.keep(self._seen):
            self._snapshot(trainer, pl_module)
        if self._seen >= self._total:
            self._finish()  # now, so that a run killed after its last checkpoint lacks nothing

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not trainer.should_stop:  # a run that was asked to stop writes its pending state when it goes on
            self._finish()
        self._write_weighting()

    def state_dict(self) -> dict[str, Any]:
        cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None  # of this process's device
        pending = None if self._pending is None else {k: v for k, v in self._pending.items() if k != "tensors"}
        return {"pending": pending, "rng": torch.get_rng_state(), "cuda_rng": cuda}  # its tensors are the module's own

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._restored = state_dict

    def _snapshot(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Copy the present state, and what is known of it now, until its batch energy is known too."""
        sampler = self._sampler
        sampler.check()
        frozen = sampler.freeze_weighting() if self.freeze_weighting else False
        used, chains, target = sampler.used, sampler.chains, sampler.target_chains
        full = sampler.full_energy() if self.full_energy and sampler.full_loss is not None else None
        self._pending = {
            "tensors": self._tensors(trainer, pl_module),
            "step": sampler.steps,
            "stack": sampler.stack,
            "chains": [sampler.stack * (chains or 1) + c for c in target],
            "cycle": self.keep.cycle_of(sampler.steps),
            "lr": _number(used["lr"], target),
            "temperature": _number(used["temperature"], target),
            "zeta": float(used["zeta"]),
            "energy_full": None if full is None else [per_chain(full, chains)[c] for c in target],
            "psi_frozen": frozen,
        }

    def _tensors(self, trainer: L.Trainer, pl_module: L.LightningModule) -> dict[str, Tensor]:
        net = sampled_net(pl_module, self.net)
        refresh = self.batchnorm == "refresh"
        tensors = self._refreshed(trainer, net) if refresh else stacked_tensors(net, self._sampler.chains)
        whole = len(self._sampler.target_chains) == (self._sampler.chains or 1)
        rows = slice(None) if whole else self._sampler.target_chains
        return {k: v[rows].to("cpu", copy=True) for k, v in tensors.items()}

    def _write(self, energy: Tensor | None, log_weight: Tensor | None) -> None:
        if self._pending is None:
            return
        pending, chains, target = dict(self._pending), self._sampler.chains, self._sampler.target_chains
        self._pending = None
        if self._sampler.weighting.energy == "full" and pending["energy_full"] is not None:
            # psi reads this very energy, whose last evaluation by the sampler may be some steps old
            log_weight = self._sampler.log_weight_at(torch.tensor(pending["energy_full"], dtype=torch.float64))
        elif energy is None:
            log_weight = None
        if not self._writes:
            return
        self.store.write(
            pending.pop("tensors"),
            energy_batch=None if energy is None else [per_chain(energy, chains)[c] for c in target],
            log_weight=None if log_weight is None else [per_chain(log_weight, chains)[c] for c in target],
            **pending,
        )

    def _finish(self) -> None:
        """Write the pending state without its energy. A checkpoint made now still says that it awaits one."""
        pending = self._pending
        if not self._finished:
            self._write(None, None)
            self._write_weighting()
        self._pending, self._finished = pending, True

    def _refreshed(self, trainer: L.Trainer, net: nn.Module) -> dict[str, Tensor]:
        """The state with BatchNorm statistics recomputed over one epoch; the network keeps its own."""
        own = {name: b.clone() for name, b in net.named_buffers()}
        device = next(net.parameters()).device
        stack = net if isinstance(net, ChainStack) else None
        method = stack.method if stack else "auto"
        # dropout: a stream of its own, so that the chain's goes on as if nothing were
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(derive_seed("refresh", self._sampler.seed, self._sampler.stack, self._sampler.steps))
            if stack:
                stack.method = "loop"  # cumulative averages read a count as a number, which vmap can't
            update_bn(one_epoch(trainer.train_dataloader), net, device=device)
        if stack:
            stack.method = method
        tensors = {k: v.clone() for k, v in stacked_tensors(net, self._sampler.chains).items()}
        for name, buffer in net.named_buffers():
            buffer.copy_(own[name])
        return tensors

    def _refuse_missing_parameters(self, pl_module: L.LightningModule) -> None:
        saved = {id(p) for p in sampled_net(pl_module, self.net).parameters()}
        missing = [n for n, p in pl_module.named_parameters() if p.requires_grad and id(p) not in saved]
        sampled = {id(p) for p in self._sampler.param_groups[0]["params"]}
        names = [n for n in missing if id(pl_module.get_parameter(n)) in sampled]
        if names:
            raise ConfigError(
                f'{names[0]} is sampled but not part of the network that is saved: pass net="" to save all'
            )

    def _refuse_overwriting(self) -> None:
        fresh = self._sampler.steps == 0 and not self.overwrite
        if fresh and self.store.has_records(self._sampler.stack):
            raise ConfigError(
                f"{self.store.folder} holds samples already: go on with Trainer.fit(ckpt_path=...), choose another "
                "run_dir, or remove them"
            )

    def _write_target(self, pl_module: L.LightningModule) -> None:
        tensors = stacked_tensors(sampled_net(pl_module, self.net), self._sampler.chains)
        target = {
            "num_data": self._sampler.num_data,
            "prior": str(self._sampler.prior),
            "loss": repr(getattr(pl_module, "loss", None)),
            "clip": repr(self._sampler.clip),
            "weighting": [type(self._sampler.weighting).__name__, self._sampler.weighting.zeta],
            "injects_noise": getattr(self._sampler.dynamics, "noisy", True),
            "caveat": getattr(self._sampler.dynamics, "caveat", None),
            "shapes": {k: list(v.shape[1:]) for k, v in tensors.items()},
            **self.target,
        }
        write_atomically(self.store.folder / "target.json", json.dumps(target, indent=1, sort_keys=True).encode())

    def _write_weighting(self) -> None:
        sampler: Sampler = self._sampler
        h = sampler.histogram
        if h is None or not self._writes:
            return
        rows = len(h.psi)
        group = sampler.param_groups[0]
        temperature = torch.as_tensor(group["temperature"], dtype=torch.float64).expand(rows)
        tensors = {
            "edges": sampler.weighting.edges(h),  # type: ignore[attr-defined]
            "log_psi": h.log_psi,
            "visits": h.visits,
            "zeta": torch.full((rows,), float(group["zeta"]), dtype=torch.float64),
            "temperature": temperature,
            "recent_energies": h.window[: min(h.seen, len(h.window))],
        }
        about = {"energy": sampler.weighting.energy, "weighting": type(sampler.weighting).__name__}
        self.store.write_weighting(sampler.stack, tensors, about)


def _number(value: Any, chains: list[int]) -> float | list[float]:
    """One number, or one for each of the chains."""
    if not isinstance(value, Tensor):
        return float(value)
    return [float(value[c]) for c in chains] if value.ndim else float(value)
