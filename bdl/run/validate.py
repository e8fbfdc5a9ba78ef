"""Values of the configuration that can't be meant: words where numbers belong, and numbers out of range."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from omegaconf import DictConfig, OmegaConf

from bdl.errors import ConfigError

_ABSENT = object()
_LEAST = {  # of whole numbers
    "seed": 0, "stack": 0, "chains": 1, "threads": 1, "checkpoint_every": 1, "monitor_every": 1, "train_items": 1,
    "data.batch_size": 1, "data.workers": 0, "data.split_seed": 0, "data.fold": 0, "data.augment.crop": 0,
    "data.augment.cutout": 0, "trainer.accumulate_grad_batches": 1,
}  # fmt: skip
_OR_NULL = ("threads", "train_items", "data.batch_size")
_NUMBERS = ("data.val_fraction", "data.augment.erase", "sampler.lr", "sampler.temperature")  # ranges: where they go
_SWITCHES = (
    "shared_batches", "tf32", "compile", "data.replacement", "data.download", "data.channels_last", "data.augment.flip",
)  # fmt: skip


def check_values(cfg: DictConfig) -> None:
    """Raise ConfigError for words where numbers or switches belong, and for whole numbers out of range."""

    def check(keys: Iterable[str], wanted: str, fits: Callable[[Any], bool]) -> None:
        for key in keys:
            value = OmegaConf.select(cfg, key, default=_ABSENT)
            if value is not _ABSENT and not (value is None and key in _OR_NULL or fits(value)):
                raise ConfigError(f"{key} must be {wanted}, got {value!r}")

    for key, least in _LEAST.items():
        wanted = f"a whole number of at least {least}" + (" or null" if key in _OR_NULL else "")
        check([key], wanted, lambda value, least=least: type(value) is int and value >= least)
    check(_NUMBERS, "a number", lambda value: type(value) in (int, float))
    check(_SWITCHES, "true or false", lambda value: type(value) is bool)
    check(["trainer.deterministic"], "true, false or warn", lambda value: value in (True, False, None, "warn"))
    check(["data.augment"], "null or a data.augment.crop, ...", lambda value: value is None or OmegaConf.is_dict(value))
    check(["data.root"], "the name of a folder", lambda value: type(value) is str)
    check(["trainer.precision"], "32-true or bf16-mixed", lambda value: not str(value).startswith("16"))
    if cfg.trainer.max_steps == -1:
        whole = "a whole number of at least 1, or trainer.max_steps a number of steps"
        check(["trainer.max_epochs"], whole, lambda value: type(value) is int and value >= 1)
    else:
        steps = "at least 1, or -1 for a run of trainer.max_epochs"
        check(["trainer.max_steps"], steps, lambda value: type(value) in (int, float) and value >= 1)
