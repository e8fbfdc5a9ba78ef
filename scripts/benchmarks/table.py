"""Runs a configuration over seeds, and writes scores and core-seconds into a table.

python scripts/bench.py table NAME [override ...] [--seeds 0 1 2] [--out DIR]

Every seed is one command, scripts/train.py with the overrides. Its core-seconds are user and system time of all its
processes, from the start of the interpreter to the report. DIR/NAME.json holds the numbers, DIR/NAME.md the table;
seeds that were measured before with the same overrides stay in both.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from tools.command import Said
from tools.processes import timed
from tools.results import SCRIPTS, TABLES, about, markdown, read, save

from bdl.errors import ConfigError
from bdl.posterior.judgements import OUTCOMES

SEEDS = (0, 1, 2, 3, 4)
SCORES = {"rmse": "RMSE", "nll_normal": "NLL of the normal", "accuracy": "error %", "nll": "-LPPD"}  # headings
FACTS = (
    "samples", "chains", "temperature", "t_eff", "kinetic_temperature", "rhat/max", "ess/min", "mcse/most",
    "weighting/multiplier", "temperature/directions/hottest", "temperature/directions/hottest_se",
    "temperature/directions/coldest", "temperature/direction/all", "energy/along", "energy/gaussian",
    "energy/continuation", "energy/continuation_se", "verdict/head",
)  # fmt: skip
ROWS = {"bma": "bdl", "start": "its start, a deep ensemble"}  # rows of metrics.json -> of the table
PUBLISHED = {  # Sommer et al. 2025 and the benchmark of bde 1.0: mean over its runs, 10 cores
    "airfoil": [
        ("bde 1.0, published", {"rmse": 0.1215, "nll_normal": -0.913, "core_seconds": 2410}),
        ("deep ensemble, published", {"rmse": 0.365, "nll_normal": 0.176}),
        ("XGBoost, published", {"rmse": 0.2025}),
        ("TabPFN v2, published", {"rmse": 0.136, "nll_normal": -0.934}),
    ],
    "bike": [
        ("bde 1.0, published", {"rmse": 0.226, "nll_normal": -0.7315, "core_seconds": 25500}),
        ("deep ensemble, published", {"rmse": 0.288, "nll_normal": -0.455}),
        ("XGBoost, published", {"rmse": 0.2143}),
        ("TabPFN v2, published", {"rmse": 0.210, "nll_normal": -0.686}),
    ],
}


def main(
    name: Annotated[str, Said("of the table", "NAME")],
    *overrides: Annotated[str, Said("of scripts/train.py", "override")],
    seeds: Annotated[Sequence[int], Said(metavar="SEED")] = SEEDS,
    out: Annotated[Path, Said(metavar="DIR")] = TABLES,
) -> None:
    path = out / f"{name}.json"
    record = read(path)
    if record.get("overrides") != list(overrides):
        record = {"name": name, "overrides": list(overrides), "cores": os.cpu_count(), **about(), "runs": []}
    record["date"] = about()["date"]
    for seed in seeds:
        add(record["runs"], measure(overrides, seed))
        save(path, record, table(record))
    print(table(record))


def add(runs: list[dict[str, Any]], run: dict[str, Any]) -> None:
    """Put a run among the others, by its seed, in the place of an earlier one."""
    runs[:] = sorted([r for r in runs if r["seed"] != run["seed"]] + [run], key=lambda r: r["seed"])
    print(f"seed {run['seed']}: {run['core_seconds']:.0f} core-seconds", flush=True)


def measure(overrides: Sequence[str], seed: int, split: str = "test") -> dict[str, Any]:
    """Scores on a split of the posterior and of its start, the verdict's numbers, core-seconds and seconds of one run.

    Raises ConfigError if the run fails; its own line on stderr says why.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(SCRIPTS / "train.py"), *overrides, f"seed={seed}", f"hydra.run.dir={folder}/run"]
        done, cost = timed(command, stdout=subprocess.DEVNULL)
        if done.returncode:
            raise ConfigError(f"seed {seed} failed: {' '.join(command)}")
        metrics = json.loads((Path(folder) / "run" / "metrics.json").read_text())
    rows = {row: {s: metrics[f"{split}/{row}/{s}"] for s in SCORES if f"{split}/{row}/{s}" in metrics} for row in ROWS}
    facts = {name: metrics[name] for name in FACTS if name in metrics}
    return {"seed": seed, **rows, **facts, "verdict": OUTCOMES[int(metrics["verdict/outcome"])], **cost}


def table(record: dict[str, Any]) -> str:
    """Mean and standard deviation over the seeds, the seeds, and others: measured here, and published."""
    runs = record["runs"]
    scores = [s for s in SCORES if s in runs[0]["bma"]]
    headings = ["", *(SCORES[s] for s in scores), "R-hat", "core-seconds", "verdict"]
    lines = []
    for row, label in ROWS.items():
        if runs[0][row]:
            texts = [spread([shown(r[row][s], s) for r in runs]) for s in scores]
            rest = [""] * 3 if row == "start" else [spread([r["rhat/max"] for r in runs]), cost(runs), ""]
            lines.append([f"{label}, {len(runs)} seeds", *texts, *rest])
    for r in runs:
        numbers = [f"{shown(r['bma'][s], s):.4f}" for s in scores]
        rest = [f"{r['rhat/max']:.2f}", f"{r['core_seconds']:.0f}", r.get("verdict", "–")]
        lines.append([f"seed {r['seed']}", *numbers, *rest])
    if peer := record.get("bde"):
        texts = [spread([shown(r[s], s) for r in peer["runs"]]) for s in scores]
        label = f"bde {peer['version']}, {len(peer['runs'])} seeds, {peer['device']}, {peer['date']}"
        lines.append([label, *texts, "–", cost(peer["runs"]), "–"])
    for label, known in PUBLISHED.get(record["name"], []):
        numbers = [f"{known[s]:.4f}" if s in known else "–" for s in scores]
        lines.append([label, *numbers, "–", f"{known['core_seconds']}" if "core_seconds" in known else "–", "–"])
    command = f"scripts/train.py {' '.join(record['overrides'])}"
    where = f"`{command}` on {record['cores']} cores of {record['device']}, {record['date']}"
    return f"{where}\n\n" + markdown(headings, lines)


def shown(value: float, score: str) -> float:
    """A score in the unit of its heading: accuracy as the error in %."""
    return 100 * (1 - value) if score == "accuracy" else value


def spread(values: list[float]) -> str:
    deviation = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.4f}{deviation}"


def cost(runs: list[dict[str, Any]]) -> str:
    return f"{statistics.mean(r['core_seconds'] for r in runs):.0f}"
