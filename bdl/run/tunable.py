"""The settings that tuning finds, their keys, and those that the user gave."""

from __future__ import annotations

from collections.abc import Sequence

KEYS = {
    "sampler": ("sampler.dynamics",),
    "batch_size": ("data.batch_size",),
    "prior": ("sampler.prior.precision",),
    "temperature": ("sampler.temperature",),
    "lr": ("sampler.lr",),
    "friction": ("sampler.dynamics.friction",),
    "burn_in": ("collect.keep.burn_in",),
    "steps": ("length", "trainer.max_steps"),
    "every": ("collect.keep.every",),
    "length": ("length",),
}
GROUPS = {  # their choice on the command line gives these settings too
    "sampler": ("sampler",),
    "length": ("trainer.max_steps", "trainer.max_epochs", "budget"),
    "prior": ("sampler.prior",),
    "friction": ("sampler.dynamics",),
    "burn_in": ("collect", "collect.keep"),
    "every": ("collect", "collect.keep"),
}


def given_names(typed: Sequence[str]) -> set[str]:
    """The settings that the user has given, by name: those of `KEYS` that these overrides set, and their groups."""
    keys = {override.lstrip("+~").partition("=")[0].partition("@")[0].replace("/", ".") for override in typed}
    keys |= {part for part in ("sampler.prior", "sampler.dynamics") if any(key.startswith(f"{part}.") for key in keys)}
    return {name for name, its in KEYS.items() if keys & {*its, *GROUPS.get(name, ())}}
