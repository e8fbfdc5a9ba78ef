"""The keys of the commands that no constructor checks: one table from key to rule, and the keys that there are.

A rule is a phrase and a predicate. A new key of conf/ gets one line in its command's table. This module imports neither
torch nor Lightning, so that a wrong command line ends at once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from bdl.errors import ConfigError
from bdl.run.auto import check_stacks, seconds_of

Rule = tuple[str, Callable[[Any], bool]]  # what a value must be, in words; whether it is

MANY = 10**12  # steps; more than any run makes
SEEDS = 2**63 - 1
_ABSENT = object()


def whole(least: int, most: int | None = None) -> Rule:
    words = f"of at least {least}" if most is None else f"from {least} to {most:,}"
    return f"a whole number {words}", lambda v: type(v) is int and v >= least and (most is None or v <= most)


def number(words: str, inside: Callable[[float], bool]) -> Rule:
    return f"a number {words}", lambda v: type(v) in (int, float) and math.isfinite(v) and inside(v)


def one_of(*choices: Any) -> Rule:
    names = ["null" if choice is None else str(choice) for choice in choices]
    names = [name.lower() if name in ("True", "False") else name for name in names]
    return (
        f"{', '.join(names[:-1])} or {names[-1]}",
        lambda v: any(type(v) is type(choice) and v == choice for choice in choices),
    )


def list_of(rule: Rule, least: int = 0) -> Rule:
    words, fits = rule
    many = words.replace("a whole number", "whole numbers").replace("a word", "words")
    return f"a list of {many}", lambda v: OmegaConf.is_list(v) and len(v) >= least and all(map(fits, v))


def or_null(rule: Rule) -> Rule:
    words, fits = rule
    return f"{words} or null", lambda v: v is None or fits(v)


WORD: Rule = ("a word", lambda v: type(v) is str and bool(v.strip()))
SWITCH: Rule = ("true or false", lambda v: type(v) is bool)
ANY: Rule = ("anything", lambda v: True)
STEPS: Rule = (  # 1e5 is a float in YAML
    f"a whole number from 1 to {MANY:,}, or -1 for a run of trainer.max_epochs",
    lambda v: type(v) in (int, float) and (v == -1 or 1 <= v <= MANY and v == int(v)),
)


def _words(value: Any) -> bool:
    return WORD[1](value) or list_of(WORD, 1)[1](value)


TIME: Rule = ("a time such as 90s, 10m or 1h", lambda v: type(v) is str and seconds_of(v) is not None)
POSITIVE = number("> 0", lambda v: v > 0)
NOT_NEGATIVE = number(">= 0", lambda v: v >= 0)
WIDTH = whole(1, 10**6)

# A key, or with `.*` every number below it. Further keys may follow from constructors, but none of the trainer's.
TRAIN: dict[str, Rule] = {
    "seed": whole(0, SEEDS),
    "stack": whole(0, 10**6),
    "chains": whole(1, 10**5),
    "stacks": or_null(whole(1, 10**5)),
    "processes": or_null(whole(1, 1024)),
    "threads": or_null(whole(1, 1024)),
    "shared_batches": SWITCH,
    "on_divergence": one_of("stop", "drop"),
    "tf32": SWITCH,
    "compile": one_of("auto", True, False),
    "length": STEPS,
    "trainer.max_steps": STEPS,  # before the schedules, whose numbers may follow from it
    "tuned.*": NOT_NEGATIVE,
    "tune": one_of("auto", False),
    "budget": or_null(TIME),
    "found": ("null, because train.py fills it in", lambda v: v is None),
    "run_dir": WORD,
    "checkpoint_every": whole(1),
    "monitor_every": whole(1),
    "train_items": or_null(whole(1)),
    "objective": ("null or the name of a metric", lambda v: v is None or type(v) is str and bool(v)),
    "start.path": WORD,
    "start.skip": list_of(WORD),
    "start.epochs": whole(1, 10**6),
    "start.patience": whole(1, 10**6),
    "start.batch_size": whole(1),
    "start.*": NOT_NEGATIVE,
    "data.workers": whole(0, 1024),
    "data.seed": whole(0, SEEDS),
    "data.stack": whole(0, 10**6),
    "data.split_seed": whole(0, SEEDS),
    "data.max_levels": whole(1, 10**6),
    "data.size": whole(1, 4096),
    "model.hidden": list_of(WIDTH),
    "model.sizes": or_null(list_of(WIDTH, 2)),
    "model.num_classes": or_null(whole(1, 10**6)),
    "model.depth": whole(1, 10**4),
    "model.width": whole(1, 10**4),
    "model.dropout": number("in [0, 1)", lambda v: 0 <= v < 1),
    "schedule.*": NOT_NEGATIVE,
    "collect.keep.burn_in": NOT_NEGATIVE,
    "collect.keep.samples_per_cycle": whole(1, MANY),
    "sampler.seed": whole(0, SEEDS),
    "sampler.lr": POSITIVE,
    "sampler.temperature": NOT_NEGATIVE,
    "sampler.num_data": or_null(whole(1)),
    "sampler.only": ("a pattern of names such as fc.*, a list of them, or null", lambda v: v is None or _words(v)),
    "sampler.frozen": one_of("eval", "train"),
    "sampler.blocks": (
        "a mapping from patterns of names to a bdl.Block, or null",
        lambda v: v is None or OmegaConf.is_dict(v),
    ),
    "sampler.dynamics.leapfrog": whole(1, 10**6),
    "sampler.dynamics.mass_steps": NOT_NEGATIVE,
    "sampler.weighting.bins": whole(2, 10**6),
    "sampler.weighting.pilot": whole(1, MANY),
    "sampler.weighting.rate.*": NOT_NEGATIVE,
    "trainer._target_": one_of("lightning.Trainer", "lightning.pytorch.Trainer"),
    "trainer.accelerator": WORD,
    "trainer.devices": ANY,  # `count_processes` compares it with the machine
    "trainer.num_nodes": whole(1, 10**5),
    "trainer.concurrent": ("a number of processes on each device", whole(1, 1024)[1]),
    "trainer.strategy": one_of("auto", "ddp", "chains"),
    "trainer.sync_batchnorm": SWITCH,
    "trainer.precision": one_of("auto", "32-true", "bf16-mixed", "64-true"),
    "trainer.max_epochs": ANY,  # `_check_length` checks it together with max_steps
    "trainer.start_epochs": whole(1, 10**6),
    "trainer.max_time": ANY,  # `TimeLimit` reads it
    "trainer.deterministic": one_of(True, False, "warn", None),
    "trainer.benchmark": SWITCH,
    "trainer.detect_anomaly": SWITCH,
    "trainer.profiler": or_null(WORD),
    "trainer.log_every_n_steps": whole(1),
    "trainer.accumulate_grad_batches": whole(1, 10**6),
    "trainer.gradient_clip_val": or_null(POSITIVE),
    "trainer.gradient_clip_algorithm": one_of("norm", "value"),
}
EVALUATE: dict[str, Rule] = {
    "out": or_null(WORD),
    "skip_bad": SWITCH,
    "splits": list_of(one_of("train", "val", "test"), 1),
    "train_items": or_null(whole(1)),
    "reference": or_null(WORD),
    "save_probs": SWITCH,
    "device": or_null(WORD),
    "trust": list_of(WORD),
}
PREDICT: dict[str, Rule] = {
    "run": or_null(WORD),
    "input": WORD,
    "output": WORD,
    "id": or_null(list_of(WORD)),
    "skip_bad": SWITCH,
    "device": or_null(WORD),
    "trust": list_of(WORD),
}
VERIFY: dict[str, Rule] = {"run": WORD, "trust": list_of(WORD)}
COMPARE: dict[str, Rule] = {"out": or_null(WORD), "metrics": or_null(list_of(WORD, 1))}
TABLES = {"train": TRAIN, "evaluate": EVALUATE, "predict": PREDICT, "verify": VERIFY, "compare": COMPARE}
FOLLOW = {"sampler.stack": "stack", "data.chains": "chains"}  # these keys have the value of those, or null
SCHEDULES = ("lr", "temperature", "zeta", "cycle")
GLOBAL = ("hydra", "tuned")  # sections that a file of conf/ may bring besides those of the command


def check_keys(command: str, cfg: DictConfig, hydra: Any, conf: Path) -> None:
    """Raise ConfigError for the first key that does not exist or holds a wrong value; the message names it.

    hydra: Hydra's own configuration of the call. conf: the folder of the configurations.
    """
    refuse_added(hydra.overrides.task, conf / f"{command}.yaml")
    for key in ("run.dir", "sweep.dir"):
        if not str(OmegaConf.select(hydra, key)).strip():
            raise ConfigError(f"hydra.{key} must name a folder, got an empty word")
    check_table(cfg, TABLES[command])
    if command == "train":
        check_sections(cfg)
        refuse_other_values(cfg)
        _check_length(cfg)
        check_stacks(cfg)
    refuse_not_finite(cfg)


def refuse_added(overrides: Sequence[str], primary: Path) -> None:
    """Raise ConfigError for a key that the command line adds (`+key=value`) where nothing reads it."""
    added = [override.lstrip("+") for override in overrides if override.startswith("+")]
    if not added:
        return
    plain: Any = OmegaConf.to_container(OmegaConf.load(primary))
    groups = [name for default in plain["defaults"] if isinstance(default, dict) for name in default]
    known = {*plain, *groups, *GLOBAL}
    for override in added:
        key = override.partition("=")[0]
        if re.split("[./@]", key)[0] not in known:
            raise ConfigError(f"{key} is no key of this command: --cfg job lists them")


def check_table(cfg: DictConfig, table: Mapping[str, Rule]) -> None:
    for pattern, (words, fits) in table.items():
        for key, value in _values(cfg, pattern):
            if not fits(value):
                raise refused(key, words, _plain(value), fits(OmegaConf.create([_plain(value)])))


def refused(key: str, words: str, value: Any, fits_in_a_list: bool) -> ConfigError:
    """The error for a plain value that is not what `words` say. A value without its brackets is shown with them."""
    remedy = f": write '{key}=[{value}]'" if fits_in_a_list else ""
    return ConfigError(f"{key} must be {words}, got {value!r}{remedy}")


def _values(cfg: DictConfig, pattern: str) -> Iterator[tuple[str, Any]]:
    """The value of a key, if it is there; for `section.*`, the numbers that are written in the section."""
    key = pattern.removesuffix(".*")
    value = OmegaConf.select(cfg, key, default=_ABSENT)
    if value is _ABSENT:
        return
    if key == pattern:
        yield key, value
    else:
        written = OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
        yield from ((k, v) for k, v in leaves(written, key) if type(v) in (int, float))


def refuse_other_values(cfg: DictConfig) -> None:
    """Raise ConfigError for a key that must follow another one and does not."""
    for key, leader in FOLLOW.items():
        if OmegaConf.select(cfg, key) not in (None, cfg[leader]):
            raise ConfigError(f"{key}={OmegaConf.select(cfg, key)}: {key} follows from {leader}; set {leader}")


def check_sections(cfg: DictConfig) -> None:
    """Raise ConfigError for keys of `trainer` and `schedule` that nothing reads."""
    trainer = [key.removeprefix("trainer.") for key in TRAIN if key.startswith("trainer.")]
    for section, known in (("trainer", trainer), ("schedule", SCHEDULES)):
        for key in map(str, cfg[section]):
            if key not in known:
                names = ", ".join(name for name in known if name != "_target_")
                raise ConfigError(f"{section}.{key} is no key of a run: choose among {names}")
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


def refuse_not_finite(cfg: DictConfig) -> None:
    for key, value in leaves(_plain(cfg), ""):
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{key} must be a finite number, got {value}")


def leaves(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    """The values below a plain mapping or list, with their keys."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from leaves(part, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list):
        for i, part in enumerate(value):
            yield from leaves(part, f"{key}[{i}]")
    else:
        yield key, value


def _plain(value: Any) -> Any:
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
