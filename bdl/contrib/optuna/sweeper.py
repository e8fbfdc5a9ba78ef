"""The sweeper `hydra/sweeper=optuna`: Optuna chooses trials, a launcher of Hydra runs them.

It has the keys of Hydra's plugin of the same name, which needs Optuna 2. Neither torch nor Optuna is imported before
a sweep begins.
"""

from __future__ import annotations

import contextlib
import io
import logging
import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from hydra.utils import get_method
from omegaconf import DictConfig, OmegaConf

from bdl.contrib.optuna.search_space import GRID, direction_of, grid_size, is_grid, make_sampler, search_space
from bdl.disk.files import write_atomically
from bdl.disk.owner import sole_owner
from bdl.errors import ConfigError, DivergedError, Stopped
from bdl.run.jobs import note_jobs
from bdl.run.sweeps import OPTUNA_SWEEPER

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution

FILE = "sqlite:///"
PACKAGE = OPTUNA_SWEEPER.partition(".")[0]
RESULTS = "optimization_results.yaml"
SAMPLERS: dict[str, dict[str, Any]] = {
    "tpe": {"_target_": "optuna.samplers.TPESampler", "n_startup_trials": 10, "n_ei_candidates": 24,
            "multivariate": False, "group": False, "constant_liar": True},
    "random": {"_target_": "optuna.samplers.RandomSampler"},
    "cmaes": {"_target_": "optuna.samplers.CmaEsSampler", "sigma0": None, "n_startup_trials": 1},
    "gp": {"_target_": "optuna.samplers.GPSampler", "n_startup_trials": 10, "deterministic_objective": False},
    "qmc": {"_target_": "optuna.samplers.QMCSampler", "qmc_type": "sobol", "scramble": True},
    "nsgaii": {"_target_": "optuna.samplers.NSGAIISampler", "population_size": 50},
    "grid": {"_target_": GRID},
}  # fmt: skip
SWEEPER: dict[str, Any] = {
    "_target_": OPTUNA_SWEEPER,
    "_recursive_": False,  # the sampler is made when the study is known
    "defaults": [{"sampler": "tpe"}],
    "direction": None,  # minimize or maximize; null: what suits `objective`
    "storage": FILE + "${hydra.sweep.dir}/optuna.db",
    "study_name": "${study_name:${hydra.runtime.choices},${hydra.overrides.task},${hydra.sweeper.params}}",
    "n_trials": 20,
    "n_jobs": 1,  # trials that are chosen and launched together
    "max_failure_rate": 0.0,  # share of jobs launched together; a chain that diverges is no failure
    "params": None,
    "custom_search_space": None,
}


