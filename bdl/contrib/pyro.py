"""from_pyro: a model of Pyro as a density. Its trace gives the log densities and the transforms."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.distributions import biject_to
from torch.func import vmap

from bdl.batch import tensors_in
from bdl.contrib.density.network import Density, Parameters
from bdl.data.fingerprint import digest
from bdl.errors import ConfigError
from bdl.identity import code_of, identity

RADIUS = 2.0  # starts are uniform within it in the free values, as those of Stan and Pyro


def from_pyro(model: Callable[..., Any], *args: Any, init: Mapping[str, Any] | None = None, **kwargs: Any) -> Density:
    """The posterior of a Pyro model's latent variables, for `bdl.contrib.density.sample.sample_from`.

    A `pyro.plate(name, N, subsample_size=B)` around the observed sites gives the mini-batches: bdl chooses its rows,
    and each counts by itself. Without such a plate a step reads all the data. Latent variables must be continuous, and
    lie outside the subsampled plate.

    Args:
        model: as for `pyro.infer.NUTS`, with observed sites (`obs=`).
        args, kwargs: its arguments.
        init: a value of each latent variable, where all chains begin; None draws the free values of each chain
            uniformly from (-2, 2).

    Raises ConfigError without Pyro, and for a model of another kind, of which it names the site.
    """
    if find_spec("pyro") is None:
        raise ConfigError("from_pyro needs the package pyro-ppl, which is missing: pip install 'bdl[pyro]'")
    from pyro import poutine, validation_enabled  # type: ignore[attr-defined]

    def run(given: Mapping[str, Tensor]) -> dict[str, Any]:
        with validation_enabled(False):  # it looks at values, which vmap forbids
            trace = poutine.trace(poutine.condition(model, dict(given))).get_trace(*args, **kwargs)
            trace.compute_log_prob()
        return sites_of(trace)

    with torch.random.fork_rng(devices=[]):
        sites = sites_of(poutine.trace(model).get_trace(*args, **kwargs))
    latent = {name: site for name, site in sites.items() if not site["is_observed"]}
    plate, total, size = batched_plate(sites, latent)
    transforms = {name: biject_to(site["fn"].support) for name, site in latent.items()}

    def of_rows(parameters: Parameters, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The log prior, and the log likelihoods (B,) of as many rows as the plate takes."""
        found = run({**parameters, plate: rows} if size < total else parameters)
        prior, items = torch.zeros(()), torch.zeros(size)
        for name, site in found.items():
            axis = next((f.dim for f in site["cond_indep_stack"] if f.name == plate), None)
            if axis is None or name in latent:  # seen once, whatever the rows
                prior = prior + site["log_prob"].sum()
            else:  # the plate has scaled the rows of a batch up to all
                items = items + site["log_prob"].movedim(axis, 0).reshape(size, -1).sum(1) * size / total
        return prior, items

    def terms(parameters: Parameters, rows: Tensor) -> tuple[Tensor, Tensor]:
        if size == total:
            prior, items = of_rows(parameters, rows)
            return prior, items[rows]
        blocks = math.ceil(len(rows) / size)  # a plate takes as many rows as it names, so the last block repeats some
        padded = rows[torch.arange(blocks * size) % len(rows)].view(blocks, size)
        prior, items = vmap(lambda block: of_rows(parameters, block))(padded)
        return prior[0], items.flatten()[: len(rows)]

    def drawn() -> dict[str, Tensor]:
        free = {name: transforms[name].inv(site["value"]) for name, site in latent.items()}
        return {name: transforms[name](RADIUS * (2 * torch.rand_like(u) - 1)) for name, u in free.items()}

    dims = {k: [f.name for f in sorted(s["cond_indep_stack"], key=lambda f: f.dim)] for k, s in latent.items()}
    described = {"model": identity(model), "code": code_of(model), "data": digest(list(tensors_in([*args, kwargs])))}
    return Density(terms, init or drawn, total, transforms, described, size, dims)


def sites_of(trace: Any) -> dict[str, Any]:
    """The latent and the observed sites of a trace by name, without those that draw the rows of plates."""
    from pyro.poutine.util import prune_subsample_sites

    pruned = prune_subsample_sites(trace)
    return {name: pruned.nodes[name] for name in [*pruned.stochastic_nodes, *pruned.observation_nodes]}


def batched_plate(sites: Mapping[str, Any], latent: Mapping[str, Any]) -> tuple[str, int, int]:
    """The plate whose rows make batches, all its rows, and those of a batch: the subsampled one, or one of all observed
    sites; without either the model is one row. Raises ConfigError, see `from_pyro`."""
    for name, site in latent.items():
        if site["fn"].support.is_discrete:
            raise ConfigError(f"the latent variable {name} is discrete, and chains move along gradients: sum it out")
    observed = [site["cond_indep_stack"] for name, site in sites.items() if name not in latent]
    if not observed or not latent:
        raise ConfigError("the model needs a latent variable, and an observed site, which has obs=")
    frames = {f.name: f for site in sites.values() for f in site["cond_indep_stack"] if f.full_size != f.size}
    if len(frames) > 1:
        raise ConfigError(f"several plates are subsampled ({', '.join(frames)}), and a batch has rows of one")
    for name in frames:
        if inside := [k for k, site in latent.items() if any(f.name == name for f in site["cond_indep_stack"])]:
            raise ConfigError(
                f"the latent variable {inside[0]} lies in the subsampled plate {name}, and a batch has a part of it: "
                "draw it outside, for all rows, and index it by those of the plate"
            )
    shared = [f for f in observed[0] if all(any(f.name == g.name for g in other) for other in observed)]
    frame = next(iter([*frames.values(), *shared]), None)
    return ("", 1, 1) if frame is None else (frame.name, frame.full_size, frame.size)
