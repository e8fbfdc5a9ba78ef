"""The types of what `bdl.sample` takes by name: one list for its overloads, which differ in the loss alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Required, TypedDict

import lightning as L

from bdl.frozen import FrozenMode, Only
from bdl.lightning.callbacks import Schedule
from bdl.samplers.blocks import Blocks
from bdl.samplers.clipping import Clip
from bdl.samplers.control import ControlVariate
from bdl.samplers.divergence import OnDivergence
from bdl.samplers.dynamics.base import Scalar, Transition
from bdl.samplers.exchange import Exchange
from bdl.samplers.priors import Prior
from bdl.samplers.weighting.base import Weighting
from bdl.schedules import Keep


class SampleArguments(TypedDict, total=False):
    """Arguments of `bdl.sample`, then those that it hands to `bdl.Sampler`."""

    steps: Required[int]
    lr: Required[float]
    dynamics: Transition
    keep: Keep | None
    chains: int | None
    start: Literal["fresh", "given"] | None
    test: Iterable[Any] | Mapping[str, Iterable[Any]] | None
    schedule: Schedule | None
    seed: int
    checkpoint_every: int
    monitor_every: int
    accelerator: str
    callbacks: Sequence[L.Callback]
    num_data: int
    temperature: Scalar
    prior: Prior
    weighting: Weighting
    clip: Clip | None
    gradient: Literal["control"] | ControlVariate | None
    exchange: Exchange | None
    only: Only
    frozen: FrozenMode
    blocks: Blocks | None
    on_divergence: OnDivergence
    stack: int
