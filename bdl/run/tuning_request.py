"""What a user leaves to tuning: the settings by name, and which of them a command gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from omegaconf import DictConfig, OmegaConf

from bdl.errors import ConfigError
from bdl.run.sampler_settings import SamplerSettings
from bdl.run.stack_plan import Promise
from bdl.samplers.weighting.base import AUTO
from bdl.tune.heat import HEAT_OF_BATCHES, CoolDirections

# What tuning finds -> its keys, and further overrides with which a user gives it
SETTINGS = {
    "sampler": (("sampler.dynamics",), ("sampler",)),
    "batch_size": (("data.batch_size",), ()),
    "prior": (("sampler.prior.precision",), ("sampler.prior",)),
    "temperature": (("sampler.temperature",), ()),
    "weighting": (("sampler.weighting",), ()),
    "lr": (("sampler.lr",), ()),
    "lr_power": (("sampler.exchange.lr_power",), ()),
    "swap_every": (("sampler.exchange.every",), ()),
    "friction": (("sampler.dynamics.friction",), ("sampler.dynamics",)),
    "burn_in": (("collect.keep.burn_in",), ("collect", "collect.keep")),
    "steps": (("length", "trainer.max_steps"), ()),
    "every": (("collect.keep.every",), ("collect", "collect.keep")),
    "cycle": (("schedule.cycle",), ()),
    "samples_per_cycle": (("collect.keep.samples_per_cycle",), ("collect", "collect.keep")),
    "length": (("length",), ("trainer.max_steps", "trainer.max_epochs", "budget")),
}


@dataclass(frozen=True)
class TuningRequest:
    """What is to be found before the run begins."""

    auto: bool  # the settings that were not given
    temperature: bool | Literal["classes"]  # T too; classes: that of a table of classes
    budget: str | None  # a time, which decides the steps
    given: frozenset[str]  # names of `SETTINGS`
    heat: float = HEAT_OF_BATCHES  # share by which batches may heat the hottest direction
    weighting_alone: bool = False  # zeta and the lr that it asks for, and no other setting

    @classmethod
    def of(cls, cfg: DictConfig, typed: Sequence[str]) -> TuningRequest | None:
        """What the keys `tune` and `budget` ask for, or None. typed: the overrides of the command line.

        tune=auto is short for tune.settings=auto. sampler.weighting.zeta=auto alone finds no other setting. Raises
        ConfigError for both tune= and one of its keys, and for zeta=auto beside tune=false.
        """
        if any(word.startswith("tune=") for word in typed) and any(word.startswith("tune.") for word in typed):
            raise ConfigError(
                "tune=... replaces all keys of tune: write tune.settings=auto beside tune.temperature=true"
            )
        temperature = cfg.tune.temperature if OmegaConf.is_dict(cfg.tune) else False
        auto = temperature is True or bool(cfg.tune.settings if OmegaConf.is_dict(cfg.tune) else cfg.tune)
        zeta = OmegaConf.select(cfg, "sampler.weighting.zeta") == AUTO
        if zeta and cfg.tune is False:
            raise ConfigError(
                "sampler.weighting.zeta=auto is found by tuning, and tune=false finds nothing: give a number, such as "
                "1, which changes little"
            )
        if not (auto or zeta or cfg.budget):
            return None
        heat = float(cfg.tune.heat) if OmegaConf.is_dict(cfg.tune) else HEAT_OF_BATCHES
        return cls(auto or zeta, temperature, cfg.budget, given_names(typed), heat, weighting_alone=zeta and not auto)

    def finds_temperature(self, task: str, sampler: SamplerSettings) -> bool:
        """Whether T is to be found: where it is asked for, and for classes, which the prior at T = 1 may fit badly."""
        if self.temperature != "classes":
            return self.temperature
        plain = sampler.exchange is None and not sampler.weighting.needs_energy and float(sampler.temperature) == 1
        return (
            task == "classification"
            and plain
            and sampler.dynamics.full_batch
            and not {"temperature", "prior"} & self.given
        )

    def promise(self, found: Mapping[str, Any], strategy: str) -> Promise:
        """What a run with these settings has to keep: lr moves where it was found, the burn-in where nobody gave it."""
        cool = CoolDirections.of(found.get("hottest"), found.get("noise_ratio"), self.heat) if found else None
        if not self.auto or self.weighting_alone or strategy == "ddp":
            return Promise(None, cool)
        lr = {"lr"} if "sampler.lr" in found.get("settings", {}) else set()
        return Promise(frozenset(lr if {"burn_in", "every"} & self.given else {*lr, "burn_in"}), cool)


def given_names(typed: Sequence[str]) -> frozenset[str]:
    """The names of the `SETTINGS` that the user has given by these overrides."""
    given = {override.lstrip("+~").partition("=")[0].partition("@")[0].replace("/", ".") for override in typed}
    parts = ("sampler.prior", "sampler.dynamics", "schedule.cycle")
    given |= {part for part in parts if any(k.startswith(f"{part}.") for k in given)}
    return frozenset(name for name, (keys, groups) in SETTINGS.items() if given & {*keys, *groups})
