"""The posterior for other tools: one torch module to save, to export and to serve, and an ArviZ DataTree."""

from __future__ import annotations

import copy
import math
import warnings
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bdl.batch import inputs_of_call
from bdl.engine.forward import Forward, Method
from bdl.engine.functional import named_tensors, replace_tensors
from bdl.errors import ConfigError, check_whole
from bdl.frozen import matching
from bdl.likelihoods import Likelihood, likelihood_of
from bdl.posterior.diagnostics import Draws
from bdl.posterior.outputs import LabelledOutputs
from bdl.posterior.samples import Group, Key, Samples
from bdl.posterior.weights import Keyed
from bdl.seeding import derive_seed, generator

ONNX = ("onnx", "onnxscript")  # packages that torch's exporter needs


class PosteriorModule(nn.Module):
    """Maps x to mean probabilities (n, K), or to means of numbers (n, k), over S networks that it holds itself.

    `net` holds their tensors, stacked along a leading axis S, under the names that one network gives them. So the
    module can be moved, saved with `torch.save`, loaded elsewhere, and exported with `torch.export`.

    Args:
        net: the architecture. It is copied.
        tensors: parameters and buffers (S, ...) by name.
        weights: (S,) >= 0 of the networks.
        law: what their outputs mean: a likelihood, or the description of a loss that stands for one.
        method: how S networks run together, see `bdl.engine.forward.Forward`.
        frozen: tensors (...) by name that all networks share.
    """

    weights: Tensor
    method: Method

    def __init__(
        self,
        net: nn.Module,
        tensors: dict[str, Tensor],
        weights: Tensor,
        law: Any,
        method: Method = "auto",
        frozen: Mapping[str, Tensor] | None = None,
    ):
        super().__init__()
        self.net = replace_tensors(copy.deepcopy(net), {**tensors, **(frozen or {})}).requires_grad_(False)
        self.register_buffer("weights", (weights / weights.sum()).float())
        self.law, self.method, self.stacked = law, method, list(tensors)
        self.eval()

    def train(self, mode: bool = True) -> PosteriorModule:
        """Stays in evaluation mode, also as a part of a module that trains: samples do not train."""
        return super().train(False)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        means = expected(*self.of_each(*args, **kwargs))
        return torch.tensordot(self.weights.to(means.dtype), means, 1)

    def of_each(self, *args: Any, **kwargs: Any) -> tuple[Likelihood, Tensor]:
        """What the outputs mean, and the outputs (S, n, ...) of each network; gradients reach the inputs."""
        tensors = named_tensors(self.net)
        forward = Forward(self.net, self.method, [name for name in tensors if name not in self.stacked])
        outputs = forward({name: tensors[name] for name in self.stacked}, inputs_of_call(args, kwargs))
        likelihood = likelihood_of(self.law, outputs.shape[-1], outputs.ndim - 1)
        assert likelihood is not None
        return likelihood.unweighted, outputs

    def to_onnx(self, path: str | Path, *inputs: Tensor) -> None:
        """Write an ONNX file, for inputs of these shapes and any number of items.

        torch's exporter knows the operators of one network, and not all operators that `method="vmap"` makes of them.
        So the networks of "vmap" are written one after the other; the numbers are the same.

        Raises ConfigError where the packages of torch's exporter are missing, or torch has no ONNX form of an operator.
        """
        if missing := [name for name in ONNX if find_spec(name) is None]:
            raise ConfigError(f"ONNX needs {' and '.join(ONNX)}, and {missing[0]} is missing: pip install 'bdl[onnx]'")
        items = tuple({0: torch.export.Dim.DYNAMIC} for _ in inputs)
        written = copy.copy(self)
        written.method = "loop" if self.method == "vmap" else self.method
        try:
            torch.onnx.export(written, inputs, str(path), dynamo=True, dynamic_shapes=(items,), verbose=False)
        except (RuntimeError, torch.onnx.OnnxExporterError) as error:
            reason: BaseException = error
            while reason.__cause__ is not None:  # the exporter's own message is a page that begins with its next steps
                reason = reason.__cause__
            first = str(reason).strip().splitlines()[0]
            raise ConfigError(f"torch cannot write this network as ONNX ({first}): use torch.export") from error


def thinned(weights: Mapping[Key, float], samples: int | None) -> dict[Key, float]:
    """The weights of so many networks, evenly spaced along every chain, or of all that have one. Raises ConfigError."""
    keys = sorted(key for key, weight in weights.items() if weight)  # sorted by chain, then by step
    if samples is not None and not 1 <= samples <= len(keys):
        raise ConfigError(f"samples must be between 1 and the {len(keys)} samples that have a weight, got {samples}")
    spaced = np.linspace(0, len(keys) - 1, samples or len(keys)).round().astype(int)
    return {keys[i]: weights[keys[i]] for i in spaced}


def gathered_networks(groups: Iterable[Group], weights: Mapping[Key, float]) -> tuple[dict[str, Tensor], Tensor]:
    """The tensors (S, ...) of the networks that have a weight, and these weights (S,)."""
    parts, of_network = [], []
    for group in groups:
        keys = group.keys  # made anew whenever they are asked for
        rows = [i for i, key in enumerate(keys) if key in weights]
        parts.append({name: values[rows] for name, values in group.tensors.items()})
        of_network += [weights[keys[i]] for i in rows]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}, torch.tensor(of_network)


def expected(likelihood: Likelihood, outputs: Tensor) -> Tensor:
    """(S, n, ...) probabilities of classes or labels, or means of numbers, from the outputs of S networks."""
    outputs = likelihood.arranged(outputs)
    if likelihood.outputs == "logits":
        return outputs.softmax(-1)
    return likelihood.mean(outputs)


