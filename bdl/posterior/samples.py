"""Samples: the networks of one or several runs of one target, read from disk a group at a time."""

from __future__ import annotations

import copy
import itertools
import json
import warnings
from collections import defaultdict
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bdl.engine.forward import Forward
from bdl.engine.functional import named_tensors
from bdl.errors import BdlWarning, StoreError
from bdl.posterior.index import temperatures_of
from bdl.posterior.store import Record, SampleStore
from bdl.posterior.weights import Keyed, Weights
from bdl.snapshot import NETWORK
from bdl.torch_private import versions

GROUP_BYTES = 2**22  # bytes of sample files that are in memory together, unless one file alone is larger

Key = tuple[int, int]  # (chain among all runs, step)


@dataclass(frozen=True)
class SampleFile:
    """A file of a store, and which of its chains count. A chain that diverged while others went on does not count."""

    store: SampleStore
    record: Record  # the record of these chains
    rows: list[int] | None  # their places in the file; None where all of it counts
    chains: list[int]  # their numbers among all chains of all runs


@dataclass(frozen=True)
class Sample:
    """One network of the posterior."""

    chain: int  # index among all chains of all runs
    record: Record
    weight: float
    tensors: dict[str, Tensor]  # parameters and buffers by name


@dataclass(frozen=True)
class Group:
    """Networks that are in memory together, in the order of their steps."""

    chains: list[int]  # (k,) index among all chains of all runs
    records: list[Record]  # (k,)
    tensors: dict[str, Tensor]  # (k, ...) parameters and buffers by name, with device and dtype of the network's

    def __len__(self) -> int:
        return len(self.chains)

    @property
    def keys(self) -> list[Key]:
        """(chain, step) of every network."""
        return [(chain, record.step) for chain, record in zip(self.chains, self.records, strict=True)]

    def blocks(self, size: int) -> Iterator[Group]:
        """The networks in their order, up to `size` at a time; views, no copies."""
        for i in range(0, len(self), size):
            part = slice(i, i + size)
            tensors = {name: values[part] for name, values in self.tensors.items()}
            yield Group(self.chains[part], self.records[part], tensors)


