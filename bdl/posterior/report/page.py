"""The report of a run: one self-contained HTML page that begins with whether to trust the samples."""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from bdl.disk.manifest import write_listed
from bdl.display import count_of, figures
from bdl.posterior.class_evaluation import ClassEvaluation
from bdl.posterior.energy_histogram import EnergyHistogram
from bdl.posterior.heads import SIMPLE, is_worse_than_start, of_never_predicted
from bdl.posterior.judgements import Check, Judgement, Numbers, nats, or_nan
from bdl.posterior.predict import Posterior
from bdl.posterior.report.next_steps import next_steps
from bdl.posterior.report.numbers import (
    AVERAGES,
    CLASS_SCORES,
    VALUE_SCORES,
    Summary,
    row_label,
    score_headings,
    shown_score,
)
from bdl.posterior.report.pictures import ReportData, pictures_of
from bdl.posterior.report.tables import class_rows, column_rows, ood_rows
from bdl.posterior.report.text import Pieces, coloured
from bdl.posterior.target_values import SHOWN, Units, Values, target_rows, values_of
from bdl.posterior.traces import TraceColumns
from bdl.posterior.value_evaluation import ValueEvaluation
from bdl.posterior.verdict import Verdict, verdict

# Checks that the two tables show, unless a picture does
IN_CONVERGENCE = ("Monte Carlo error", "Rest", "Chains against each other", "R-hat (largest)", "ESS (smallest)",
                  "ESS of the tails", "Drift of predictions", "Slowest direction")  # fmt: skip
IN_PREDICTIONS = ("Level of single samples", "Average against a constant", "Average against its start",
                  "Average against one sample", "Error against a constant",
                  "Average against one network", "Average against simple models",
                  *(f"Average against {name}" for name in SIMPLE.values()), "Width against residuals",
                  "Calibration error (ECE)", "Calibration of intervals")  # fmt: skip
SCORE = re.compile(r"(test|train)/[^/]*/[^/]*")  # a metric of the table of scores
ALWAYS = ("one_sample", "chain_bma", "bma")  # rows of that table, also where they are not known
MARKS = {"ok": "✓", "look": "!", "bad": "✗"}  # readable without colours


def anchor(title: str) -> str:
    """The id of a section.

    >>> anchor("Predictions against data: price")
    'predictions-against-data-price'
    """
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


@dataclass(frozen=True)
class ScoreCell:
    split: str
    text: str
    best: bool  # is it the best of its column on the test set?


def write_page(
    path: Path,
    posterior: Posterior,
    summary: Summary,
    facts: Mapping[str, str],
    explain: str,
    trace: TraceColumns | None,
    units: Sequence[Units] = (),
    pieces: Pieces | None = None,
) -> ReportData:
    """Write the report of one run or of several merged runs, and return what it shows.

    Raises StoreError if the disk refuses.

    Args:
        facts: shown as they are, in this order; `title` becomes the title.
        explain: `sampler.explain()`, or "".
        trace: the trace of all chains; without it the page shows the energies of the kept samples.
        units: of each target, for predictions of numbers; pictures are drawn in them.
        pieces: the text of each of some tokens, for predictions of tokens; without it the page shows no text.
    """
    test = next(iter(summary.evaluations.values()))
    columns = {k: v.numpy() for k, v in trace.items()} if trace else _kept_energies(posterior)
    reliability = {}
    if isinstance(test, ClassEvaluation):
        one, average = (test.one_sample[0], test.labels), (test.bma, test.labels)
        reliability = {"one sample": one, "average of all chains": average}
    data = ReportData(
        title=facts.get("title", path.parent.name),
        facts={k: v for k, v in facts.items() if k != "title"},
        explain=explain,
        metrics=summary.metrics,
        trace=columns,
        kept_steps=sorted({r.step for r in posterior.records}),
        histogram=next(iter(EnergyHistogram.read_all(posterior.stores[0], posterior.records[0].stack)), None),
        reliability=reliability,
        values=values_of(test, units) if isinstance(test, ValueEvaluation) else (),
        curve=test.curve,
        text=coloured(test, pieces) if isinstance(test, ClassEvaluation) and test.tokens and pieces else (),
        convergence=summary.convergence,
        classes=class_rows(test, summary.class_names, summary.class_columns),
        class_columns=list(summary.class_columns),
        command=summary.command,
        folder=summary.folder,
        warnings=summary.warnings,
    )
    write_listed(path, page(data).encode())
    return data


