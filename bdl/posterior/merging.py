"""Whether the samples of two runs are of one law, so that they can be merged."""

from __future__ import annotations

from bdl.errors import StoreError
from bdl.posterior.described import brief, first_difference
from bdl.posterior.store import SampleStore


def refuse_other_target(a: SampleStore, b: SampleStore) -> None:
    """Raise StoreError if two runs sampled different laws. It names the first key in which their targets differ."""
    difference = first_difference(*(dict(s.target(), temperature=_temperatures(s)) for s in (a, b)))
    if difference is not None:
        key, *values = difference
        in_a, in_b = (brief(value) for value in values)
        raise StoreError(
            f"runs of different targets are not merged: {key} is {in_a} in {a.run_dir}, {in_b} in {b.run_dir}"
        )


def _temperatures(store: SampleStore) -> list[float]:
    """The different temperatures at which a run kept samples, sorted."""
    temperatures = (r.temperature if isinstance(r.temperature, list) else [r.temperature] for r in store.records())
    return sorted({t for of_record in temperatures for t in of_record})