class Samples:
    """The networks of several stores of one target. Each pass reads every file once, and holds one group of them.

    skip_bad: leave out files that are missing, cut short or altered, each with a warning; `files` then shrinks at the
    end of the pass.
    """

    def __init__(self, stores: Sequence[SampleStore], net: nn.Module, skip_bad: bool = False):
        self.stores, self.net, self.skip_bad = list(stores), net, skip_bad
        self.diverged: list[tuple[int, int | None]] = []  # (number of a chain in its run, step) that does not count
        counting = [(number, *each) for number, store in enumerate(stores) for each in self._counting(store)]
        if not counting:
            raise StoreError(f"no sample in {', '.join(str(s.folder) for s in stores)} is of a chain that counts")
        present = {(number, record.stack, c) for number, record, _ in counting for c in record.chains}
        first = [store.records()[0].sha256 for store in stores]
        order = sorted(range(len(stores)), key=first.__getitem__)  # of the runs, however they are named
        chain_of = {key: i for i, key in enumerate(sorted(present))}
        self.chains = len(chain_of)  # chains of all runs
        self.names = [[order.index(number), stack, c] for number, stack, c in chain_of]  # that files know chains by
        self.files = [
            SampleFile(stores[number], record, rows, [chain_of[number, record.stack, c] for c in record.chains])
            for number, record, rows in sorted(counting, key=lambda each: each[1].step)
        ]
        self._frozen = self.stores[0].frozen(named_tensors(net))
        self._versions = versions(self._frozen.values())
        self.cached: list[Group] | None = None
        self.weights_by_kind: dict[tuple[str, int], Weights] = {}  # and number of files, which bad files lower

    @property
    def device(self) -> torch.device:
        """The device of the network, on which it runs."""
        return next((p.device for p in self.net.parameters()), torch.device("cpu"))

    @property
    def frozen(self) -> dict[str, Tensor]:
        """The tensors that all networks share, by name, {} where all are sampled; to read only.

        Tensors that the network has too lie in its memory, so that a large body is there once. If somebody has written
        to the network since, they are read again from disk.
        """
        if versions(self._frozen.values()) != self._versions:
            self._frozen = self.stores[0].frozen()
            self._versions = versions(self._frozen.values())
        return self._frozen

    def part(self, networks: Collection[Key]) -> Samples:
        """These networks alone, each of them a chain by itself: they are too few to be compared along their chains."""
        part, counter, files = copy.copy(self), itertools.count(), []
        for file in self.files:
            chosen = [i for i, chain in enumerate(file.chains) if (chain, file.record.step) in networks]
            if chosen:
                rows = chosen if file.rows is None else [file.rows[i] for i in chosen]
                of_rows = replace(file.record.of_rows(chosen), log_weight=None, psi_frozen=False)
                files.append(SampleFile(file.store, of_rows, rows, [next(counter) for _ in chosen]))
        part.files, part.chains, part.diverged = files, next(counter), []
        part.cached, part.weights_by_kind = None, {}
        return part

    def forward(self) -> Forward:
        """What maps the tensors of these networks and inputs to outputs."""
        like = named_tensors(self.net)
        return Forward(self.net, shared={name: value.to(like[name]) for name, value in self.frozen.items()})

    def keyed(self) -> list[Keyed]:
        """Every sample as (chain among all runs, record, chain within the record)."""
        return [(chain, file.record, c) for file in self.files for c, chain in enumerate(file.chains)]

    def stream(self, weights: Weights) -> Iterator[Sample]:
        """The networks one by one; files whose networks have no weight are not read."""
        for group in self.groups(weights.used):
            for i, (key, record) in enumerate(zip(group.keys, group.records, strict=True)):
                tensors = {name: values[i] for name, values in group.tensors.items()}
                yield Sample(key[0], record, weights.by_key.get(key, 0.0), tensors)

    def stacks(self) -> dict[tuple[SampleStore, int], set[int]]:
        """The chains of every stack of every store."""
        chains: dict[tuple[SampleStore, int], set[int]] = defaultdict(set)
        for file in self.files:
            chains[file.store, file.record.stack].update(file.chains)
        return chains

    def psi_of(self) -> list[int]:
        """(chains,) the number of each chain's psi: the first chain that has it, or the chain itself."""
        numbers = list(range(self.chains))
        for (store, stack), chains in self.stacks().items():
            if (saved := store.weighting(stack)) and len(saved[0]["log_psi"]) == 1:
                for chain in chains:
                    numbers[chain] = min(chains)
        return numbers

    def cache(self) -> None:
        """Read all files now, and keep their tensors."""
        self.cached = list(self._groups(self.files))

    def groups(self, used: Container[Key]) -> Iterator[Group]:
        """The networks of the files that `used` needs, group by group. Raises StoreError for a file that is bad."""
        if self.cached is None:
            groups = self._groups([f for f in self.files if any((c, f.record.step) in used for c in f.chains)])
        else:
            groups = (group for group in self.cached if any(key in used for key in group.keys))
        like = named_tensors(self.net)
        for group in groups:
            yield Group(group.chains, group.records, {k: v.to(like[k]) for k, v in group.tensors.items()})

    def _groups(self, files: list[SampleFile]) -> Iterator[Group]:
        shapes = {name: tensor.shape for name, tensor in named_tensors(self.net).items() if name not in self.frozen}
        empty = True
        for together in _by_size(files):
            group = self._group(together, shapes)  # a call of its own, so that no tensor of a file outlives it
            if group is not None:
                empty = False
                yield group
        if empty:
            raise StoreError(f"no usable sample in {', '.join(str(s.folder) for s in self.stores)}")

    def _group(self, files: list[SampleFile], shapes: dict[str, torch.Size]) -> Group | None:
        """The networks of the files that can be used; None if no file can."""
        read = [(file, tensors) for file in files if (tensors := self._read(file, shapes)) is not None]
        if not read:
            return None
        chains = [chain for file, _ in read for chain in file.chains]
        records = [file.record for file, _ in read for _ in file.chains]
        each = [tensors for _, tensors in read]
        joined = each[0] if len(each) == 1 else {name: torch.cat([t[name] for t in each]) for name in each[0]}
        return Group(chains, records, {name: values.to(self.device) for name, values in joined.items()})

    def _read(self, file: SampleFile, shapes: dict[str, torch.Size]) -> dict[str, Tensor] | None:
        """The tensors of the chains that count; None if the file is left out."""
        try:
            tensors = file.store.read(file.record)
        except StoreError as error:
            if not self.skip_bad:
                raise
            warnings.warn(f"left out: {error}", BdlWarning, stacklevel=2)
            self.files = [other for other in self.files if other is not file]
            return None
        if file.rows is not None:
            tensors = {name: values[file.rows] for name, values in tensors.items()}
        wrong = [k for k in shapes.keys() | tensors.keys() if k not in tensors or tensors[k].shape[1:] != shapes.get(k)]
        if wrong:
            path = file.store.folder / file.record.file
            raise StoreError(
                f"{path} holds samples of another network: {min(wrong)} does not fit; pass the net of the run"
            )
        return tensors

    def _counting(self, store: SampleStore) -> Iterator[tuple[Record, list[int] | None]]:
        """The records of a store and their rows, without the chains that diverged while the others went on."""
        records = store.records()
        last = {record.stack: set(record.chains) for record in records}  # who diverged is in no later record
        for stack in last:
            of_stack = [record for record in records if record.stack == stack]
            recorded = {chain for record in of_stack for chain in record.chains}
            steps = {**dict.fromkeys(recorded - last[stack]), **store.excluded(stack)}
            self.diverged += [(chain, steps[chain]) for chain in sorted(steps)]
            for record in of_stack:
                rows = [row for row, chain in enumerate(record.chains) if chain not in steps]
                if len(rows) == len(record.chains):
                    yield record, None
                elif rows:
                    yield record.of_rows(rows), rows