def page(data: ReportData) -> str:
    """The HTML text. It loads nothing: style and pictures are part of it."""
    m = or_nan(data.metrics)
    judged = verdict(m, data.histogram, data.warnings)
    splits = [s for s in ("test", "train") if any(k.startswith(f"{s}/") and not math.isnan(v) for k, v in m.items())]
    pictures, targets = pictures_of(data), target_rows(m, data.values) or column_rows(m, data.class_columns)
    seen_in = {p.title: p.checks for p in pictures}
    seen_in |= {"Convergence": IN_CONVERGENCE} if data.convergence else {}
    seen_in |= {"Predictions": IN_PREDICTIONS} if splits else {}
    numbers = {k: f"{v:,.5g}" for k, v in m.items() if not SCORE.fullmatch(k)}
    steps = next_steps(judged, judged.metrics, data.command, max(data.kept_steps, default=0), data.folder)
    worse = worse_than_start(judged.metrics)
    given = {
        **({"Predictions": splits} if worse else {}),  # first, because they are what is wrong
        "Next steps": steps, "Checks": True, "What was sampled": data.facts, "Predictions": splits,
        "Targets": targets, "Classes": data.classes, "Out of distribution": ood_rows(m), "Text": data.text,
        **{p.title: True for p in pictures},
        "Convergence": data.convergence, "All numbers": numbers, "What the sampler does": data.explain,
    }  # fmt: skip
    contents = [title for title, there in given.items() if there]
    script = Path(__file__).with_name("zoom.js").read_text() if any(p.zooms for p in pictures) else ""
    return render(
        "page.html.jinja",
        data=data,
        marks=MARKS,
        verdict=judged,
        open_points=[c.name for level in ("bad", "look") for c in judged.checks if c.level == level],
        unpredicted="" if judged.head.kind == "good ensemble" else of_never_predicted(m)[2:],  # its sentence has them
        result=_in_short(judged.metrics, data.values),
        splits=splits,
        scores=list(score_headings(m).values()),
        of_numbers=score_headings(m) is VALUE_SCORES,
        score_rows=_score_rows(m, splits),
        targets=targets,
        of_targets=["items", *(SHOWN if data.values else CLASS_SCORES).values()],
        pictures=pictures,
        readings={p.title: _worst(judged, p.checks) for p in pictures},
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        links={check: anchor(title) for title in reversed(seen_in) for check in seen_in[title]},
        anchor=anchor,
        convergence=[
            (r.name, (f"{r.mean:,.4g}", f"{r.std:,.3g}", f"{r.rhat:.3f}", f"{r.ess:,.0f}")) for r in data.convergence
        ],
        ood=ood_rows(m),
        worse=worse,
        steps=steps,
        contents=contents,
        numbers=numbers,
    )


def render(template: str, **values: Any) -> str:
    """The text of a template of this folder, with its style inside. Values are escaped, and no line ends in ±."""
    loader = PackageLoader("bdl.posterior", "report")
    environment = Environment(loader=loader, autoescape=True, trim_blocks=True, undefined=StrictUndefined)
    style = environment.get_template("style.css").render()
    return environment.get_template(template).render(style=style, **values).replace("± ", "±\N{NO-BREAK SPACE}")


def _worst(judged: Verdict, names: Sequence[str]) -> Check | Judgement | None:
    """The worst of these checks, which a picture shows; the first of several, None where no such check was made."""
    checks = [check for check in judged.checks if check.name in names]
    return max(checks, key=lambda check: list(MARKS).index(check.level), default=None)


