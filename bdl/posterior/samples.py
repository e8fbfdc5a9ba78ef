"""Samples: the networks of one or several runs, read from disk a group at a time."""

from __future__ import annotations

import warnings
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bdl.engine.forward import Forward
from bdl.errors import BdlWarning, StoreError
from bdl.posterior.frozen import read_frozen
from bdl.posterior.store import Record, SampleStore
from bdl.posterior.weights import Keyed

GROUP = 2**22  # bytes of sample files that are in memory together, unless one file alone is larger

Key = tuple[int, int]  # (chain among all runs, step)
File = tuple[SampleStore, Record]


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
    """The networks of several stores. Each pass reads every file once, and holds one group of them.

    Args:
        stores: of the same target, in the order in which their chains are counted.
        net: the network that was sampled.
        skip_bad: leave out files that are missing, cut short or altered, each with a warning. `files` then shrinks at
            the end of the pass.
    """

    def __init__(self, stores: Sequence[SampleStore], net: nn.Module, skip_bad: bool = False):
        self.stores, self.net, self.skip_bad = list(stores), net, skip_bad
        self.diverged: list[tuple[int, int | None]] = []  # (number of a chain in its run, step) that does not count
        self._rows: dict[tuple[SampleStore, str], list[int]] = {}  # of the files in which only some chains count
        self.files: list[File] = [(s, r) for s in self.stores for r in self._counting(s)]
        self.files.sort(key=lambda file: file[1].step)
        if not self.files:
            raise StoreError(f"no sample in {', '.join(str(s.folder) for s in self.stores)} is of a chain that counts")
        chains = sorted({(self.stores.index(s), r.stack, c) for s, r in self.files for c in r.chains})
        self._chain_of = {key: i for i, key in enumerate(chains)}
        target = self.stores[0].target()
        self.frozen = read_frozen(self.stores[0].folder, target)  # tensors that all networks share, on the CPU
        self._cache: list[Group] | None = None

    @property
    def device(self) -> torch.device:
        """The device of the network, on which it runs."""
        return next((p.device for p in self.net.parameters()), torch.device("cpu"))

    def forward(self) -> Forward:
        """What maps the tensors of these networks and inputs to outputs."""
        like = self._tensors()
        return Forward(self.net, shared={name: value.to(like[name]) for name, value in self.frozen.items()})

    def parameters(self) -> list[str]:
        """Names of the parameters that were sampled."""
        return [name for name, _ in self.net.named_parameters() if name not in self.frozen]

    @property
    def chains(self) -> int:
        """Number of chains in all runs."""
        return len(self._chain_of)

    def keyed(self) -> list[Keyed]:
        """Every sample as (chain among all runs, record, chain within the record)."""
        return [(chain, r, c) for s, r in self.files for c, chain in enumerate(self._chains(s, r))]

    def psi_of(self) -> list[int]:
        """(chains,) the number of each chain's psi: the first chain that has it, or the chain itself."""
        numbers = list(range(self.chains))
        stacks = {(number, stack) for number, stack, _ in self._chain_of}
        shared = {of for of in stacks if (psi := self.stores[of[0]].weighting(of[1])) and len(psi["log_psi"]) == 1}
        first = {(number, stack): chain for (number, stack, _), chain in reversed(self._chain_of.items())}
        for (number, stack, _), chain in self._chain_of.items():
            if (number, stack) in shared:
                numbers[chain] = first[number, stack]
        return numbers

    def cache(self) -> None:
        """Read all files now, and keep their tensors."""
        self._cache = list(self._groups(self.files))

    def groups(self, used: Container[Key]) -> Iterator[Group]:
        """All networks, group by group; files none of whose networks is in `used` are not read.

        Raises StoreError for a bad file unless skip_bad, for samples of another network, and if no file is usable.
        """
        if self._cache is None:
            groups = self._groups([f for f in self.files if any((c, f[1].step) in used for c in self._chains(*f))])
        else:
            groups = (group for group in self._cache if any(key in used for key in group.keys))
        like = self._tensors()
        for group in groups:
            yield Group(group.chains, group.records, {k: v.to(like[k]) for k, v in group.tensors.items()})

    def _groups(self, files: list[File]) -> Iterator[Group]:
        device, read, bad = self.device, 0, []
        shapes = {name: tensor.shape for name, tensor in self._tensors().items() if name not in self.frozen}
        for together in _by_size(files):
            group = self._group(together, shapes, device, bad)
            if group is not None:
                read += len(group)
                yield group
        self.files = [(s, r) for s, r in self.files if r not in bad]
        if read == 0:
            raise StoreError(f"no usable sample in {', '.join(str(s.folder) for s in self.stores)}")

    def _group(
        self, files: list[File], shapes: dict[str, torch.Size], device: torch.device, bad: list[Record]
    ) -> Group | None:
        """The networks of the files that can be used, None if there are none; the others are added to `bad`."""
        read = [(file, stacked) for file in files if (stacked := self._read(file, shapes, bad)) is not None]
        if not read:
            return None
        chains = [chain for file, _ in read for chain in self._chains(*file)]
        records = [record for (_, record), _ in read for _ in record.chains]
        each = [stacked for _, stacked in read]
        joined = each[0] if len(each) == 1 else {name: torch.cat([t[name] for t in each]) for name in each[0]}
        return Group(chains, records, {name: values.to(device) for name, values in joined.items()})

    def _read(self, file: File, shapes: dict[str, torch.Size], bad: list[Record]) -> dict[str, Tensor] | None:
        """The tensors of one file; None, and one more record in `bad`, if it is left out."""
        store, record = file
        try:
            stacked = store.read(record)
        except StoreError as error:
            if not self.skip_bad:
                raise
            warnings.warn(f"left out: {error}", BdlWarning, stacklevel=2)
            bad.append(record)
            return None
        if (rows := self._rows.get((store, record.file))) is not None:
            stacked = {name: values[rows] for name, values in stacked.items()}
        wrong = [k for k in shapes.keys() | stacked.keys() if k not in stacked or stacked[k].shape[1:] != shapes.get(k)]
        if wrong:
            raise StoreError(
                f"{store.folder / record.file} holds samples of another network: {min(wrong)} does not fit; "
                "pass the net of the run"
            )
        return stacked

    def _tensors(self) -> dict[str, Tensor]:
        return {**dict(self.net.named_parameters()), **dict(self.net.named_buffers())}

    def _chains(self, store: SampleStore, record: Record) -> list[int]:
        return [self._chain_of[self.stores.index(store), record.stack, c] for c in record.chains]

    def _counting(self, store: SampleStore) -> list[Record]:
        """The records of a store without the chains that diverged while the others went on."""
        records, counting = store.records(), []
        last = {record.stack: set(record.chains) for record in records}  # who diverged is in no later record
        for stack in last:
            of_stack = [record for record in records if record.stack == stack]
            recorded = {chain for record in of_stack for chain in record.chains}
            steps = {**dict.fromkeys(recorded - last[stack]), **store.excluded(stack)}
            self.diverged += [(chain, steps[chain]) for chain in sorted(steps)]
            for record in of_stack:
                rows = record.counting(steps)
                if len(rows) < len(record.chains):
                    self._rows[store, record.file] = rows
                    record = record.of_rows(rows)
                counting += [record] if rows else []
        return counting


def _by_size(files: list[File]) -> Iterator[list[File]]:
    """The files in their order, as many at a time as have at most GROUP bytes together, and at least one."""
    waiting: list[File] = []
    size = 0
    for file in files:
        if waiting and size + file[1].bytes > GROUP:
            yield waiting
            waiting, size = [], 0
        waiting.append(file)
        size += file[1].bytes
    if waiting:
        yield waiting
