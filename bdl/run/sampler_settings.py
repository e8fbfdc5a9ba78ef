"""SamplerSettings: the arguments of a `bdl.Sampler`, known before there are parameters to sample."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch.distributed as dist

import bdl
from bdl.frozen import FrozenMode, Only
from bdl.run.section import Section
from bdl.samplers.clipping import Clip
from bdl.samplers.divergence import OnDivergence
from bdl.samplers.dynamics.base import Scalar, Transition
from bdl.samplers.estimator import Given
from bdl.samplers.exchange import Exchange
from bdl.samplers.priors.base import Prior
from bdl.samplers.priors.blocks import Blocks
from bdl.samplers.weighting.base import Weighting

OF_KIND = ("kind", "more")  # fields that are no arguments of every sampler


@dataclass(frozen=True, kw_only=True)
class SamplerSettings:
    """Builds the sampler of a module. `bdl.Sampler` says what its arguments mean, and has the same defaults."""

    dynamics: Transition
    num_data: int
    lr: Scalar
    temperature: Scalar = 1.0
    prior: Prior = bdl.Gaussian(1.0)
    weighting: Weighting = bdl.Flat()
    clip: Clip | None = None
    seed: int = 0
    stack: int = 0
    group: dist.ProcessGroup | None = None
    exchange: Exchange | None = None
    gradient: Given = None
    only: Only = None
    frozen: FrozenMode = "eval"
    blocks: Blocks | None = None
    on_divergence: OnDivergence = "stop"
    kind: Callable[..., bdl.Sampler] = bdl.Sampler  # or a subclass of it
    more: Mapping[str, Any] = field(default_factory=dict)  # arguments that the subclass alone takes

    @classmethod
    def of(cls, section: Section[Callable[..., bdl.Sampler]]) -> SamplerSettings:
        """The settings of a section of the configuration, which names a `bdl.Sampler` and is `_partial_`."""
        partial: Any = section.build()
        own = {each.name for each in fields(cls)} - set(OF_KIND)
        given = {name: value for name, value in partial.keywords.items() if name in own}
        more = {name: value for name, value in partial.keywords.items() if name not in own}
        return cls(**given, kind=partial.func, more=more)

    def __call__(self, params: Iterable[Any], chains: int | None = None) -> bdl.Sampler:
        """The sampler of these parameters, see `BayesianModule`."""
        settings = {name: value for name, value in vars(self).items() if name not in OF_KIND}
        return self.kind(params, chains=chains, **settings, **self.more)