@dataclass(eq=False)
class OptunaSweeper(Sweeper):
    """Finds the values of keys for which a run's objective is best.

    A study goes on: `n_trials` counts what earlier calls have done, and a trial that was stopped is launched again with
    the same values, hence in the same run directory, which resumes. A run that diverges is a pruned trial, whose values
    Optuna then avoids. One process at a time runs the studies of a file.
    """

    config: DictConfig = field(init=False)
    hydra_context: HydraContext = field(init=False)
    launcher: Launcher = field(init=False)
    sampler: DictConfig  # one of Optuna's; its seed is moved on, or a study that goes on would begin again
    direction: str | Sequence[str] | None  # minimize, maximize or None, which suits the metric `objective`
    storage: str | None  # a URL of a database, or None, which keeps nothing
    study_name: str | None
    n_trials: int  # how many trials the study shall have
    n_jobs: int  # how many trials are chosen and launched together
    max_failure_rate: float  # the share of failed jobs among those launched together above which the sweep ends
    params: Mapping[str, Any] | None  # the search space: Hydra's words by key; the command line replaces its entries
    custom_search_space: str | None  # path of a function of (configuration, `optuna.Trial`) that suggests more values

    def __post_init__(self) -> None:
        for name in ("n_trials", "n_jobs"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ConfigError(f"hydra.sweeper.{name} must be a whole number of at least 1, got {value!r}")
        if not 0 <= self.max_failure_rate <= 1:
            raise ConfigError(f"hydra.sweeper.max_failure_rate must be in [0, 1], got {self.max_failure_rate}")
        if self.storage is not None and self.study_name is None:
            raise ConfigError("hydra.sweeper.study_name is null: a study in a storage needs a name to be found again")
        self.suggest_more = get_method(self.custom_search_space) if self.custom_search_space else None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.config, self.hydra_context = config, hydra_context
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> None:
        check_version()
        words = [f"{key}={value}" for key, value in (self.params or {}).items()] + arguments
        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        fixed, space = search_space(parser.parse_overrides(words))
        with owner_of(self.storage):
            study = self._study(space)
            self._run_trials(study, [*fixed.values()], space)
            self._save_best(study)

    def _study(self, space: dict[str, BaseDistribution]) -> optuna.Study:
        import optuna

        optuna.logging.set_verbosity(logging.WARNING)
        direction = direction_of(self.direction, self.config.get("objective"))
        study = optuna.create_study(
            study_name=self.study_name, storage=self.storage, direction=direction, load_if_exists=True
        )
        if (there := study.direction.name.lower()) != direction:
            raise ConfigError(f"study {study.study_name} has direction={there}: give another hydra.sweeper.study_name")
        study.sampler = make_sampler(self.sampler, space, len(study.trials))
        return study

    def _run_trials(self, study: optuna.Study, fixed: list[str], space: dict[str, BaseDistribution]) -> None:
        """Run trials until `n_trials` have a value or diverged; a trial that failed or was stopped does not count."""
        from optuna.trial import TrialState

        done = len(study.get_trials(states=(TrialState.COMPLETE, TrialState.PRUNED)))
        wanted = min(self.n_trials, grid_size(space)) if is_grid(self.sampler) else self.n_trials
        print(f"study {study.study_name}: {done} of {wanted} trials are done", flush=True)
        stopped = self._stopped_trials(study, space)
        for launched in range(0, wanted - done, self.n_jobs):
            count = min(self.n_jobs, wanted - done - launched)
            trials = [stopped.pop(0) if stopped else self._ask(study, space) for _ in range(count)]
            jobs = [fixed + [f"{key}={value}" for key, value in trial.params.items()] for trial in trials]
            self.validate_batch_is_legal(jobs)
            note_jobs(self.config, jobs)
            self._tell(study, trials, self.launcher.launch(jobs, initial_job_idx=launched))

    def _ask(self, study: optuna.Study, space: dict[str, BaseDistribution]) -> optuna.Trial:
        trial = study.ask(space)
        if self.suggest_more is not None:
            self.suggest_more(self.config, trial)
        return trial

    def _stopped_trials(self, study: optuna.Study, space: Mapping[str, BaseDistribution]) -> list[Any]:
        """An earlier call's trials that have not ended, with their values. A trial without all values has failed.

        Only a study in a file has them: one process runs it at a time. Elsewhere trials may still be running.
        """
        from optuna.trial import TrialState

        running = study.get_trials(states=(TrialState.RUNNING,)) if file_of(self.storage) else []
        for trial in running:
            if not trial.params.keys() >= space.keys():
                study.tell(trial.number, state=TrialState.FAIL)
        return [trial for trial in running if trial.params.keys() >= space.keys()]

    def _tell(self, study: optuna.Study, trials: Sequence[Any], results: Sequence[JobReturn]) -> None:
        """Tell the study how jobs have ended. Raises the first error where too many have failed."""
        from optuna.trial import TrialState

        failures: list[Exception] = []
        for trial, job in zip(trials, results, strict=True):
            outcome = outcome_of(job)
            if isinstance(outcome, Stopped):
                raise outcome  # the trial goes on with the next call
            if not isinstance(outcome, Exception):
                tell(study, trial.number, outcome, TrialState.COMPLETE)
                continue
            diverged = isinstance(outcome, DivergedError)
            print(f"trial {trial.number} {'diverged' if diverged else 'failed'}: {outcome}", flush=True)
            tell(study, trial.number, None, TrialState.PRUNED if diverged else TrialState.FAIL)
            failures += [] if diverged else [outcome]
        if len(failures) > self.max_failure_rate * len(trials):
            raise failures[0]

    def _save_best(self, study: optuna.Study) -> None:
        if not any(trial.value is not None for trial in study.trials):
            raise ConfigError(f"study {study.study_name}: every trial diverged; search among smaller sampler.lr")
        best = {"name": "optuna", "best_params": study.best_params, "best_value": study.best_value}
        folder = Path(self.config.hydra.sweep.dir)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / RESULTS, OmegaConf.to_yaml(OmegaConf.create(best)).encode())
        params = " ".join(f"{key}={value}" for key, value in study.best_params.items())
        print(f"study {study.study_name}: best is {study.best_value:.6g}, trial {study.best_trial.number}: {params}")


