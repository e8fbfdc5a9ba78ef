"""Measures a GPU in ten minutes, and writes a page of results with the card and the date.

python scripts/bench.py gpu PAGE.md

The page has the tables of `SECTIONS`: steps of stacks of small networks beside JAX, where it is installed; gradients
and steps of ResNet20, each with its kernels compiled too; a part of a large network; the kernels of a block of steps;
and tests/test_gpu.py. Each row is written when it is known, so that a run that is stopped leaves the earlier ones;
PAGE.json has the numbers. A section that fails, or takes longer than its share of the time, says so in its place. The
same command goes on: sections that have ended stay as they are, and the others have all of the time.
`--device cpu --small` runs everything in small sizes, which a test does.
"""

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import torch
from tools.command import Said, UsageError
from tools.results import ROOT, markdown, read, save

from bdl.run.machine import find_device, prepare_torch, provenance
from benchmarks.speed import silence
from benchmarks.speed.on_gpu import SMALL, Bench, Row, Size, block, epochs, gradients, parts, small_networks


def tests(bench: Bench) -> Iterator[Row]:
    """tests/test_gpu.py, in six processes."""
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "-m", "", "-n", "6", "tests/test_gpu.py"]
    ended = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=max(1.0, bench.end - time.monotonic())
    )
    lines = (ended.stdout.strip() or ended.stderr.strip()).splitlines()
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    yield from ({"result": line} for line in [*failed, *lines[-1:]])


SECTIONS: dict[str, Callable[[Bench], Iterable[Row]]] = {
    "Stacks of small networks": small_networks,
    "Gradients of ResNet20": gradients,
    "ResNet20 through the Trainer": epochs,
    "A block of steps": block,
    "A part of a large network": parts,
    "tests/test_gpu.py": tests,
}
SHARES = {  # minutes of the sections; the tests took two on an H200
    "Stacks of small networks": 2.5, "Gradients of ResNet20": 1.5, "ResNet20 through the Trainer": 1.75,
    "A block of steps": 0.5, "A part of a large network": 0.75, "tests/test_gpu.py": 2.25,
}  # fmt: skip
SAME = ("device", "versions", "git_commit", "small")  # of a page that goes on
STOPPED: Row = {"failed": "stopped here"}  # below the rows of a section as long as it runs


class Late(BaseException):
    """A section has had its time. Nothing that handles errors on the way, such as a compiler's, takes it for one."""


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise Late in the block after so many seconds, and again every five, because a callback may swallow it."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def late(*_: Any) -> None:
        raise Late(f"not done in {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, max(0.01, seconds), 5.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def main(
    page: Annotated[Path, Said("the page of results, Markdown", "PAGE.md")],
    *,
    device: Annotated[str, Said("cuda, or cuda:1 for the second GPU")] = "cuda",
    small: Annotated[bool, Said("small sizes, and no tests, to try the script")] = False,
) -> None:
    if page.suffix != ".md":
        raise UsageError(f"{page} must end with .md: the numbers go to the file of that name with .json")
    bench = Bench(find_device(device), SMALL if small else Size())
    if bench.device.type == "cuda":
        torch.cuda.set_device(bench.device)
    prepare_torch(None, tf32=False, processes=1)
    silence()
    machine = {**provenance(bench.device), "date": date.today().isoformat(), "small": small}
    found = earlier(page.with_suffix(".json"), machine)
    todo = [t for t in SECTIONS if t not in found and not (small and SECTIONS[t] is tests)]
    for k, title in enumerate(todo):
        start, rows = time.monotonic(), found.setdefault(title, [])
        share = SHARES.get(title, 1.0) / sum(SHARES.get(other, 1.0) for other in todo[k:])  # what others leave is used
        try:
            with at_most(max(0.0, bench.end - start) * share):
                for row in SECTIONS[title](bench):
                    rows.append(row)
                    write(page, machine, found | {title: [*rows, STOPPED]})
        except (Exception, Late) as error:  # the other rows and sections are worth having
            rows.append({"failed": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"})
        print(f"{title}: {time.monotonic() - start:.0f} s", flush=True)
        write(page, machine, found)
    print(text(machine, found))


def write(page: Path, machine: dict[str, Any], found: dict[str, list[Row]]) -> None:
    save(page.with_suffix(".json"), {"machine": machine, **found}, text(machine, found))


def earlier(path: Path, machine: dict[str, Any]) -> dict[str, list[Row]]:
    """The sections that an earlier run of the same code on the same machine has ended.

    Raises UsageError where the file is of another one.
    """
    known = read(path, machine=machine)
    before = known.pop("machine")
    if other := [name for name in SAME if before.get(name) != machine[name]]:
        raise UsageError(f"{path} has another {other[0]}, {before.get(other[0])}: give the page another name")
    return {title: rows for title, rows in known.items() if rows and rows[-1].keys() != {"failed"}}


def text(machine: dict[str, Any], found: dict[str, list[Row]]) -> str:
    lines = [f"# {machine['device']}, {machine['date']}\n\nbdl {machine['versions']['bdl']}\n"]
    for title, rows in ((title, found[title]) for title in SECTIONS if title in found):
        about = " ".join((SECTIONS[title].__doc__ or "").split())
        known = (name for row in rows for name in row if name != "failed" or row[name] is not None)
        head = list(dict.fromkeys(known))
        table = markdown(head, [[shown(row.get(name)) for name in head] for row in rows])
        lines.append(f"\n## {title}\n\n{about}\n\n{table}")
    return "".join(lines)


def shown(value: Any) -> str:
    """A cell: three digits, thousands apart; – for what was not measured."""
    if not isinstance(value, float):
        return "–" if value is None else str(value)
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
