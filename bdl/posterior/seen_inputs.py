"""What a run records of its training inputs, and inputs of a prediction that are far from all of them."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from bdl.batch import Inputs
from bdl.disk.files import parse_json
from bdl.disk.manifest import Manifest, manifests_of, read_listed
from bdl.display import count_of, figures
from bdl.errors import BdlWarning, StoreError
from bdl.posterior.store import SampleStore

FAR = 10.0  # standard deviations from the mean, below which no input is called far, as of the columns of tables
FAR_OF_PART = 100.0  # where only a part of the training items was seen, which tells little of their tails
FEATURES = 1000  # that have a mean each; of more, and of images, all numbers are taken together
NUMBERS = 2**22  # of an input, of which the record is made
FEWEST = 10  # numbers that tell a scale
ROUNDING = 1e-5  # share of a number by which it may differ from a constant

Record = Mapping[str, Mapping[str, Any]]  # by the name of the input, or its place


def recorded_inputs(inputs: Inputs, whole: bool) -> dict[str, Any]:
    """The mean, the standard deviation and the reach of each floating point input, as JSON values.

    They are those of each feature of an input (n, features), else of all its numbers together. The reach is the largest
    distance from the mean.

    inputs: of n items. whole: whether these are all training items.
    """
    return {name: plain for name, x in _named(inputs).items() if (plain := _summary(x, whole)) is not None}


def _named(inputs: Inputs) -> dict[str, Any]:
    if isinstance(inputs, Mapping):
        return dict(inputs)
    return {str(i): x for i, x in enumerate(inputs if isinstance(inputs, tuple | list) else (inputs,))}


def _summary(x: Any, whole: bool) -> dict[str, Any] | None:
    """None for tokens, for too few numbers, and where some are not finite."""
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.layout != torch.strided or not x.ndim:
        return None
    apart = x.ndim == 2 and x.shape[1] <= FEATURES
    values = x.detach().cpu().double().reshape(-1, x.shape[1] if apart else 1)
    if len(values) < FEWEST or not bool(values.isfinite().all()):
        return None
    mean = values.mean(0)
    summary = {"mean": mean, "std": values.std(0, correction=0), "reach": (values - mean).abs().amax(0)}
    return {"items": len(x), "whole": whole, "features": apart} | {key: v.tolist() for key, v in summary.items()}


def write_inputs(manifest: Manifest, record: Record) -> None:
    """Write `samples/inputs-<stack>.json`: a small file of its own, because stacks see other batches first."""
    manifest.write(f"samples/inputs-{manifest.stack}.json", "inputs", json.dumps(record).encode())


def read_inputs(store: SampleStore) -> Record:
    """What the first stack with a record has written; {} for runs without one. Raises StoreError for a damaged file."""
    for manifest in manifests_of(store.run_dir):
        path = f"samples/inputs-{manifest.stack}.json"
        if manifest.stack is not None and (data := read_listed([manifest], path)) is not None:
            try:
                record = parse_json(data)
                for about in record.values():
                    _Far(about)
                return record
            except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
                raise StoreError(f"{store.run_dir / path} is damaged ({error}): restore it") from error
    return {}


def tell_far(stores: Sequence[SampleStore], batches: Iterable[tuple[Inputs, Any]]) -> None:
    """Warn of inputs that are far from all training items, as those in another unit are: one BdlWarning by input.

    Of n numbers none is farther from their mean than std sqrt(n - 1). Where all items were seen, a number is far beyond
    that, and beyond FAR times the standard deviation and the reach: a rare pixel has a small one.
    """
    known = [record for record in map(read_inputs, stores) if record]
    if len(known) < len(stores):  # a run that is older may have seen them
        return
    found: dict[str, _Far] = {}
    for inputs, _ in batches:
        named = _named(inputs)
        for name, x in named.items():
            records = [record[name] for record in known if name in record]
            if records and isinstance(x, Tensor) and not x.is_complex():
                found.setdefault(name, _Far(records[0])).see(x)
    for name, far in found.items():
        if far.items:
            which = f"input {name}" if len(found) > 1 else "inputs"
            line = f"Posterior.predict: {which}: {far.in_words()}"
            warnings.warn(line, BdlWarning, stacklevel=4)  # at the caller of predict, which torch.no_grad wraps


class _Far:
    """Counts the items of an input that are far from all training items."""

    def __init__(self, record: Mapping[str, Any]):
        self.record = record
        self.mean, std, reach = (torch.tensor(record[key], dtype=torch.float64) for key in ("mean", "std", "reach"))
        size = float((self.mean.square() + std.square()).mean().sqrt())
        rounding = ROUNDING * self.mean.abs().clamp(min=min(1.0, size))
        bound = max(FAR, math.sqrt(record["items"] - 1)) if record["whole"] else FAR_OF_PART
        limit = torch.maximum(bound * std, FAR * reach)
        constant = reach <= rounding  # as a pixel at the edge is in all training images, and in others hardly ever
        of_constant = torch.tensor(FAR * max(size, ROUNDING) if record["whole"] else math.inf, dtype=torch.float64)
        self.limit = limit.where(~constant, of_constant).float()
        self.std, self.mean = std, self.mean.float()
        self.all = self.items = 0
        self.first: tuple[int, int, float] | None = None  # item, feature, number

    def see(self, x: Tensor) -> None:
        other = self.record["features"] and (x.ndim != 2 or x.shape[1] != len(self.mean))
        if other or not x.ndim or not x.numel():
            return  # the network says what is wrong
        rows = x.detach().float().reshape(len(x), -1)
        far = (rows - self.mean.to(x.device)).abs() > self.limit.to(x.device)
        of_items = far.any(1)
        count = int(of_items.sum())  # the one wait for a device, unless items are far
        if count and self.first is None:
            item = int(of_items.int().argmax())
            feature = int(far[item].int().argmax())
            self.first = self.all + item, feature, float(rows[item, feature])
        self.all, self.items = self.all + len(x), self.items + count

    def in_words(self) -> str:
        assert self.first is not None
        item, feature, number = self.first
        of = feature if self.record["features"] else 0
        where = f"feature {feature} of item {item}" if self.record["features"] else f"item {item}"
        seen = f"{figures(float(self.mean[of]))} ± {figures(float(self.std[of]), 2)}"
        return (
            f"{self.items:,} of {count_of(self.all, 'item')} ({100 * self.items / self.all:.3g} %) are far from all "
            f"training items, {number:g} in {where} first, and {seen} in training: predictions of these items say "
            "nothing; correct them, or scale them as in training"
        )
