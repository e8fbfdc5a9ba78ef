"""Settings of a distillation side by side: python scripts/experiment.py distil RUN ... [--only NAME ...].

Each RUN is a run directory with a validation part (data.val_fraction). A student is trained on its training rows under
each candidate, and compared with the average on the validation rows, which neither has seen: what it loses in NLL, in
RMSE or accuracy, and how far its standard deviations are from the average's. Candidates that were measured before for a
run stay in the table. `--split test` judges on the test rows, for the default alone.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
from tools.command import Said
from tools.results import TABLES, about, markdown, origin, read, save

import bdl
from bdl.contrib.distillation.command import student_model
from bdl.contrib.distillation.student import numbers_kept
from bdl.posterior.outputs import Batches, output_shape
from bdl.run.config import plain
from bdl.run.evaluate import recorded_data
from bdl.run.section import Section
from bdl.run.stored import load_runs

BASE: dict[str, Any] = {"components": 4, "hidden": [64, 64, 64], "mixtures": 3, "crossings": 12}
CANDIDATES: dict[str, dict[str, Any]] = {
    "default: 4 components, [64, 64, 64], 3 mixtures, 12 crossings": BASE,
    "1 component, layers of the run, 3 mixtures": BASE | {"components": 1, "hidden": "run", "crossings": 0},
    "no crossings, 15 mixtures": BASE | {"mixtures": 15, "crossings": 0},
    "1 component": BASE | {"components": 1},
}


def distilled(run: Path, settings: dict[str, Any], split: str) -> dict[str, Any]:
    """What the student loses on the rows of a split, the run's own scores there, and core-seconds."""
    hidden, components = settings["hidden"], settings["components"]
    settings = {name: value for name, value in settings.items() if name not in ("hidden", "components")}
    posterior, config = load_runs([run], (), "cpu")
    torch.set_num_threads(1)
    data = recorded_data(config, posterior)
    items = data.slices("train")
    likelihood = posterior.likelihood(items)
    shape = output_shape(posterior.net, Batches(items, posterior.device, posterior.read))
    kept, shares = numbers_kept(likelihood, shape[-1])
    kept *= components if likelihood.outputs == "values" else 1
    hidden = plain(config.model)["sizes"][1:-1] if hidden == "run" else hidden
    model = student_model(plain(config.model), kept, shares, hidden)
    torch.manual_seed(0)
    student: torch.nn.Module = Section[torch.nn.Module](model).build()
    began = time.process_time()
    found = posterior.distil(student, items, test=data.slices(split), settings=bdl.Distillation(**settings))
    return {"core_seconds": round(time.process_time() - began, 1), "step": found.step, "scores": dict(found.scores)}


def lost(scores: dict[str, float]) -> dict[str, float]:
    """Differences of NLL in nats; of RMSE and of the mean standard deviations as a share; of accuracy in percent."""
    both = {name.partition("/")[2] for name in scores if name.startswith("student/")}
    differences = {name: scores[f"student/{name}"] - scores[f"teacher/{name}"] for name in both}
    parts = {"nll": differences["nll"]}
    if "accuracy" in both:
        return parts | {"accuracy": 100 * differences["accuracy"]}
    shares = {name: differences[name] / scores[f"teacher/{name}"] for name in ("rmse", "std", "epistemic")}
    return parts | {"normal": scores["teacher/nll_normal"] - scores["teacher/nll"]} | shares


def cell(found: dict[str, Any]) -> str:
    parts = lost(found["scores"])
    text = f"{parts['nll']:+.3f}"
    if "rmse" in parts:
        text += f", {100 * parts['rmse']:+.1f} %"
    return text


def table_of(record: dict[str, Any]) -> str:
    """Markdown: candidates by rows, runs by columns; NLL of student less that of average, and RMSE in percent of it."""
    runs = list(record["runs"])
    names = list(dict.fromkeys(name for run in runs for name in record["runs"][run]))
    rows = []
    for name in names:
        each = [record["runs"][run].get(name) for run in runs]
        rows.append([name, *("–" if found is None else cell(found) for found in each)])
    where = f"{origin(record)}. "
    where += f"NLL of the student less that of the average, and its RMSE beside the average's, {record['split']} rows."
    return f"{where}\n\n{markdown(['candidate', *runs], rows)}"


def main(
    *runs: Annotated[Path, Said(metavar="RUN")],
    only: Annotated[Sequence[str], Said(metavar="NAME", choices=CANDIDATES)] = tuple(CANDIDATES),
    split: Annotated[str, Said(choices=["val", "test"])] = "val",
    out: Path = TABLES / "distil.json",
) -> None:
    record = read(out, runs={}) | {**about(), "split": split, "candidates": CANDIDATES}
    for run in runs:
        of_run = record["runs"].setdefault(run.name, {})
        for name in only:
            if name not in of_run:
                of_run[name] = distilled(run, CANDIDATES[name], split)
                print(run.name, name, of_run[name]["core_seconds"], cell(of_run[name]), flush=True)
                save(out, record, table_of(record))
