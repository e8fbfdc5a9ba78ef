"""Sweeps: what a launcher asks a cluster for, and an optimising sweep that goes on where it was.

Hydra's plugins bring the configurations of their launchers and sweepers. `register_sweeps` changes their defaults, so
that jobs are requeued and studies are kept. This module imports neither torch nor a plugin.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, flag_override

from bdl.disk.owner import sole_owner
from bdl.errors import ConfigError
from bdl.run.config import count_stacks, register
from bdl.run.console import one_line_errors

FILE = "sqlite:///"
DEFAULTS: dict[str, dict[str, Any]] = {
    "launcher/submitit_slurm": {
        "nodes": "${oc.select:trainer.num_nodes,1}",
        "tasks_per_node": "${tasks_per_node:}",
        "cpus_per_task": "${cpus_per_task:}",
        "gpus_per_node": "${gpus_per_node:}",
        "max_num_timeout": 20,  # starts of a job that ran out of `timeout_min`; preemptions do not count
        "additional_parameters": {"requeue": True},
    },
    "launcher/submitit_local": {
        "timeout_min": 10_000,  # a week; submitit restarts a job that is out of time, three times at most
        "gpus_per_node": "${gpus_per_node:}",
    },
    "sweeper/optuna": {
        "storage": FILE + "${hydra.sweep.dir}/optuna.db",
        "study_name": "${study_name:${hydra.runtime.choices},${hydra.overrides.task}}",
        "n_jobs": 1,  # trials that are chosen and launched together
    },
}


def register_sweeps() -> None:
    """Register the resolvers of DEFAULTS, and DEFAULTS over what installed plugins register. Safe to call twice."""
    register(
        tasks_per_node=tasks_per_node, cpus_per_task=cpus_per_task, gpus_per_node=gpus_per_node, study_name=study_name
    )  # fmt: skip
    Plugins.instance()  # finds the plugins, which register their configurations
    store = ConfigStore.instance()
    for name, settings in DEFAULTS.items():
        group, _, option = name.partition("/")
        stored = store.repo["hydra"].get(group, {}).get(f"{option}.yaml")
        if stored is not None:
            node = OmegaConf.merge(stored.node, settings)
            store.store(group=f"hydra/{group}", name=option, node=node, provider=stored.provider)


def tasks_per_node(*, _root_: DictConfig) -> int:
    """The processes that SLURM starts on each machine: those of trainer=ddp and chains; otherwise one."""
    trainer = _root_.trainer
    several = trainer.get("strategy") in ("ddp", "chains")
    return trainer.devices * trainer.get("concurrent", 1) if several else 1


def cpus_per_task(*, _root_: DictConfig) -> int:
    """`threads` cores for each process of a task; a task of a run on one CPU carries all stacks, if it may."""
    stacks = count_stacks(_root_)
    return (_root_.threads or 1) * min(stacks, _root_.processes or stacks)


def gpus_per_node(*, _root_: DictConfig) -> int | None:
    """`trainer.devices` where they are GPUs; None on CPUs, and where the machine decides."""
    return _root_.trainer.devices if _root_.trainer.accelerator in ("gpu", "cuda") else None


def study_name(choices: DictConfig, overrides: Sequence[str]) -> str:
    """The name of an optimising sweep: the same overrides, in any order, find the same study."""
    words = "\n".join(sorted(overrides))
    return f"{choices.data}-{choices.model}-{choices.sampler}-{hashlib.sha256(words.encode()).hexdigest()[:8]}"


class ResumeStudy(Callback):
    """Lets an optimising sweep over a storage file go on: `n_trials` counts the trials of earlier calls too.

    A trial that was stopped is tried again with the same values, hence in the same run directory, which resumes. One
    process at a time runs a study's file: two of them would take each other's trials for stopped ones.
    """

    def __init__(self) -> None:
        self._owned = contextlib.ExitStack()

    def __reduce__(self) -> tuple[Any, ...]:
        return ResumeStudy, ()  # submitit sends it to the jobs, which own nothing

    @one_line_errors()  # Hydra makes warnings of the errors of its callbacks, and goes on
    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        sweeper = config.hydra.sweeper
        storage = sweeper.get("storage")
        if not str(sweeper.get("_target_")).endswith(".OptunaSweeper") or storage is None:
            return
        if not storage.startswith(FILE):
            return  # a database server knows which of its studies' processes live; bdl does not
        if sweeper.study_name is None:
            raise ConfigError("hydra.sweeper.study_name is null: a study in a file needs a name to be found again")
        path = Path(storage.removeprefix(FILE))
        path.parent.mkdir(parents=True, exist_ok=True)
        self._owned.enter_context(sole_owner(path.with_name(f"{path.name}.owner.json")))
        atexit.register(self._owned.close)  # after an error no callback is called
        left = trials_left(storage, sweeper.study_name, sweeper.n_trials)
        with flag_override(sweeper, ["readonly", "struct"], False):
            sweeper.n_trials = left

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        self._owned.close()


def trials_left(storage: str, name: str, wanted: int) -> int:
    """How many of `wanted` trials a study lacks. Trials that were stopped are queued again.

    A trial that failed or was stopped counts as lacking.
    """
    import optuna
    from optuna.trial import TrialState

    optuna.logging.set_verbosity(logging.WARNING)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)  # enqueue_trial is experimental
    if name not in (study.study_name for study in optuna.get_all_study_summaries(storage)):
        return wanted
    study = optuna.load_study(study_name=name, storage=storage)
    queued = [trial.system_attrs.get("fixed_params") for trial in study.get_trials(states=(TrialState.WAITING,))]
    for trial in study.get_trials(states=(TrialState.RUNNING,)):
        study.tell(trial.number, state=TrialState.FAIL)
        if trial.params and trial.params not in queued:
            study.enqueue_trial(trial.params)
    done = len(study.get_trials(states=(TrialState.COMPLETE,)))
    print(f"study {name}: {done} of {wanted} trials are done", flush=True)
    return max(0, wanted - done)
