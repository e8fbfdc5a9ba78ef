"""Density: a posterior of named parameters, whose log likelihood is a sum over rows; and the same as a network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Transform

from bdl.errors import ConfigError
from bdl.likelihoods import Likelihood

Parameters = dict[str, Tensor]
Terms = Callable[[Parameters, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True, eq=False)
class Density:
    """A posterior density of named parameters. `sample_density` and `from_pyro` make it.

    Args:
        terms: (parameters, rows (n,) of the data) -> (log prior (), log likelihood of each row (n,)), nats.
        init: a value of each parameter where all chains begin, or a function that draws one for each chain.
        num_data: N, the rows of all the data.
        transforms: bijections from all real numbers to the values of a parameter, by its name; none for real ones.
        described: plain values by which runs of other densities and data are told apart.
        batch_size: rows of a batch; None for all.
        dims, coords: names of the axes of parameters, and of the places along them, for ArviZ.
    """

    terms: Terms
    init: Mapping[str, Any] | Callable[[], Mapping[str, Any]]
    num_data: int
    transforms: Mapping[str, Transform] = field(default_factory=dict)
    described: Any = None
    batch_size: int | None = None
    dims: Mapping[str, Sequence[str]] = field(default_factory=dict)
    coords: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    def __deepcopy__(self, memo: Any) -> Density:
        return self  # copies of a network share the data

    def network(self) -> DensityNetwork:
        """The density as a network, at a value of `init`."""
        return DensityNetwork(self, self.init() if callable(self.init) else self.init)

    def constrained(self, free: Mapping[str, Tensor]) -> Parameters:
        """The parameters (..., shape) of free values, which are any real numbers; leading axes are networks."""
        transforms: Mapping[str, Any] = self.transforms
        return {k: transforms[k](v) if k in transforms else v for k, v in free.items()}

    def log_jacobian(self, free: Mapping[str, Tensor], parameters: Parameters) -> Tensor | float:
        """log |d parameters / d free| of one network, nats."""
        return sum((t.log_abs_det_jacobian(free[k], parameters[k]).sum() for k, t in self.transforms.items()), 0.0)

    def check(self, net: DensityNetwork) -> None:
        """Raise ConfigError where the density has no finite value, with a gradient, for single rows at the start."""
        rows = torch.arange(min(self.num_data, self.batch_size or self.num_data))
        free = {name: net.get_parameter(path) for name, path in net.paths.items()}
        try:
            prior, items = self.terms(self.constrained(free), rows)
        except (ValueError, TypeError, KeyError, IndexError, RuntimeError) as error:
            raise ConfigError(f"the density cannot be evaluated at the start: {one_line(error)}") from error
        for what, value, shape in (("log_prior", prior, ()), ("log_likelihood", items, (len(rows),))):
            got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"{type(value).__name__} {value!r}"
            if not isinstance(value, Tensor) or tuple(value.shape) != shape:
                raise ConfigError(f"{what} must return a tensor of shape {shape} for {len(rows)} rows, got {got}")
            if not bool(value.isfinite().all()):
                raise ConfigError(f"{what} is not finite at the start: give an init inside the support")


class DensityNetwork(nn.Module):
    """A density as a network, which maps rows (n,) to log p(y_i | θ) + log p(θ) / N, (n, 1); their sum over all N rows
    is the log density.

    Its parameters are the free values. log p(θ) has the log Jacobian of the transforms.

    Raises ConfigError for values that no transform reaches.
    """

    def __init__(self, density: Density, values: Mapping[str, Any]):
        super().__init__()
        self._density, self.described = density, density.described  # public attributes tell networks apart
        self.paths = {name: name.replace(".", "/") for name in values}  # torch takes no dots in names
        if unknown := sorted(density.transforms.keys() - values.keys()):
            raise ConfigError(f"constraints name {unknown[0]!r}, of which init has no value: {', '.join(values)}")
        for name, path in self.paths.items():
            value = torch.as_tensor(values[name]).detach()
            value = value if value.is_floating_point() else value.to(torch.get_default_dtype())
            free: Any = density.transforms[name].inv(value) if name in density.transforms else value.clone()
            if not bool(free.isfinite().all()):
                limit = density.transforms[name].codomain if name in density.transforms else "finite numbers"
                raise ConfigError(f"init of {name} must lie inside {limit}, got {value.flatten()[:5].tolist()}")
            if hasattr(self, path):
                raise ConfigError(f"a parameter cannot be called {name!r}, as parts of torch's modules are: rename it")
            self.register_parameter(path, nn.Parameter(free))

    def forward(self, rows: Tensor) -> Tensor:
        density, free = self._density, {name: getattr(self, path) for name, path in self.paths.items()}
        parameters = density.constrained(free)
        with unchecked():
            prior, items = density.terms(parameters, rows)
        return (items + (prior + density.log_jacobian(free, parameters)) / density.num_data).unsqueeze(-1)

    def free(self, tensors: Mapping[str, Tensor]) -> Parameters:
        """The free values by the names of the parameters, of tensors by the names of the network's."""
        return {name: tensors[path] for name, path in self.paths.items()}


@dataclass(frozen=True)
class DensityNLL(Likelihood):
    """Minus the outputs (..., B, 1) of a `DensityNetwork`, which are log densities; no target is read."""

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        return -outputs[..., 0]


@contextmanager
def unchecked() -> Iterator[None]:
    """In the block torch's distributions do not look at their arguments, which vmap forbids."""
    checked = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(checked)


def one_line(error: BaseException) -> str:
    """The type and the first line of an error."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