def recorded(samples: Sequence[Keyed], chains: int, name: str) -> np.ndarray:
    """(chains, draws) of an energy or the log weight of the records, NaN where unknown, cut to the shortest chain."""
    draws = Draws(chains)
    for chain, record, c in samples:
        value = getattr(record, name)
        draws.add([chain], [value[c] if isinstance(value, list) else math.nan if value is None else value])
    return draws.array()


def sample_stats(samples: Sequence[Keyed], chains: int, weights: Mapping[Key, float]) -> dict[str, np.ndarray]:
    """(chains, draws) energy (nats), lr, temperature and weight of every draw.

    It is the full-data energy where every draw has it, otherwise the estimate of a batch. The last state of a run has
    no such estimate; it is then NaN. Without any energy there is no such column.
    """
    full, batch = recorded(samples, chains, "energy_full"), recorded(samples, chains, "energy_batch")
    energy, weight = full if np.isfinite(full).all() else batch, Draws(chains)
    for chain, record, _ in samples:
        weight.add([chain], [weights.get((chain, record.step), 0.0)])
    stats = {name: recorded(samples, chains, name) for name in ("lr", "temperature")} | {"weight": weight.array()}
    return stats | ({"energy": energy} if np.isfinite(energy).any() else {})


def tree(
    samples: Samples,
    weights: Mapping[Key, float],
    parameters: str | Sequence[str] | None,
    projections: int,
    labelled: LabelledOutputs | None,
    seed: int,
    each: Mapping[str, bool | int],
) -> Any:
    """The DataTree of `Posterior.to_arviz`. each: how many draws of a chain the groups over the items hold."""
    stats = sample_stats(samples.keyed(), samples.chains, weights)
    # Draws at the end whose energy is not known are left out
    known = np.flatnonzero(np.isfinite(stats.get("energy", stats["lr"])).all(0))
    length = int(known[-1]) + 1 if len(known) else stats["lr"].shape[1]
    places = {part: spaced_draws(part, wanted, length) for part, wanted in each.items()}
    values: dict[str, dict[str, Draws]] = defaultdict(lambda: defaultdict(lambda: Draws(samples.chains)))
    seen = [0] * samples.chains  # draws of each chain

    def add(part: str, chains: Sequence[int], name: str, tensor: Tensor, numbers: Sequence[int]) -> None:
        rows = [i for i, number in enumerate(numbers) if number in places.get(part, range(length))]
        values[part][name].add([chains[i] for i in rows], tensor[rows].cpu().numpy())

    names = [name for name, _ in samples.net.named_parameters() if name not in samples.frozen]
    chosen = names if parameters is None else sorted(matching(names, parameters, "parameters"), key=names.index)
    for number, group in enumerate(samples.groups(weights)):
        of_group, numbers = {name: group.tensors[name] for name in chosen}, []
        for chain in group.chains:
            numbers.append(seen[chain])
            seen[chain] += 1
        for name, tensor in (projected(of_group, projections) if parameters is None else of_group).items():
            add("posterior", group.chains, name, tensor, numbers)
        first = 0
        if labelled is None or not any(places.values()):
            continue
        for block, outputs in labelled.blocks(group):
            chains, likelihood, outputs = block.chains, labelled.likelihood.of_rows(), outputs.double()
            of_block, first = numbers[first : first + len(chains)], first + len(chains)
            if places["log_likelihood"]:
                log_p = -torch.stack([likelihood(one, labelled.y) for one in outputs])
                add("log_likelihood", chains, "y", log_p, of_block)
            if places["posterior_predictive"]:
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed(derive_seed("y", seed, number, chains[0], len(chains)))
                    y = likelihood.distribution(outputs).sample()
                add("posterior_predictive", chains, "y", y, of_block)
    if labelled is not None:
        labelled.not_finite.warn()
    tables = {part: {name: draws.array() for name, draws in named.items()} for part, named in values.items()}
    tables["sample_stats"] = {name: column[:, :length] for name, column in stats.items()}
    return as_tree(tables | ({} if labelled is None else {"observed_data": {"y": labelled.y.numpy()}}))


def spaced_draws(part: str, wanted: bool | int, length: int) -> Collection[int]:
    """The numbers of so many draws of a chain of that length, evenly spaced: all for True, none for False."""
    if isinstance(wanted, bool):
        return range(length * wanted)
    check_whole(part, wanted)
    return set(np.linspace(0, length - 1, min(wanted, length)).round().astype(int).tolist())


def as_tree(tables: Mapping[str, Any], **names: Any) -> Any:
    """The DataTree of arrays (chains, draws, ...) by group and name. names: dims and coords of `from_dict`."""
    from arviz_base import from_dict

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Found chain dimension to be longer")  # an ensemble has few draws
        return from_dict(tables, **names)


def projected(tensors: Mapping[str, Tensor], directions: int) -> dict[str, Tensor]:
    """`projection`: (k, directions) projections of all tensors (k, ...) of k networks on random directions.

    A direction has a standard normal entry for every weight, divided by the root of their number, so that a projection
    of independent weights of variance 1 has variance 1.
    """
    total, size = torch.zeros((), dtype=torch.float64), 0
    for name, tensor in tensors.items():
        values = tensor.cpu().double().reshape(len(tensor), -1)  # (k, d)
        random = generator("cpu", "projection", name)
        total = total + values @ torch.randn(values.shape[1], directions, generator=random, dtype=torch.float64)
        size += values.shape[1]
    return {"projection": total / size**0.5}
