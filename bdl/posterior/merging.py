"""Whether the samples of two runs are of one law, so that they can be merged."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bdl.errors import StoreError
from bdl.posterior.store import SampleStore


def stores_of(run_dirs: str | Path | Sequence[str | Path], skip_bad: bool = False) -> list[SampleStore]:
    """The stores of run directories, whose samples are of one law.

    Raises StoreError without samples, if a run is given twice, or for runs of different targets.
    """
    dirs = [run_dirs] if isinstance(run_dirs, str | Path) else list(run_dirs)
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
    difference = first_difference(*(dict(s.target(), temperature=_temperatures(s)) for s in (a, b)))
    if difference is not None:
        key, *values = difference
        in_a, in_b = (brief(value) for value in values)
        raise StoreError(
            f"runs of different targets are not merged: {key} is {in_a} in {a.run_dir}, {in_b} in {b.run_dir}"
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


def _temperatures(store: SampleStore) -> list[float]:
    """The different temperatures at which a run kept samples, sorted."""
    temperatures = (r.temperature if isinstance(r.temperature, list) else [r.temperature] for r in store.records())
    return sorted({t for of_record in temperatures for t in of_record})
