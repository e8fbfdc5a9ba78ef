"""The tiny run on which faults are tried, and what has to be the same after them."""

import json
import re
from pathlib import Path
from typing import Any

import arviz_stats  # noqa: F401  imported before the forks, because it is slow to import
from injection import Ended, command, in_child

import bdl.posterior.report.page
import bdl.run.evaluate
import bdl.run.train
import bdl.run.verify  # noqa: F401
from bdl.disk.manifest import Manifest
from bdl.run.stored import altered

# The gradients in torch: no compiler, and no cache in somebody's home.
TINY = (
    "logger=none", "chains=2", "train_items=200", "length=30", "model.sizes=[36,6]", "collect.keep.every=3",
    "collect.keep.burn_in=6", "checkpoint_every=8", "monitor_every=4", "compile=false",
)  # fmt: skip
NOTES = re.compile(r"job\.json|progress-\d+\.json")  # for `bdl status`
LAUNCHER = "`srun` command"  # Lightning's hint on the login node of a cluster


def training(folder: Path, *overrides: str):
    return command("train", f"hydra.run.dir={folder}", *TINY, *overrides)


def messages(ended: Ended) -> list[str]:
    return [line for line in ended.err if LAUNCHER not in line]


def files(folder: Path) -> dict[str, bytes]:
    """All files of an ended run that do not depend on the clock. Every one of them is as its manifest says.

    The manifest of a stack is the same to the byte. That of the whole run lists seconds too.
    """
    assert not any(path.name.startswith((".writing-", "owner")) for path in folder.rglob("*"))
    assert altered(folder) == {}
    names = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    found = {name: path.read_bytes() for name, path in names.items() if not name.endswith(("timing.json", ".ckpt"))}
    found |= {name: steady(json.loads(data)) for name, data in found.items() if NOTES.fullmatch(name)}
    last = {entry.path: entry.sha256 for entry in Manifest(folder).entries()}
    return found | {"manifest.jsonl": repr(sorted(last.keys() - {"timing.json"})).encode()}


def steady(note: dict[str, Any]) -> bytes:
    """A note but for seconds, and why an earlier process ended."""
    return repr([note.get(key) for key in ("overrides", "step", "steps")]).encode()


def goes_on(folder: Path, *overrides: str) -> dict[str, bytes]:
    """The files after the same command was given again, which must end well."""
    ended = in_child(training(folder, *overrides))
    assert ended.status == 0 and messages(ended) == [], ended
    return files(folder)


def refused(ended: Ended) -> str:
    lines = messages(ended)
    assert ended.status == 1 and len(lines) == 1 and lines[0].startswith("bdl: "), ended
    return lines[0]
