"""Whether a folder holds what a call of `bdl.sample` has begun."""

from __future__ import annotations

import json
from pathlib import Path

import bdl
from bdl.disk.files import read_file, write_atomically
from bdl.errors import ConfigError
from bdl.posterior.samples import brief, first_difference


def begun_by(call: str, run_dir: Path, checkpoint: Path) -> bool:
    """Whether this call has begun in the folder before; `checkpoints/call.json` then says so for the next time.

    A run that was killed before its first checkpoint starts again, and replaces the samples that it has left.

    call: the settings of the run, as JSON. Raises ConfigError for a folder that holds another run.
    """
    path = checkpoint.with_name("call.json")
    remedy = "give another run_dir, or remove the folder"
    if not (checkpoint.exists() or bdl.SampleStore(run_dir).has_files(0)):  # a refused call leaves no more than its own
        write_atomically(path, call.encode(), make_folder=True)
        return False
    if not path.exists():
        if checkpoint.exists():
            return False
        raise ConfigError(f"{run_dir} holds samples that bdl.sample did not make: {remedy}")
    try:
        before = json.loads(read_file(path))
    except ValueError as error:
        raise ConfigError(f"{path} is damaged ({error}): {remedy}") from error
    if difference := first_difference(before, json.loads(call)):
        key, was, now = difference
        raise ConfigError(
            f"{run_dir} holds another run: {key} was {brief(was)} there, and is {brief(now)} now; {remedy}, or repeat "
            "the call as it was"
        )
    return True
