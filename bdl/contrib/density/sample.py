"""sample_density: `bdl.sample` for functions of named parameters."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor
from torch.distributions import ComposeTransform, Transform, biject_to
from torch.distributions.constraints import Constraint

import bdl
from bdl.batch import count_items, map_tensors, rows_of, structure, tensors_in
from bdl.contrib.density.network import Density, DensityNLL, Parameters, one_line
from bdl.contrib.density.parameters import DensityPosterior, DensityReport
from bdl.data.fingerprint import digest
from bdl.engine.stack import ChainStack
from bdl.errors import BdlWarning, ConfigError
from bdl.identity import code_of, identity
from bdl.run.in_python import sample
from bdl.samplers.dynamics.base import Transition

LR = 1e-3  # where dynamics that adapt their step begin


def sample_density(
    log_prior: Callable[[Parameters], Tensor],
    log_likelihood: Callable[[Parameters, Any], Tensor],
    init: Mapping[str, Any] | Callable[[], Mapping[str, Any]],
    data: Any,
    batch_size: int | None,
    run_dir: str | Path,
    *,
    constraints: Mapping[str, Constraint | Transform] | None = None,
    dims: Mapping[str, Sequence[str]] | None = None,
    coords: Mapping[str, Sequence[Any]] | None = None,
    **sampling: Any,
) -> DensityPosterior:
    """Sample p(θ | data) ∝ p(θ) Π_i p(y_i | θ) for named parameters θ, keep the samples, and judge them.

    Each step reads a batch of rows; what their noise does to the samples is measured. The same call continues a run
    that was stopped. See `bdl.sample`, which does the work.

    Args:
        log_prior: maps the parameters by name to log p(θ) (), nats.
        log_likelihood: maps the parameters and rows of the data (n, ...) to log p(y_i | θ) (n,) of each row, nats. It
            is built of torch's functions, and must not branch on values.
        init: a value of each parameter, where all chains begin; or a function that draws one for each chain.
        data: a tensor of N rows, or a tuple or a dict of them; `log_likelihood` gets the same with the rows of a batch.
        batch_size: rows of a batch; None for all, which leaves no batch noise.
        run_dir: the folder of the run.
        constraints: of parameters that are not all real numbers, by name: a constraint of torch.distributions, such as
            `constraints.positive`, `bdl.contrib.density.ordered.ordered`, or a bijective Transform. Chains move in free
            values, and the density gets the Jacobian.
        dims, coords: names of the axes of parameters, and of the places along them, for `to_arviz`.
        sampling: see `sample_from`; `steps` is required.

    Raises ConfigError for a density without finite values at the start, of which it says the reason, for settings that
    cannot be sampled, and for a folder with another run.
    """
    data = as_tensors(data)
    moved: dict[torch.device, Any] = {}

    def terms(parameters: Parameters, rows: Tensor) -> tuple[Tensor, Tensor]:
        if rows.device not in moved:
            moved[rows.device] = map_tensors(lambda t: t.to(rows.device), data)
        return log_prior(parameters), log_likelihood(parameters, rows_of(moved[rows.device], rows))

    bijections = {name: as_transform(name, each) for name, each in (constraints or {}).items()}
    described = {
        "log_prior": code_of(log_prior), "log_likelihood": code_of(log_likelihood), "data": digest(data),
        "constraints": {name: told(each) for name, each in bijections.items()},
    }  # fmt: skip
    density = Density(terms, init, count_items(data), bijections, described, batch_size, dims or {}, coords or {})
    return sample_from(density, run_dir, **sampling)


def sample_from(
    density: Density,
    run_dir: str | Path,
    *,
    steps: int,
    lr: float | None = None,
    dynamics: Transition = bdl.BAOAB(0.1),  # noqa: B008
    chains: int = 8,
    seed: int = 0,
    **arguments: Any,
) -> DensityPosterior:
    """Sample a density, such as that of `bdl.contrib.pyro.from_pyro`.

    Args:
        steps: how many the sampler takes, in all.
        lr: in the units of SGD on the mean loss U/N. None finds it and the friction, see `bdl.find_settings`; dynamics
            that adapt their step begin at 0.001.
        dynamics: any of bdl's. Those that read all the data in every step need batches of all rows.
        chains: C, which run together.
        arguments: further ones of `bdl.sample` and `bdl.Sampler`: keep, temperature, weighting, schedule and others.

    Raises ConfigError as `sample_density` does.
    """
    if refused := sorted({"prior", "num_data", "loss", "test", "start"} & arguments.keys()):
        raise ConfigError(f"{refused[0]} is no argument here: the density says prior, N and start; parameters judge")
    size = density.num_data if density.batch_size is None else density.batch_size
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        first = density.network()
    density.check(first)
    start = density.network if callable(density.init) else first
    stack = ChainStack(start, chains, start="given", seed=seed, shared=False, method=way_of(first))
    rows = torch.arange(density.num_data)
    nothing = torch.zeros(density.num_data, 0)  # targets, which the functions read by themselves
    if lr is None:
        found = bdl.find_settings(
            stack, DensityNLL(), (rows, nothing), dynamics=dynamics, temperature=arguments.get("temperature", 1.0),
            steps=steps, given={"prior": bdl.Uniform(), "batch_size": size}, seed=seed,
        ).settings  # fmt: skip
        lr = float(found.get("lr", LR))
        dynamics = replace(dynamics, friction=found["friction"]) if "friction" in found else dynamics  # type: ignore[type-var]
    report = DensityReport(density)
    # T_eff is right for independent batches; over a shuffled epoch their noise cancels in part
    batches = bdl.data.TensorBatches(rows, nothing, size, chains=chains, seed=seed, replacement=size < len(rows))
    posterior = sample(
        stack, DensityNLL(), batches, run_dir,
        steps=steps, lr=lr, dynamics=dynamics, prior=bdl.Uniform(), seed=seed,
        callbacks=[report, *arguments.pop("callbacks", ())], **arguments,
    )  # fmt: skip
    return DensityPosterior(posterior, density, report.metrics)


def as_transform(name: str, constraint: Any) -> Transform:
    """The bijection from all real numbers. Raises ConfigError for a constraint without one."""
    if isinstance(constraint, Transform):
        return constraint
    try:
        return biject_to(constraint)
    except NotImplementedError as error:
        raise ConfigError(
            f"constraints[{name!r}] must be a constraint that torch.distributions.biject_to knows, or a Transform, got "
            f"{constraint!r}"
        ) from error


def told(transform: Transform) -> Any:
    """What tells a transform from others, as plain values."""
    if isinstance(transform, ComposeTransform):
        return [told(part) for part in transform.parts]
    return [str(transform), identity({k: v for k, v in vars(transform).items() if not k.startswith("_")})]


def as_tensors(data: Any) -> Any:
    """The data as tensors of N rows each. Raises ConfigError for none, and for tensors of different lengths."""
    data = apply_to_collection(data, Tensor | np.ndarray, lambda part: torch.as_tensor(part).detach())
    lengths = {len(part) if part.ndim else 0 for part in tensors_in(data)}
    if len(lengths) != 1 or 0 in lengths:
        raise ConfigError(f"data must be tensors of as many rows each, and of one at least, got {structure(data)}")
    return data


def way_of(net: torch.nn.Module) -> Any:
    """ "vmap" where torch can vectorise the density over chains; else "loop", with a BdlWarning that says why."""
    rows = torch.zeros(2, 1, dtype=torch.int64)
    try:
        ChainStack(net, 2, start="given", method="vmap")(rows).sum().backward()
    except Exception as error:  # whatever the user's functions raise under vmap
        line = f"torch cannot vectorise the density over chains ({one_line(error)}): they run one after another"
        warnings.warn(line, BdlWarning, stacklevel=3)
        return "loop"
    return "vmap"