OptunaSweeper.__module__ = f"{PACKAGE}.bdl"  # Hydra makes plugins of no other package


def register_sweeper() -> None:
    """Make `hydra/sweeper=optuna` this sweeper, also where Hydra's plugin of this name is installed."""
    Plugins.instance().register(OptunaSweeper)
    with contextlib.suppress(ImportError):  # no plugin is installed, hence there is no such package
        import_module(PACKAGE)
    package = sys.modules.setdefault(PACKAGE, ModuleType(PACKAGE))
    module = ModuleType(OptunaSweeper.__module__)
    setattr(module, OptunaSweeper.__name__, OptunaSweeper)
    sys.modules[module.__name__] = module
    setattr(package, module.__name__.rpartition(".")[2], module)
    store = ConfigStore.instance()
    store.store(group="hydra/sweeper", name="optuna", node=SWEEPER, provider="bdl")
    store.repo["hydra"]["sweeper"].pop("sampler", None)  # the plugin's, some of which Optuna no longer has
    for name, settings in SAMPLERS.items():
        store.store(group="hydra/sweeper/sampler", name=name, node=settings | {"seed": None}, provider="bdl")


def check_version() -> None:
    import optuna

    if int(optuna.__version__.partition(".")[0]) < 4:
        raise ConfigError(f"hydra/sweeper=optuna needs optuna >= 4, not {optuna.__version__}: pip install 'bdl[sweep]'")


def file_of(storage: str | None) -> Path | None:
    return Path(storage.removeprefix(FILE)) if storage is not None and storage.startswith(FILE) else None


def owner_of(storage: str | None) -> AbstractContextManager[None]:
    """This process owns the studies of a file in the meantime; a server of databases knows its clients itself."""
    if (path := file_of(storage)) is None:
        return contextlib.nullcontext()
    path.parent.mkdir(parents=True, exist_ok=True)
    return sole_owner(path.with_name(f"{path.name}.owner.json"))


def outcome_of(job: JobReturn) -> float | Exception:
    """The objective of a job, or the error with which it ended, which says so where the objective is no number."""
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # Hydra has a line of its own for a failed job
            value = job.return_value  # raises the error of the job
    except Exception as error:
        return error
    if not isinstance(value, int | float):
        return ConfigError(
            f"a run returned {value!r}, which is no number: optimise `train`, and a metric by objective="
        )
    return DivergedError("the objective is not a number") if math.isnan(value) else value


def tell(study: optuna.Study, number: int, value: float | None, state: optuna.trial.TrialState) -> None:
    """`study.tell`. A grid that is complete then asks `study.optimize` to stop, which is not used here."""
    try:
        study.tell(number, value, state)
    except RuntimeError:
        if not study.trials[number].state.is_finished():
            raise
