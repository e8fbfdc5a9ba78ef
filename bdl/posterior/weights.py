"""Weights of samples: uniform, proportional to the learning rate, or importance weights."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bdl.errors import ConfigError
from bdl.posterior.diagnostics import weight_ess
from bdl.posterior.store import Record

Keyed = tuple[int, Record, int]  # (chain among all runs, record, chain within the record)
EFFECTIVE_SAMPLES = (
    100.0  # effective samples of importance weights: the error of a mean is then a tenth of the posterior's width
)
SMALLEST_SHARE = (
    0.1  # a share of the samples, where it is less than EFFECTIVE_SAMPLES: few samples cannot be more effective
)


@dataclass(frozen=True)
class Weights:
    """Weights by (chain, step), which sum to the number of chains.

    Importance weights have one normalisation for all chains that share psi. Where each chain has its own psi, and with
    it its own weighted law, the weights of each chain sum to 1.
    """

    by_key: dict[tuple[int, int], float]
    ess: float  # Kish effective sample size over all chains
    biased: bool | None  # does the error of batch energies exceed the spread of U? None: unknown
    note: str

    @property
    def used(self) -> set[tuple[int, int]]:
        """The networks whose weight is not 0."""
        return {key for key, weight in self.by_key.items() if weight}

    def of(self, keys: Iterable[tuple[int, int]]) -> Tensor:
        """(k,) the weights of these networks; 0 for networks without a weight."""
        return torch.tensor([self.by_key.get(key, 0.0) for key in keys], dtype=torch.float64)


def sample_weights(
    samples: Sequence[Keyed],
    chains: int,
    kind: str,
    full_data: bool = False,
    psi_of: Sequence[int] | None = None,
    target: float | None = None,
) -> Weights:
    """Normalised weights of samples.

    Args:
        samples: every network of the posterior.
        chains: the number of chains among all runs.
        kind: "uniform"; "step_size", proportional to lr (Karagiannis 2023, eq. 3.8; Bayes-by-Backprop post, eq. 25);
            or "importance", psi(U)^zeta, which turns samples of a weighted law into samples of exp(-U/T), or
            psi(U)^zeta exp(-U (1/T0 - 1/T)), which turns them into samples of exp(-U/T0).
        full_data: True if psi was fitted on full-data energies, which have no batch noise to bias the weights.
        psi_of: (chains,) the number of each chain's psi, the same for chains that share it. None: each has its own.
        target: T0 of a weighting that leads to another temperature than that of the samples; None: to that.

    Raises ConfigError for an unknown kind, and for importance weights that are not valid or rest on too few samples.
    """
    groups: Sequence[int] = [0] * chains  # chains that are normalised together
    if kind == "importance":
        logs, note, biased = _importance(samples, full_data)
        groups = range(chains) if psi_of is None else psi_of
        if len(set(groups)) > 1:
            note += "; chains without a shared psi are normalised one by one: they sample different distributions"
    elif kind == "step_size":
        logs = {(i, r.step): math.log(_of_chain(r.lr, c)) for i, r, c in samples if _of_chain(r.lr, c) > 0}
        note, biased = "proportional to lr", False
    elif kind == "uniform":
        logs, note, biased = {(i, r.step): 0.0 for i, r, _ in samples}, "uniform", False
    else:
        raise ConfigError(f'unknown weights {kind!r}: "uniform", "step_size" or "importance"')
    by_key = _normalise(logs, groups)
    ess = weight_ess(np.log([w for w in by_key.values() if w > 0]))
    if kind == "importance" and target is not None:
        ess *= _share_beyond_noise(samples, target, full_data)
    if kind == "importance" and ess < min(EFFECTIVE_SAMPLES, SMALLEST_SHARE * len(logs)):
        raise ConfigError(_too_far(logs, ess) + (f"; besides, {note}" if biased else ""))
    return Weights(by_key, ess, biased, note)


def _importance(samples: Sequence[Keyed], full_data: bool) -> tuple[dict[tuple[int, int], float], str, bool | None]:
    """(log weights zeta log psi(U), note, biased) of the samples kept under a frozen psi, at one T and zeta."""
    usable = [(i, r, c) for i, r, c in samples if r.psi_frozen and r.log_weight is not None]
    if all(r.zeta == 0 for _, r, _ in samples):
        raise ConfigError(
            "importance weights need a weighting (sampler=awsgld or awsghmc): these samples already follow exp(-U/T)"
        )
    reason = ""
    if not usable:
        reason = "psi never settled at a constant T and zeta before the last kept sample: run longer"
    elif len({(_of_chain(r.temperature, c), i) for i, r, c in usable}) > len({i for i, _, _ in usable}):
        reason = "the temperature changed between samples kept under the frozen psi: keep samples at one temperature"
    elif len({(r.zeta, i) for i, r, _ in usable}) > len({i for i, _, _ in usable}):
        reason = "zeta changed between samples kept under the frozen psi: keep samples at one zeta"
    if reason:
        raise ConfigError(f"no importance weights: {reason}")
    note, biased = ("psi was fitted on full-data energies", False) if full_data else _judge(samples)
    return {(i, r.step): r.log_weight[c] for i, r, c in usable}, note, biased  # type: ignore[index]


def _too_far(logs: Mapping[tuple[int, int], float], ess: float) -> str:
    """Why weights of so few effective samples are refused.

    psi is 1 in the highest bin, among energies of exp(-U/T). Where all samples lie there and log psi still rises, as
    under form="full", the weights do not say how far exp(-U/T) is.
    """
    nats = -float(np.median(list(logs.values())))
    distance = f"about {nats:,.0f} nats of log weight away" if nats > 0 else "far away"
    return (
        f"no importance weights: the weighted distribution lies {distance} from exp(-U/T), so that the weights rest on "
        f"{ess:,.1f} effective of {len(logs):,} samples: lower zeta, or take the average of the weighted distribution"
    )


def _share_beyond_noise(samples: Sequence[Keyed], target: float, full_data: bool) -> float:
    """The share of the effective samples that noise of the energies leaves: weights exp(-U (1/T0 - 1/T)) scatter by it.

    For normal noise of standard deviation s it is exp(-s² (1/T0 - 1/T)²). 1 where the noise is not known.
    """
    _, error = energy_spreads(samples)
    if full_data or math.isnan(error):
        return 1.0
    tilts = [1 / target - 1 / t for _, r, c in samples if (t := _of_chain(r.temperature, c)) > 0]
    return math.exp(-((error * max(map(abs, tilts), default=0.0)) ** 2))


def _judge(samples: Sequence[Keyed]) -> tuple[str, bool | None]:
    """(note, biased): biased if the error of batch energies exceeds the spread of U; None without full energies."""
    spread, error = energy_spreads(samples)
    if math.isnan(spread + error):
        return "importance weights may be biased: full_energy=true records the energies that would show it", None
    sizes = f"the standard deviation of batch energies around U is {error:.3g} nats, that of U is {spread:.3g} nats"
    return (f"importance weights are biased: {sizes}", True) if error > spread else (sizes, False)


def energy_spreads(samples: Sequence[Keyed]) -> tuple[float, float]:
    """Standard deviations of full energies within chains, and of batch energies around them, nats; NaN if unknown."""
    full: dict[int, list[float]] = defaultdict(list)
    errors = []
    for i, r, c in samples:
        if r.energy_full is not None:
            full[i].append(r.energy_full[c])
            if r.energy_batch is not None:
                errors.append(r.energy_batch[c] - r.energy_full[c])
    within = [np.var(u, ddof=1) for u in full.values() if len(u) > 1]
    spread = math.sqrt(np.mean(within)) if within else math.nan
    return spread, float(np.std(errors, ddof=1)) if len(errors) > 1 else math.nan


def _normalise(logs: dict[tuple[int, int], float], groups: Sequence[int]) -> dict[tuple[int, int], float]:
    """Weights from log weights, without overflow. Those of a group sum to the number of its chains with a weight."""
    keys: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for key in logs:
        keys[groups[key[0]]].append(key)
    weights = {}
    for each in keys.values():
        top = max(logs[key] for key in each)
        unnormalised = {key: math.exp(logs[key] - top) for key in each}
        factor, total = len({chain for chain, _ in each}), sum(unnormalised.values())
        weights |= {key: value * factor / total for key, value in unnormalised.items()}
    return weights


def _of_chain(value: float | list[float], c: int) -> float:
    """The value of chain c, where a record has one for all chains or a list of one for each."""
    return value[c] if isinstance(value, list) else value
