"""Thinning: the few networks whose average is nearest to the average of all, and their store."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from bdl.disk.files import read_file
from bdl.disk.manifest import Manifest
from bdl.display import Shown
from bdl.engine.functional import replace_tensors
from bdl.errors import ConfigError, StoreError
from bdl.posterior.export import gathered_networks, thinned
from bdl.posterior.outputs import Batches, Data, ItemOutputs, LabelledOutputs
from bdl.posterior.predict import P, Posterior
from bdl.posterior.prediction import AnyPrediction, ValuePrediction, log_probs
from bdl.posterior.samples import Key, Samples
from bdl.posterior.seen_inputs import read_inputs, write_inputs
from bdl.posterior.store import COPIED, Record, SampleStore
from bdl.posterior.tensors import FrozenPart, frozen_names

LIMIT = 2**30  # bytes of probabilities in memory; with more, evenly spaced items decide
NODES = torch.linspace(-3.5, 3.5, 15, dtype=torch.float64)  # z at which densities of numbers are compared
By = Literal["divergence", "nll"]


@dataclass(frozen=True, repr=False)
class Thinning(Shown):
    """Which networks were chosen, and how near their average is to the average of all.

    Attributes:
        networks: (chain, step) of each in the posterior that was thinned, in the order in which they were chosen.
        among: how many there were.
        by: "divergence", KL(average of all | average of the chosen), or "nll", mean -log p(y), both in nats an item.
        scores: of the averages over the chosen networks (`chosen`), over as many that are evenly spaced along every
            chain (`spaced`) and over all (`all`), on the items by which they were chosen; and of other items
            `test/nll/...` and `test/divergence/...`.
    """

    networks: list[Key]
    among: int
    by: By
    scores: Mapping[str, float]

    def compared(self, by: str, spaced: Sequence[Key], keys: Sequence[Key], densities: Densities) -> Thinning:
        """The same with the scores `test/<by>/...` of both sets and of all, by densities of the networks `keys`."""
        sets = {"chosen": self.networks, "spaced": spaced, "all": keys}
        of_test = {
            f"test/{by}/{name}": densities.score([keys.index(key) for key in each]) for name, each in sets.items()
        }
        return replace(self, scores={**self.scores, **of_test})

    def shown(self) -> tuple[str, Mapping[str, str]]:
        lines = {name: f"{value:.5g} nats" for name, value in self.scores.items()}
        return f"Thinning to {len(self.networks):,} of {self.among:,} networks by {self.by}", lines


@dataclass(frozen=True)
class Densities:
    """Probabilities (S, m) of m outcomes by S networks, each outcome divided by its largest one; and what they weigh.

    -Σ_j weight_j log mean_s p_sj is the score of a set of networks s, up to the constant that `largest` gives back.
    """

    p: Tensor  # (S, m) float32 in [0, 1]
    largest: Tensor  # (m,) log of what they were divided by
    weights: Tensor  # (m,)
    offset: float = 0.0  # what a score leaves out: a divergence, the score of the average over all

    @classmethod
    def of(cls, logs: Tensor, weights: Tensor) -> Densities:
        """From log probabilities or densities (S, c, m) and their weights (c, m)."""
        logs, weights = logs.flatten(1), weights.flatten()
        largest = logs.amax(0).clamp_min(-1e30)  # log 0 - log 0 would be NaN
        return cls((logs - largest).exp().float(), largest.double(), weights.double())

    def score(self, networks: Sequence[int] | slice) -> float:
        """That of the average over these networks, nats."""
        mean = self.p[networks].double().mean(0).clamp_min(torch.finfo(torch.float64).tiny)
        return -float(self.weights @ (mean.log() + self.largest)) - self.offset

    def chosen(self, k: int) -> list[int]:
        """k networks: each in turn lowers the score of the average most."""
        total, left, found = torch.zeros_like(self.largest), torch.ones(len(self.p), dtype=torch.bool), []
        size = max(1, 2**22 // len(total))
        tiny = torch.finfo(torch.float64).tiny
        for _ in range(k):
            gains = [(total + part).clamp_min_(tiny).log_() @ self.weights for part in self.p.split(size)]
            best = int(torch.cat(gains).masked_fill(~left, -math.inf).argmax())
            total, left[best] = total + self.p[best], False
            found.append(best)
        return found


@torch.no_grad()
def thin(
    posterior: Posterior[P], k: int, data: Data, *, by: By = "divergence", test: Iterable[Any] | None = None
) -> Posterior[P]:
    """`Posterior.thin`: the k of n networks whose average is nearest to the average of all, in k / n of the time.

    They are chosen one after the other: each brings the average nearest. Where as many networks
    evenly spaced along the chains are nearer, it is these. `thinning` of the result has the scores of both; `save`
    writes the result as a run directory. Each network is a chain of its own in it, so that R-hat and ESS cannot be
    asked of it. Networks count alike.

    Args:
        posterior: the networks, which stay as they are.
        k: how many networks.
        data: x (n, ...), or a loader of items like those that will be predicted.
        by: "divergence" from the average of all, which needs no labels; or "nll", mean -log p(y) of labelled
            items that were not trained on. Few items lead the latter astray: thousands of sets are tried on them.
        test: a loader of other (x, y) batches, on which the sets are compared.

    Raises ConfigError unless 1 <= k <= their number, and for "nll" without labels.
    """
    used = posterior.weights().by_key
    if not 1 <= k <= len(used):
        raise ConfigError(f"k must be between 1 and the {len(used)} networks, got {k}")
    spaced = list(thinned(used, k))
    thinning = thin_out(k, spaced, by, *densities_of(posterior, by, posterior.batches(data), used))
    if test is not None:
        batches = posterior.batches(test)
        ways: tuple[By, ...] = ("nll", "divergence")
        for way in ways:
            thinning = thinning.compared(way, spaced, *densities_of(posterior, way, batches, used))
    return posterior.part(thinning.networks, thinning)


def save(posterior: Posterior[Any], run_dir: str | Path) -> None:
    """`Posterior.save`: write a thinned posterior as a run directory, which `load` and the commands read.

    Raises ConfigError unless it is thinned; StoreError if the folder has samples, or the disk is full.
    """
    if not isinstance(posterior.thinning, Thinning):
        if all(store.run_dir.exists() for store in posterior.stores):
            raise ConfigError("this posterior lies on disk as it is: only what thin(k, data) returns is saved")
        raise ConfigError("this posterior is in memory, and pickle keeps it: only what thin(k, data) returns is saved")
    write_thinned(posterior.stored, posterior.thinning, run_dir)


def thin_out(k: int, spaced: Sequence[Key], by: By, keys: Sequence[Key], densities: Densities) -> Thinning:
    """The better one of two sets of k networks: chosen one after the other, and evenly spaced along every chain."""
    even, chosen = [keys.index(key) for key in spaced], densities.chosen(k)
    scores = {"chosen": densities.score(chosen), "spaced": densities.score(even), "all": densities.score(slice(None))}
    if scores["spaced"] < scores["chosen"]:
        chosen, scores["chosen"] = even, scores["spaced"]
    return Thinning([keys[i] for i in chosen], len(keys), by, scores)


def densities_of(
    posterior: Posterior[Any], by: By, batches: Batches, used: Mapping[Key, float]
) -> tuple[list[Key], Densities]:
    """What the sets of networks are scored by, on these batches."""
    likelihood = posterior.likelihood(batches)
    if by == "nll":
        return densities_of_labels(LabelledOutputs(posterior.stored, batches, likelihood), used)
    return densities_of_average(ItemOutputs(posterior.stored, batches, likelihood), used, posterior.predicted(batches))


def densities_of_labels(labelled: LabelledOutputs, used: Collection[Key]) -> tuple[list[Key], Densities]:
    """p(y) of each item, all its targets together, by every network, of the same weight; and the networks."""
    likelihood, y = labelled.likelihood.of_rows(), labelled.y
    likelihood.check(y)
    of_labels = lambda each: -likelihood(each.double(), y.expand(len(each), *y.shape)).unsqueeze(1)  # noqa: E731
    keys, logs = logs_of(labelled, used, of_labels)
    return keys, Densities.of(logs, torch.ones(logs.shape[1:]) / logs.shape[2])


def densities_of_average(
    outputs: ItemOutputs, used: Collection[Key], average: AnyPrediction
) -> tuple[list[Key], Densities]:
    """The probabilities of all classes of each item by every network, weighted as the average of all expects them.

    Of numbers the densities of each target at the quantiles Φ(NODES) of the average, where the trapezoid rule for
    ∫ f(y(z)) φ(z) dz takes them: random draws in their place would be fitted as well. Also the networks in their order.
    """
    likelihood = outputs.likelihood
    assert likelihood is not None
    if isinstance(average, ValuePrediction):
        nodes = torch.stack([average.quantile(q) for q in torch.special.ndtr(NODES).tolist()]).double()  # (c, n, k)
        of_nodes = lambda each: likelihood.log_density(each.double().unsqueeze(1), nodes).flatten(2)  # noqa: E731
        keys, logs = logs_of(outputs, used, of_nodes)
        mass = (-NODES.square() / 2).exp()
        weights = (mass / mass.sum()).unsqueeze(1).expand(logs.shape[1:]) * nodes.shape[-1] / logs.shape[2]
    else:
        keys, logs = logs_of(outputs, used, lambda each: log_probs(each, likelihood))
        weights = logs.double().exp().mean(0) / logs.shape[2]
    densities = Densities.of(logs, weights)
    return keys, replace(densities, offset=densities.score(slice(None)))


def logs_of(
    outputs: ItemOutputs, used: Collection[Key], log_of: Callable[[Tensor], Tensor]
) -> tuple[list[Key], Tensor]:
    """The networks, and log_of(outputs) (S, c, m), float32, of evenly spaced items where all would take too much."""
    keys: list[Key] = []
    parts: list[Tensor] = []
    for group in outputs.samples.groups(used):
        for block, each in outputs.blocks(group):
            rows = [i for i, key in enumerate(block.keys) if key in used]
            logs = log_of(each[rows])
            step = math.ceil(4 * len(used) * logs[:1].numel() / LIMIT)
            keys += [block.keys[i] for i in rows]
            parts.append(logs[..., ::step].float())
    outputs.not_finite.warn()
    return keys, torch.cat(parts)


def write_thinned(samples: Samples, thinning: Thinning, run_dir: str | Path) -> None:
    """Write the networks as the samples of a run: one step of so many chains, with the files that commands read.

    Raises StoreError if the folder has samples, or the disk is full or not writable.
    """
    folder, store, origin = Path(run_dir), SampleStore(run_dir), samples.stores[0]
    if store.has_files(0) or store.has_target():
        raise StoreError(f"{folder} holds samples already: choose another folder")
    keys = {(chain, record.step): 1.0 for chain, record, _ in samples.keyed()}
    tensors, _ = gathered_networks(samples.groups(keys), keys)
    target = origin.target()
    names = frozen_names(target)
    whole = replace_tensors(copy.deepcopy(samples.net), samples.frozen) if names else samples.net
    store.write_target(target, 0, FrozenPart(whole, names=names) if names else None)
    records = [file.record.of_rows([i]) for file in samples.files for i in range(len(file.chains))]
    store.write({name: t.cpu() for name, t in tensors.items()}, **one_step(records))
    if inputs := read_inputs(origin):
        write_inputs(store.manifest(0), inputs)
    for name in COPIED:
        if (origin.run_dir / name).exists():
            Manifest(folder).write(name, name.partition(".")[0], read_file(origin.run_dir / name))
    Manifest(folder).write("thinning.json", "thinning", json.dumps(asdict(thinning), indent=1).encode())


def one_step(records: Sequence[Record]) -> dict[str, Any]:
    """The fields of a record of all these networks, each of them a chain. Weights of a sample are not kept."""

    def each(name: str) -> list[float]:
        values = [getattr(record, name) for record in records]
        return [value[0] if isinstance(value, list) else value for value in values]

    energies: dict[str, Any] = {
        name: None if any(getattr(r, name) is None for r in records) else [getattr(r, name)[0] for r in records]
        for name in ("energy_batch", "energy_full")
    }
    last = records[-1]
    return {
        "step": last.step, "stack": 0, "chains": list(range(len(records))), "cycle": last.cycle, "lr": each("lr"),
        "temperature": each("temperature"), "zeta": last.zeta, **energies, "log_weight": None, "psi_frozen": False,
    }  # fmt: skip
