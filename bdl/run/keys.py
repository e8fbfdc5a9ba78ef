"""The keys of the commands that no constructor checks: a table of annotations and keys, and the keys that there are.

A new key of conf/ gets its place in its command's table. This module imports neither torch nor Lightning, so that a
wrong command line ends at once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from hydra.conf import HydraConf
from omegaconf import DictConfig, OmegaConf

from bdl.errors import ConfigError, did_you_mean
from bdl.run.config import check_stacks, leaves, plain, seconds_of
from bdl.run.validate import Rule, fitting, rule_of

MANY = 10**12  # steps; more than any run makes
_ABSENT = object()


def whole(least: int, most: int | None = None) -> Rule:
    words = f"of at least {least}" if most is None else f"from {least} to {most:,}"
    return Rule(f"a whole number {words}", lambda v: type(v) is int and least <= v and (most is None or v <= most))


def number(words: str, inside: Callable[[float], bool]) -> Rule:
    return Rule(f"a number {words}", lambda v: type(v) in (int, float) and inside(v))


def some(element: object, least: int = 0) -> Rule:
    """A list of at least so many."""
    rule = rule_of(Sequence[element])
    return Rule(rule.words, lambda v: rule.fits(v) and len(v) >= least)


WORD = Rule("a word", lambda v: type(v) is str and bool(v.strip()))
STEPS = Rule(  # 1e5 is a float in YAML
    f"a whole number from 1 to {MANY:,}, or -1 for a run of trainer.max_epochs",
    lambda v: type(v) in (int, float) and (v == -1 or 1 <= v <= MANY and v == int(v)),
)
TIME = Rule("a time such as 90s, 10m or 1h", lambda v: type(v) is str and seconds_of(v) is not None)
POSITIVE = number("> 0", lambda v: v > 0)
NOT_NEGATIVE = number(">= 0", lambda v: v >= 0)
WIDTH = whole(1, 10**6)
SEED = whole(0, 2**63 - 1)
ONLY = Rule("a pattern of names such as fc.*, a list of them, or null", (WORD | some(WORD, 1) | None).fits)
CALIBRATE = {
    "calibrate.method": Literal["conformal", "temperature"],
    "calibrate.by": Literal["class", None],
    "calibrate.level": number("between 0 and 1", lambda v: 0 < v < 1),
}


def table(*rows: tuple[Any, str]) -> dict[str, Any]:
    """The annotation of each key, from rows of an annotation and the keys that have it."""
    return {key: wanted for wanted, keys in rows for key in keys.split()}


STRATEGY = Rule(
    "ddp (one chain on several devices) or chains (a stack on each): a chain lies whole on every device",
    lambda value: value in ("auto", "ddp", "chains"),
)
# A key, or with `.*` every number below it. Further keys may follow from constructors, but none of the trainer's.
TRAIN = table(
    (STEPS, "length trainer.max_steps"),  # before the schedules, whose numbers may follow from them
    (SEED, "seed data.seed data.split_seed sampler.seed"),
    (whole(0, 10**6), "stack data.stack"),
    (whole(1, 10**5), "chains trainer.num_nodes"),
    (whole(1, 10**5) | None, "stacks"),
    (whole(1, 1024) | None, "processes threads"),
    (bool, "shared_batches tf32 trainer.sync_batchnorm trainer.benchmark trainer.detect_anomaly"),
    (Literal["stop", "drop"], "on_divergence"),
    (Literal["auto", True, False], "compile"),
    (Literal["auto", False], "tune.settings"),
    (Literal["classes", True, False], "tune.temperature"),
    (Rule("auto or false", lambda v: isinstance(v, Mapping) or v is False or v == "auto"), "tune"),
    (TIME | None, "budget"),
    (Rule("null, because train.py fills it in", lambda v: v is None), "found"),
    (WORD, "run_dir start.path model.name trainer.accelerator"),
    (WORD | None, "trainer.profiler"),
    (Rule("null or the name of a metric", (WORD | None).fits), "objective"),
    (whole(1), "checkpoint_every monitor_every start.batch_size trainer.log_every_n_steps"),
    (whole(1) | None, "train_items sampler.num_data"),
    (whole(1, 10**6), "start.epochs start.patience data.max_levels sampler.dynamics.leapfrog"),
    (whole(1, 10**6), "trainer.start_epochs trainer.accumulate_grad_batches"),
    (whole(2, 10**6), "sampler.weighting.bins"),
    (whole(1, MANY), "sampler.weighting.pilot collect.keep.samples_per_cycle"),
    (Literal["all", None], "refit"),
    (Literal["auto", "stacking", "uniform"], "weights"),
    (some(WORD), "start.skip"),
    (whole(0, 1024), "data.workers"),
    (whole(1, 4096), "data.size"),
    (whole(1, 10**7), "data.context"),
    (whole(1, 10**7) | None, "model.context model.vocabulary"),
    (Literal["auto"] | some(WIDTH), "model.hidden"),
    (some(WIDTH, 2) | None, "model.sizes"),
    (WIDTH | None, "model.num_classes"),
    (whole(1, 10**4), "model.depth model.width model.layers model.heads"),
    (number("in [0, 1)", lambda v: 0 <= v < 1), "model.dropout"),
    (ONLY, "sampler.only"),
    (Rule("a mapping from patterns of names to a bdl.Block, or null", rule_of(dict | None).fits), "sampler.blocks"),
    (POSITIVE, "tune.heat sampler.lr trainer.timeout"),
    (POSITIVE | None, "trainer.gradient_clip_val"),
    (NOT_NEGATIVE, "tuned.* start.* schedule.* sampler.temperature sampler.weighting.rate.* collect.keep.burn_in"),
    (Literal["lightning.Trainer", "lightning.pytorch.Trainer"], "trainer._target_"),
    (Any, "trainer.devices trainer.max_epochs trainer.max_time"),  # checked by what reads them
    (Rule("a number of processes on each device", whole(1, 1024).fits), "trainer.concurrent"),
    (STRATEGY, "trainer.strategy"),
    (Literal["auto", "32-true", "bf16-mixed", "64-true"], "trainer.precision"),
    (Literal[True, False, "warn", None], "trainer.deterministic"),
    (Literal["norm", "value"], "trainer.gradient_clip_algorithm"),
) | CALIBRATE  # fmt: skip
# The keys of all other commands
OF_FOLDERS = table(
    (bool, "refit raw skip_bad save_probs split law keep"),
    (WORD, "input output"),
    (WORD | None, "run out reference device path"),
    (some(WORD), "trust shifts"),
    (some(WORD) | None, "id"),
    (some(WORD, 1) | None, "metrics"),
    (some(Literal["train", "val", "test"], 1), "splits"),
    (some(WIDTH) | None, "hidden"),
    (WORD | some(WORD, 1) | None, "only"),
    (Literal["prior", "posterior"], "origin"),
    (Literal["stacking", "uniform", None], "weights"),
    (SEED, "seed"),
    (whole(0), "chain"),
    (whole(1, 10**5), "chains"),
    (whole(1, MANY), "steps"),
    (whole(0, MANY) | None, "burn_in"),
    (whole(1) | None, "train_items batch_size"),
    (whole(5, MANY) | None, "trajectories"),
    (whole(20, MANY), "replications"),
    (whole(1, 10**6), "draws"),
    (whole(1, 1000), "components"),
    (whole(0, 1000), "mixtures crossings"),
    (whole(1, 5), "severity"),
    (POSITIVE, "localization seconds"),
    (POSITIVE | None, "lr temperature"),
    (NOT_NEGATIVE, "weight_decay"),
    (number("in (0, 1)", lambda v: 0 < v < 1), "val_fraction"),
    (number("in (0, 10]", lambda v: 0 < v <= 10), "length"),
) | CALIBRATE  # fmt: skip
FOLLOW = {"sampler.stack": "stack", "data.chains": "chains"}  # these keys have the value of those, or null
SCHEDULES = ("lr", "temperature", "zeta", "cycle")
GLOBAL = ("hydra", "tuned")  # sections that a file of conf/ may bring besides those of the command


def check_keys(command: str, cfg: DictConfig, hydra: HydraConf, conf: Path) -> None:
    """Raise ConfigError for the first key that does not exist or holds a wrong value; the message names it.

    hydra: Hydra's own configuration of the call. conf: the folder of the configurations.
    """
    refuse_added(hydra.overrides.task, conf / f"{command}.yaml")
    for key, folder in (("run", hydra.run.dir), ("sweep", hydra.sweep.dir)):
        if not str(folder).strip():
            raise ConfigError(f"hydra.{key}.dir must name a folder, got an empty word")
    for pattern, wanted in (TRAIN if command == "train" else OF_FOLDERS).items():
        for key, value in _values(cfg, pattern):
            if (fits := fitting(key, value, wanted)) is not value:
                OmegaConf.update(cfg, key, fits)
    if command == "train":
        check_sections(cfg)
        for key, leader in FOLLOW.items():
            if (value := OmegaConf.select(cfg, key)) not in (None, cfg[leader]):
                raise ConfigError(f"{key}={value}: {key} follows from {leader}; set {leader}")
        _check_length(cfg)
        check_stacks(cfg)
    for literal in (True, False):  # first by the key that was given, then by those that follow it
        for key, value in leaves(OmegaConf.to_container(cfg, resolve=False) if literal else plain(cfg)):
            if isinstance(value, float) and not math.isfinite(value):
                raise ConfigError(f"{key} must be a finite number, got {value}")


def refuse_added(overrides: Sequence[str], primary: Path) -> None:
    """Raise ConfigError for a key that the command line adds (`+key=value`) where nothing reads it."""
    added = [override.lstrip("+") for override in overrides if override.startswith("+")]
    if not added:
        return
    written: Any = OmegaConf.to_container(OmegaConf.load(primary))
    groups = [name for default in written["defaults"] if isinstance(default, dict) for name in default]
    known = {*written, *groups, *GLOBAL}
    for override in added:
        key = override.partition("=")[0]
        if (first := re.split("[./@]", key)[0]) not in known:
            raise ConfigError(f"{key} is no key of this command{did_you_mean(first, known)}: --cfg job lists them")


def _values(cfg: DictConfig, pattern: str) -> Iterator[tuple[str, Any]]:
    """The value of a key, if it is there; for `section.*`, the numbers that are written in the section."""
    key = pattern.removesuffix(".*")
    value = OmegaConf.select(cfg, key, default=_ABSENT)
    if key == pattern and value is not _ABSENT:
        yield key, value
    elif OmegaConf.is_config(value):
        yield from ((k, v) for k, v in leaves(OmegaConf.to_container(value), key) if type(v) in (int, float))


def check_sections(cfg: DictConfig) -> None:
    """Raise ConfigError for keys of `trainer` and `schedule` that nothing reads."""
    trainer = sorted(key.removeprefix("trainer.") for key in TRAIN if key.startswith("trainer."))
    for section, known in (("trainer", trainer), ("schedule", SCHEDULES)):
        for key in map(str, cfg[section]):
            if key not in known:
                names = ", ".join(name for name in known if name != "_target_")
                hint = did_you_mean(key, known)
                raise ConfigError(f"{section}.{key} is no key of a run{hint}: choose among {names}")
    for key in SCHEDULES:
        if cfg.schedule.get(key) is not None and not OmegaConf.is_dict(cfg.schedule[key]):
            raise ConfigError(f"schedule.{key} must be built by a _target_ or null, got {cfg.schedule[key]!r}")


def _check_length(cfg: DictConfig) -> None:
    """Raise ConfigError for a number of steps or epochs with which a run would not end, or not begin."""
    steps, epochs = cfg.trainer.max_steps, cfg.trainer.max_epochs
    if type(epochs) is not int or epochs < 1 and (steps == -1 or epochs != -1):
        wanted = "a whole number of at least 1, or trainer.max_steps (length) a number of steps"
        raise ConfigError(f"trainer.max_epochs must be {wanted}, got {epochs!r}")
    if cfg.steps != steps:
        raise ConfigError(f"steps={cfg.steps}: steps follows from trainer.max_steps; set length or trainer.max_steps")
