"""Centres of priors: a number, a tensor for each parameter by name, or "start", the weights where the chains begin."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from bdl.errors import ConfigError
from bdl.samplers.priors.scales import Shapes

START = "start"


def check_mean(value: Any) -> None:
    """Raise ConfigError unless value is a finite number, "start", a tensor, or numbers and tensors by name."""
    each = list(value.values()) if isinstance(value, Mapping) else [value]
    if value == START if isinstance(value, str) else bool(each) and all(map(_is_finite, each)):
        return
    shown = f"a {type(value).__name__}" if isinstance(value, Tensor | Mapping) else repr(value)
    raise ConfigError(
        f'the mean of a prior must be a finite number, "{START}", or finite numbers or tensors by name of parameter, '
        f"got {shown}"
    )


def centre_of(mean: Any, names: Sequence[str], shapes: Shapes, start: Tensor) -> Any:
    """A mean as a number, or per coordinate (d,) in the type of `start`. One number for all becomes that number.

    names, shapes: one chain's parameter tensors. start: (d,) or (C, d) weights, for "start".

    Raises ConfigError for chains that begin apart, and for a parameter without a mean or with one of another shape.
    """
    if isinstance(mean, int | float):
        return float(mean)
    if isinstance(mean, Mapping):
        flat = torch.cat([_of_parameter(mean, *pair) for pair in zip(names, shapes, strict=True)])
    else:
        flat = _shared_start(names, shapes, start) if isinstance(mean, str) else mean.flatten()
    if flat.numel() != start.shape[-1]:
        raise ConfigError(
            f"the mean of a prior has {flat.numel():,} numbers for {start.shape[-1]:,} coordinates: give one number, "
            "or tensors by name of parameter"
        )
    flat = flat.detach().to(start, copy=True)
    return float(flat[0]) if bool((flat == flat[0]).all()) else flat


def offset(theta: Tensor, mean: Any) -> Tensor:
    """θ - mean; θ itself, which costs nothing, where the mean is 0."""
    if isinstance(mean, Tensor):
        return theta - mean.to(theta)
    return theta - mean if mean else theta


def describe(mean: Any) -> str:
    """What `str` of a prior adds about its mean; nothing for 0."""
    if isinstance(mean, int | float):
        return f", mean {mean:g}" if mean else ""
    if isinstance(mean, Tensor):
        return f", means {mean.min():g} to {mean.max():g}"
    return ", centred where the chains begin" if isinstance(mean, str) else ", means by name"


def fingerprint(mean: Any) -> Any:
    """Plain values that are equal for equal means: numbers and "start" as they are, tensors by their checksum."""
    if isinstance(mean, Mapping):
        return {name: fingerprint(value) for name, value in mean.items()}
    if not isinstance(mean, Tensor):
        return mean
    data = mean.detach().double().cpu().contiguous().numpy().tobytes()
    return {"numbers": mean.numel(), "sha256": hashlib.sha256(data).hexdigest()}


def _is_finite(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.numel() > 0 and bool(value.isfinite().all())
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _of_parameter(mean: Mapping[str, Any], name: str, shape: tuple[int, ...]) -> Tensor:
    """The mean of one parameter, flat, double."""
    if name not in mean:
        raise ConfigError(
            f"the mean of the prior has no entry for {name}: add one, or give {name} a prior of its own by blocks"
        )
    value = torch.as_tensor(mean[name], dtype=torch.float64).cpu()
    if value.ndim and tuple(value.shape) != shape:
        raise ConfigError(f"the mean of the prior has the shape {tuple(value.shape)} for {name}, which is {shape}")
    return value.expand(shape).flatten()


def _shared_start(names: Sequence[str], shapes: Shapes, start: Tensor) -> Tensor:
    """(d,) the weights where all chains begin: a posterior has one prior, and so one centre."""
    if start.ndim == 1:
        return start
    apart = (start != start[0]).any(0)
    if bool(apart.any()):
        ends = torch.tensor([math.prod(shape) for shape in shapes]).cumsum(0)
        first = int((ends <= int(apart.nonzero()[0])).sum())
        raise ConfigError(
            f'mean="{START}" is one centre for all chains, and they begin at different values of {names[first]}: begin '
            'at saved weights (start=checkpoint; in Python ChainStack(..., start="given")), or give that parameter a '
            "prior with another mean by blocks"
        )
    return start[0]