def _in_short(m: Mapping[str, float], values: Sequence[Values]) -> str:
    """The result in one sentence; empty without test scores."""
    samples = "" if math.isnan(m["samples"]) else f" of {count_of(m['samples'], 'network')}"
    if not math.isnan(m["test/bma/rmse"]):
        one, average, inside = m["test/one_sample/rmse"], m["test/bma/rmse"], m["test/bma/coverage_90"]
        errors = {v.units: v.units.scale * average for v in values}
        if len(values) > 1:
            errors = {of: m[f"test/bma/{of.name}/rmse"] for of in errors}
        in_units = "".join(f", {figures(e)} in the units of {of.name}" for of, e in errors.items() if of.scale != 1)
        return (
            f"The average{samples} predicts the test set with an RMSE of {figures(average)} (one sample: "
            f"{figures(one)}){in_units}, NLL {m['test/bma/nll']:.3f} nats. Its 90 % intervals hold "
            f"{100 * inside:.0f} % of the data."
        )
    one, average = m["test/one_sample/accuracy"], m["test/bma/accuracy"]
    if math.isnan(one + average):
        return ""
    if not math.isnan(m["test/bma/perplexity"]):
        return (
            f"The average{samples} predicts the next token with a perplexity of {m['test/bma/perplexity']:.3f} (one "
            f"sample: {m['test/one_sample/perplexity']:.3f}), NLL {m['test/bma/nll']:.4f} nats a token."
        )
    nll = "" if math.isnan(m["test/bma/nll"]) else f", NLL {m['test/bma/nll']:.3f} nats"
    errors = f"{shown_score('accuracy', average)} % of the test set (one sample: {shown_score('accuracy', one)} %)"
    return f"The average{samples} misclassifies {errors}{nll}."


def worse_than_start(m: Numbers) -> str:
    """One sentence where the posterior predicts worse than the networks at which its chains began; otherwise empty."""
    start, average = m["test/start/nll"], m["test/bma/nll"]
    if not is_worse_than_start(m):  # also where one is not known
        return ""
    own, of_start = nats(average, start)
    return (
        f"The posterior predicts worse than the ensemble at which its chains began: NLL {own} against {of_start} nats. "
        "Predictions of that ensemble are better than these."
    )


def score_table(metrics: Mapping[str, float]) -> tuple[list[str], list[list[str]]]:
    """The heading and the rows of the table of scores on the test set, as texts."""
    m = or_nan(metrics)
    rows = [[name, *(cell.text for cell in cells)] for name, cells in _score_rows(m, ["test"])]
    return ["average", *score_headings(m).values()], rows


def _score_rows(m: Mapping[str, float], splits: Sequence[str]) -> list[tuple[str, list[ScoreCell]]]:
    """Rows: start, one sample ... weighted average. Columns: the scores on the test set, then on the training set."""
    known = {row for row in AVERAGES if any(not math.isnan(v) for k, v in m.items() if f"/{row}/" in k)}
    rows = [row for row in AVERAGES if row in known or row in ALWAYS]
    return [
        (row_label(row, m), [_score(m, split, row, s, rows) for split in splits for s in score_headings(m)])
        for row in rows
    ]


def _score(m: Mapping[str, float], split: str, row: str, score: str, rows: Sequence[str]) -> ScoreCell:
    column = {r: shown_score(score, m[f"{split}/{r}/{score}"]) for r in rows}
    if split != "test" or column[row] == "–" or score.startswith("coverage"):
        return ScoreCell(split, column[row], False)
    return ScoreCell(split, column[row], float(column[row]) == min(float(v) for v in column.values() if v != "–"))


def _kept_energies(posterior: Posterior) -> dict[str, np.ndarray]:
    """Step (n,) and batch energies (n, C) of the kept samples."""
    draws = posterior.recorded("energy_batch").T  # (draws, chains)
    steps = sorted({r.step for r in posterior.records})[: len(draws)]
    return {"step": np.asarray(steps, dtype=float), "energy": draws[: len(steps)]}
