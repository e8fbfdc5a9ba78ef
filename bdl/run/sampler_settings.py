"""SamplerSettings: the arguments of a `bdl.Sampler`, known before there are parameters to sample."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
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

    @classmethod
    def of(cls, section: Section[Callable[..., bdl.Sampler]]) -> SamplerSettings:
        """The settings of a section of the configuration, which names a `bdl.Sampler` and is `_partial_`."""
        partial: Any = section.build()
        return cls(**partial.keywords, kind=partial.func)

    def __call__(self, params: Iterable[Any], chains: int | None = None) -> bdl.Sampler:
        """The sampler of these parameters, see `BayesianModule`."""
        settings = {name: value for name, value in vars(self).items() if name != "kind"}
        return self.kind(params, chains=chains, **settings)
