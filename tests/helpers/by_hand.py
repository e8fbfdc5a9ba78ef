"""Data, predictions and weightings that the tests of the posterior share."""

from pathlib import Path

import torch
import toys
from torch.func import functional_call

import bdl
from bdl.likelihoods.base import Likelihood
from bdl.posterior.mixture import PredictiveMixture
from bdl.posterior.store import Record, SampleStore
from bdl.posterior.stored_outputs import StoredOutputs
from bdl.schedules import Constant

X, Y = toys.tensors(seed=2)
NUMBERS_X = toys.tensors(seed=4)[0]
NUMBERS_Y = NUMBERS_X[:, :1] - 0.5 * NUMBERS_X[:, 1:2]


def probabilities(folder, net=None) -> torch.Tensor:
    """(files, chains, n, K) of every sample."""
    store, net = SampleStore(folder), toys.plain(net)
    return torch.stack([of_file(store.read(r), net) for r in store.records()])


def of_file(tensors, net) -> torch.Tensor:
    """(chains, n, K) probabilities of the networks of one file."""
    chains = len(next(iter(tensors.values())))
    each = [functional_call(net.eval(), {k: v[c] for k, v in tensors.items()}, (X,)) for c in range(chains)]
    return torch.stack(each).softmax(-1).detach()


def mixture_of(outputs: torch.Tensor, likelihood: Likelihood, weights=None) -> PredictiveMixture:
    """Of networks with these outputs (S, n, K), and weights (S,), which are equal where none are given."""
    stored = StoredOutputs()
    stored.add(outputs)
    return PredictiveMixture(stored, likelihood, torch.ones(len(outputs)) if weights is None else weights)


def record(step: int, log_weight: list[float], zeta: float = 2.0, **energies: list[float]) -> Record:
    """A kept step of chains with these log weights, under a psi that has settled."""
    energy = {"energy_batch": None, "energy_full": None} | energies
    chains = list(range(len(log_weight)))
    return Record(
        step,
        0,
        chains,
        0,
        0.1,
        1.0,
        zeta,
        **energy,
        log_weight=log_weight,
        psi_frozen=True,
        file="",
        bytes=0,
        sha256="",
    )


def settled(**arguments) -> bdl.AdaptiveWeight:
    """A weighting whose psi settles within 60 steps, for every other seed."""
    return bdl.AdaptiveWeight(**(dict(zeta=2.0, low=0.0, high=120.0, bins=20, rate=Constant(0.5)) | arguments))


def settled_run(folder: Path, steps: int, keep, collect=None, **arguments) -> Path:
    """The first of runs of other seeds whose psi has settled when its first sample is kept."""
    for seed in range(20):
        run = folder / str(seed)
        toys.sample(run, steps, keep, weighting=settled(**arguments), collect=collect, seed=seed)
        if SampleStore(run).records()[0].psi_frozen:
            return run
    raise AssertionError("psi settled for none of 20 seeds")
