"""The file with the stacked weights of a run's chains, or of the chains of several runs together."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bdl.disk.files import parse_json
from bdl.disk.manifest import Manifest, digest, manifests_of, read_listed
from bdl.errors import BdlWarning, ConfigError
from bdl.posterior.samples import Samples
from bdl.posterior.stacking import Stacking
from bdl.posterior.store import SampleStore

FILES = "samples/stacking*.json"  # in a run directory: one for the run alone, and one for each set of runs


def write_stacking(samples: Samples, stacking: Stacking | None) -> Path:
    """Write `samples/stacking.json`; None takes the weights back. Returns the path.

    Weights for several runs together get a file of their own, in the first of these runs, whose name follows from all
    of them. Raises StoreError if the disk is full or not writable.
    """
    run, path = samples.stores[0].run_dir, _path(samples.stores)
    content = None if stacking is None else {"chains": samples.names, **stacking.to_plain()}
    Manifest(run).write(path, "stacking", (json.dumps(content, indent=1) + "\n").encode())
    return run / path


def read_stacking(samples: Samples) -> Stacking | None:
    """The weights that were written for these chains; None without them.

    Warns, and returns None, where other chains have weights: one has diverged or was added since. Warns of weights that
    earlier samples gave. Raises ConfigError for a damaged file, StoreError for one that was altered.
    """
    path = _path(samples.stores)
    for store in samples.stores:
        if not (store.run_dir / path).exists() or (data := read_listed(manifests_of(store.run_dir), path)) is None:
            continue
        place, content = store.run_dir / path, None
        try:
            content = parse_json(data)
        except ValueError as error:
            raise ConfigError(f"{place} is damaged ({error}): bdl evaluate weights=stacking makes it again") from error
        if content is None:
            return None
        weight_of = _by_name(content)
        if weight_of.keys() != set(map(tuple, samples.names)):
            _warn(f"{place} has weights of other chains, and is not used: bdl evaluate weights=stacking fits these")
            return None
        weights = [weight_of[tuple(name)] for name in samples.names]
        stacking = Stacking.from_plain({**content, "weights": weights})
        if (last := max(file.record.step for file in samples.files)) != stacking.step:
            _warn(f"the weights of {place} are those of samples up to step {stacking.step:,}, and there are samples up "
                  f"to step {last:,}: bdl evaluate weights=stacking fits them again")  # fmt: skip
        return stacking
    return None


def _path(stores: Sequence[SampleStore]) -> str:
    if len(stores) == 1:
        return "samples/stacking.json"
    first = sorted(store.records()[0].sha256 for store in stores)
    return f"samples/stacking-{digest(' '.join(first).encode())[:8]}.json"


def _by_name(content: Any) -> dict[tuple[int, ...], Any]:
    """The weights of a file by the names of their chains, which it loses; {} where it has none."""
    try:
        return {tuple(name): weight for name, weight in zip(content.pop("chains"), content["weights"], strict=True)}
    except (AttributeError, KeyError, TypeError, ValueError):
        return {}


def _warn(line: str) -> None:
    warnings.warn(line, BdlWarning, stacklevel=3)
