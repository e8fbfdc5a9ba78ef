"""Damaged run directories, and what commands make of them: the right result, a warning, or one line of bdl's own."""

import contextlib
import io
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from composing import compose
from hydra.core.hydra_config import HydraConfig
from hypothesis import strategies as st
from omegaconf import DictConfig

from bdl.errors import BdlError, BdlWarning
from bdl.posterior.store import SampleStore
from bdl.run import evaluate, train
from bdl.run.build import build_stack
from bdl.run.config import config_hash, register_resolvers
from bdl.run.directory import RunDirectory
from bdl.run.plan import RunRequest
from bdl.run.records import read_metrics
from bdl.run.verify import look

register_resolvers()
CONF = Path(__file__).parents[2] / "conf"


@dataclass(frozen=True)
class Damage:
    """One change to one file, or to two."""

    how: str
    file: str
    other: str  # of a swap
    place: float  # in [0, 1): where in the file
    bits: int  # 1 to 255: what is added to a byte, bit by bit

    def apply(self, run: Path) -> None:
        path = run / self.file
        if self.how == "deleted":
            path.unlink()
        elif self.how == "swapped":
            other = run / self.other
            mine, theirs = path.read_bytes(), other.read_bytes()
            path.write_bytes(theirs)
            other.write_bytes(mine)
        else:
            path.write_bytes(CHANGES[self.how](path.read_bytes(), self.place, self.bits))


def flipped(data: bytes, place: float, bits: int) -> bytes:
    i = int(place * len(data))
    return data[:i] + bytes([data[i] ^ bits]) + data[i + 1 :] if data else b"?"


def another_digit(data: bytes, place: float, bits: int) -> bytes:
    """A number that can be read, and is wrong."""
    digits = [i for i, byte in enumerate(data) if chr(byte).isdecimal()]
    if not digits:
        return data[:-1]
    i = digits[int(place * len(digits))]
    return data[:i] + str((int(chr(data[i])) + 1 + bits % 9) % 10).encode() + data[i + 1 :]


def without_a_line(data: bytes, place: float, bits: int) -> bytes:
    lines = data.splitlines(keepends=True)
    del lines[int(place * len(lines)) : int(place * len(lines)) + 1]
    return b"".join(lines)


def with_noise(data: bytes, place: float, bits: int) -> bytes:
    i = int(place * len(data))
    return data[:i] + bytes([bits]) * 3 + data[i:]


CHANGES: dict[str, Callable[[bytes, float, int], bytes]] = {
    "flipped": flipped,
    "another digit": another_digit,
    "without a line": without_a_line,
    "with noise": with_noise,
    "cut": lambda data, place, bits: data[: int(place * len(data))],
    "emptied": lambda data, place, bits: b"",
    "doubled": lambda data, place, bits: data * 2,
}


DAMAGES = (*CHANGES, "deleted", "swapped")


def damages(run: Path) -> st.SearchStrategy[Damage]:
    """Of the files of a run; every kind of file is as likely as any other."""
    kinds: dict[str, list[str]] = {}
    for path in sorted(run.rglob("*")):
        if path.is_file():
            name = str(path.relative_to(run))
            kinds.setdefault(path.suffix if path.name[0].isdecimal() else name, []).append(name)
    names = [name for kind in kinds.values() for name in kind]
    file = st.sampled_from(sorted(kinds)).flatmap(lambda kind: st.sampled_from(kinds[kind]))
    return st.builds(
        Damage, st.sampled_from(DAMAGES), file, st.sampled_from(names),
        st.floats(0, 1, exclude_max=True), st.integers(1, 255),
    )  # fmt: skip


def evaluated(run: Path) -> Any:
    """The metrics of `evaluate.py`, whose page is left out."""
    made: list[dict[str, float]] = []
    cfg = compose(f"runs=[{run}]", "train_items=50", f"out={run.parent / 'out'}", command="evaluate")
    with mock.patch.object(evaluate, "publish", lambda out, posterior, summary, *_, **__: made.append(summary.metrics)):
        evaluate.evaluate(cfg)
    return repr(sorted(made[0].items()))


def answered(run: Path, cfg: DictConfig) -> Any:
    """The metrics that `train.py` prints of a run that has ended."""
    made: list[dict[str, float]] = []
    cfg = cfg.copy()
    cfg.run_dir = str(run)
    with mock.patch.object(train, "print_summary", lambda metrics, **_: made.append(dict(metrics))):
        train.train(cfg)
    return repr(sorted((made[0] if made else read_metrics(run / "metrics.json")).items()))  # or evaluated again


def resumed(run: Path, cfg: DictConfig) -> Any:
    """The samples and the trace of `train.py`, which then reads the samples to evaluate them."""
    cfg = cfg.copy()
    cfg.run_dir = str(run)
    directory = RunDirectory(cfg.run_dir, config_hash(cfg))
    assert directory.metrics is None
    with directory.owned():
        stack = build_stack(RunRequest(cfg, HydraConfig.get()).plan(), directory, 0)
        train.sample_stack(stack, directory)
    store = SampleStore(run)
    for record in store.records():
        store.read(record)
    files = {p.name: p.read_bytes() for p in sorted((run / "samples").iterdir()) if not p.name.startswith("owner")}
    trace = {name: column.nan_to_num(nan=-1.0).tolist() for name, column in stack.callbacks.monitor.trace().items()}
    return repr((sorted(files.items()), (run / "config.yaml").read_bytes(), trace))


def verified(run: Path) -> list[str]:
    return sorted(f"{f.what}: {f.note.replace(str(run), '')}" for f in look(run) if f.state != "whole")


def verdict(work: Callable[[Path], Any], run: Path, damage: Damage, right: Any, scratch: Path) -> str | None:
    """None where the damaged copy of a run gives the right result, a warning or an error of bdl's; else the fault."""
    copy = scratch / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(run, copy)
    damage.apply(copy)
    ended_in = "another result without a word"
    with warnings.catch_warnings(record=True) as heard, contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("always")
        try:
            result = work(copy)
        except BdlError as error:
            return None if "\n" not in str(error) else f"{damage}: several lines: {error}"
        except Exception as error:
            result, ended_in = None, f"{type(error).__name__}: {str(error)[:300]}"
    if result == right or any(issubclass(w.category, BdlWarning) for w in heard):
        return None
    return f"{damage}: {ended_in}"
