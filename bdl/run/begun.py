"""Whether a folder holds what a call of `bdl.sample` has begun."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import bdl
from bdl.disk.files import read_file, write_atomically
from bdl.errors import BdlWarning, ConfigError
from bdl.posterior.samples import brief, first_difference

CODE = "code of the loss"
REMEDY = "give another run_dir, or remove the folder"


def entry_of_code(code: str | None) -> dict[str, Any]:
    """The entry of a record for the checksum of a loss's byte code, which is another one under another Python."""
    return {} if code is None else {CODE: {"python": sys.implementation.cache_tag, "checksum": code}}


def begun_by(record: Mapping[str, Any], run_dir: Path, checkpoint: Path) -> tuple[bool, Mapping[str, Any]]:
    """Whether this call has begun in the folder before, and its record.

    `checkpoints/call.json` then says so for the next time. A run that was killed before its first checkpoint starts
    again, and replaces the samples that it has left. Where another Python compiled the loss, byte code tells nothing:
    warns, and gives the record with the code that the folder has.

    record: the settings of the run, as plain values. Raises ConfigError for a folder that holds another run.
    """
    path, call = checkpoint.with_name("call.json"), json.dumps(record, sort_keys=True)
    if not (checkpoint.exists() or bdl.SampleStore(run_dir).has_files(0)):  # a refused call leaves no more than its own
        write_atomically(path, call.encode(), make_folder=True)
        return False, record
    if not path.exists():
        if checkpoint.exists():
            return False, record
        raise ConfigError(f"{run_dir} holds samples that bdl.sample did not make: {REMEDY}")
    before = _recorded(path)
    here, there = record.get(CODE), before.get(CODE)
    pythons = [each.get("python") if isinstance(each, dict) else None for each in (there, here)]
    other_python = None not in pythons and pythons[0] != pythons[1]
    compared = {**json.loads(call), CODE: there} if other_python else json.loads(call)
    if difference := first_difference(before, compared):
        key, was, now = difference
        raise ConfigError(
            f"{run_dir} holds another run: {key} was {brief(was)} there, and is {brief(now)} now; {REMEDY}, or repeat "
            "the call as it was"
        )
    if other_python:
        what = f"{pythons[0]} compiled the loss of {run_dir}, and {pythons[1]} that of this call"
        line = f"{what}: the two have one name, and whether they are one function cannot be compared"
        warnings.warn(line, BdlWarning, stacklevel=3)
    return True, compared


def _recorded(path: Path) -> dict[str, Any]:
    """The record that the folder has. Raises ConfigError for a damaged file."""
    try:
        return json.loads(read_file(path))
    except ValueError as error:
        raise ConfigError(f"{path} is damaged ({error}): {REMEDY}") from error


def interruption(run_dir: str | Path, checkpoint: Path, sampled: bool) -> str:
    """What a KeyboardInterrupt leaves behind, and how to go on. sampled: whether all steps were made."""
    if sampled:
        return f"all samples are kept in {run_dir}: the same call, or bdl.report, makes the report"
    return f"the same call resumes from {checkpoint}" if checkpoint.exists() else "no state was saved yet"