def _by_size(files: list[SampleFile]) -> Iterator[list[SampleFile]]:
    """The files in their order, as many at a time as have at most GROUP_BYTES bytes together, and at least one."""
    waiting, size = [], 0
    for file in files:
        size += file.record.bytes
        if waiting and size > GROUP_BYTES:
            yield waiting
            waiting, size = [], file.record.bytes
        waiting.append(file)
    yield waiting


def stores_of(run_dirs: str | Path | Sequence[str | Path], skip_bad: bool = False) -> list[SampleStore]:
    """The stores of runs of one law. Raises StoreError without samples, for a run given twice, and other targets."""
    dirs = [run_dirs] if isinstance(run_dirs, str | Path) else list(run_dirs)
    if not dirs:
        raise StoreError("no run is named: give the folder of one, or a list of several")
    stores = [SampleStore(d, skip_bad) for d in dirs]
    first = [s.records()[0].sha256 for s in stores]
    if len(set(first)) < len(first):
        raise StoreError(f"the same run is given twice among {', '.join(str(d) for d in dirs)}: name each run once")
    for store in stores[1:]:
        refuse_other_target(stores[0], store)
    for store in stores:
        store.warn_of_unlisted()
    return stores


def refuse_other_target(a: SampleStore, b: SampleStore) -> None:
    """Raise StoreError if two runs sampled different laws. It names the first key in which their targets differ."""
    targets = ({key: value for key, value in s.target().items() if key != NETWORK} for s in (a, b))
    of_both = zip(targets, (a, b), strict=True)
    if difference := first_difference(*(dict(t, temperature=temperatures_of(s.records())) for t, s in of_both)):
        key, in_a, in_b = difference
        raise StoreError(
            f"runs of different targets are not merged: {key} is {brief(in_a)} in {a.run_dir}, {brief(in_b)} in "
            f"{b.run_dir}"
        )


def first_difference(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    """(path, value of a, value of b) of the first key that differs, such as `prior.precision`.

    A missing key equals null. `type` is compared first: with another type most of the other keys differ as well.
    """
    for key in sorted(a.keys() | b.keys(), key=lambda k: (k != "type", k)):
        in_a, in_b = a.get(key), b.get(key)
        if isinstance(in_a, dict) and isinstance(in_b, dict):
            if inner := first_difference(in_a, in_b):
                return f"{key}.{inner[0]}", inner[1], inner[2]
        elif in_a != in_b:
            return key, in_a, in_b
    return None


def brief(value: Any) -> str:
    """A value of target.json in at most 60 characters, for a message; "absent" for None."""
    text = "absent" if value is None else json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
