"""The report of a run: one self-contained HTML page that says first whether to trust the samples."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from bdl.files import write_atomically
from bdl.posterior.diagnostics import LEVELS, Check, Row, or_nan, verdict
from bdl.posterior.evaluation import Curve
from bdl.posterior.report import figures
from bdl.posterior.report.figures import EnergyHistogram

MARKS = {"ok": "✓", "look": "!", "bad": "✗"}  # a colour alone does not reach everybody
HEADLINES = {
    "ok": "Nothing speaks against these samples",
    "look": "Look at the open points before you trust these samples",
    "bad": "Do not trust these samples yet",
}
ROWS = {
    "one_sample": "one sample",
    "chain_bma": "one chain's average",
    "bma": "all chains' average",
    "bma_weighted": "all chains' average, importance-weighted",
}
SCORES = {"accuracy": "error %", "nll": "NLL (nats)", "ece": "ECE", "brier": "Brier"}
ENERGY = "Thin: energy of each step; thick: its running mean. In equilibrium chains overlap and show no trend."
SCHEDULE = (
    "T_eff = T (1 + noise_ratio) is the temperature that mini-batch noise adds up to; shaded: the range over chains."
)
CURVE = (
    "While NLL still falls, more samples help. Where one chain's average stays above all chains' at the same number of "
    "networks, chains hold different modes: more chains help."
)
RELIABILITY = "On the dotted line confidence is right; below it the network is too sure. Bars: standard errors."
HISTOGRAM = (
    "psi should lie close to the dashed line. The multiplier scales the gradient: above 1 it pulls to low energy."
)
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"  # a browser that obeys it loads nothing
CSS = """
:root { --ok: #1b7f4f; --look: #a36200; --bad: #b3261e; --line: #e3e5e8; --muted: #646b73; }
* { box-sizing: border-box; }
body { margin: 0; background: #f6f7f8; color: #1f2429; font: 15px/1.5 system-ui, "Liberation Sans", sans-serif; }
main { max-width: 1100px; margin: 0 auto; padding: 28px 20px 48px; display: flex; flex-wrap: wrap; gap: 16px; }
header, section, .banner { flex: 1 1 100%; min-width: 0; border-radius: 8px; }
section { background: #fff; border: 1px solid var(--line); padding: 16px 20px; overflow-x: auto; }
section.half { flex: 1 1 420px; }
h1 { font-size: 24px; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 16px; margin: 0 0 10px; }
.banner { display: flex; gap: 16px; align-items: flex-start; padding: 16px 20px; border-left: 8px solid; }
.banner h2 { font-size: 20px; margin: 0; }
.banner p { margin: 4px 0 0; }
.banner.ok { border-color: var(--ok); background: #eaf5ef; }
.banner.look { border-color: var(--look); background: #fdf4e3; }
.banner.bad { border-color: var(--bad); background: #fcebe9; }
.mark { display: inline-block; width: 1.5em; line-height: 1.5em; border-radius: 50%; text-align: center; }
.mark { color: #fff; font-weight: 700; font-size: 13px; }
.mark.ok { background: var(--ok); } .mark.look { background: var(--look); } .mark.bad { background: var(--bad); }
.banner .mark { font-size: 20px; flex: none; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { padding: 5px 16px 5px 0; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
tr:last-child > * { border-bottom: 0; }
thead tr:last-child > * { border-bottom: 1px solid var(--muted); }
th { font-weight: 500; } thead th { color: var(--muted); white-space: nowrap; }
.number, thead th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.number:last-child { padding-right: 0; }
.checks td:first-child, .checks th { white-space: nowrap; } .checks .words { width: 55%; }
.checks .look .words, .checks .bad .words { font-weight: 500; }
thead tr:first-child:not(:last-child) > * { border-bottom: 0; }
th.group { text-align: center; } .scores .number { padding: 5px 10px 5px 0; }
.scores td.test:nth-child(5), .scores th.test:nth-child(5) { padding-right: 28px; }
.train { color: var(--muted); font-size: 12.5px; } .best { font-weight: 700; }
dl { columns: 3 260px; column-gap: 32px; margin: 0; font-size: 14px; }
dl div { display: flex; gap: 12px; padding: 4px 0; break-inside: avoid; border-bottom: 1px solid var(--line); }
dt { color: var(--muted); flex: 0 0 76px; } dd { margin: 0; overflow-wrap: anywhere; }
figure { margin: 0; } img { width: 100%; height: auto; display: block; }
figcaption, .note { color: var(--muted); font-size: 13px; margin: 8px 0 0; }
pre { margin: 0; font: 12.5px/1.5 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; }
@media print { body, main { background: #fff; padding: 0; } section, .banner { break-inside: avoid; } }
@media print { * { print-color-adjust: exact; } }
"""


@dataclass(frozen=True)
class ReportData:
    """All that a report shows. Only the title is required: what is absent or NaN is left out, or said to be missing."""

    title: str
    facts: Mapping[str, str] = field(default_factory=dict)  # data, model, sampler, N, T, prior, ... in order
    explain: str = ""  # `sampler.explain()`
    metrics: Mapping[str, float] = field(default_factory=dict)  # as in metrics.json
    trace: Mapping[str, np.ndarray] = field(default_factory=dict)  # step (n,); other columns (n,) or (n, C)
    kept_steps: np.ndarray | Sequence[int] = ()  # (k,)
    histogram: EnergyHistogram | None = None
    reliability: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)  # name -> probs (n, K), labels (n,)
    curve: Curve | None = None
    convergence: Sequence[Row] = ()
    warnings: Sequence[str] = ()


def write_report(path: Path, data: ReportData) -> None:
    """Write the page, whole or not at all. Raises StoreError when the disk refuses."""
    write_atomically(Path(path), page(data).encode())


def page(data: ReportData) -> str:
    """The page as text. It loads nothing: style and pictures are in it."""
    numbers = or_nan(data.metrics)
    checks = verdict(numbers, data.histogram, data.warnings)
    sections = [
        _banner(checks, numbers),
        _section("Checks", _checks(checks)),
        _section("What was sampled", _facts(data.facts)),
        _section("Predictions", _scores(numbers)),
        *_pictures(data),
        _section("Convergence", _convergence(data.convergence), "half"),
        _section("All numbers", _numbers(numbers), "half"),
        _section("The sampler in its own words", data.explain and f"<pre>{_esc(data.explain)}</pre>"),
    ]
    title, body = _esc(data.title), "\n".join(section for section in sections if section)
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{CSS}</style></head>
<body><main>
<header><h1>{title}</h1></header>
{body}
</main></body></html>
"""


def _banner(checks: Sequence[Check], m: Mapping[str, float]) -> str:
    worst = max((c.level for c in checks), key=LEVELS.index)
    names = [c.name for level in ("bad", "look") for c in checks if c.level == level]
    about = f"<p>Open: {_esc(', '.join(names))}.</p>" if names else ""
    mark = f'<span class="mark {worst}">{MARKS[worst]}</span>'
    words = f"<h2>{HEADLINES[worst]}</h2>{about}{_in_short(m)}"
    return f'<div class="banner {worst}">{mark}<div>{words}</div></div>'


def _in_short(m: Mapping[str, float]) -> str:
    """The result in one sentence."""
    one, all_ = m["test/one_sample/accuracy"], m["test/bma/accuracy"]
    if math.isnan(one + all_):
        return ""
    samples = "" if math.isnan(m["samples"]) else f" of {m['samples']:,.0f} networks"
    nll = "" if math.isnan(m["test/bma/nll"]) else f", NLL {m['test/bma/nll']:.3f} nats"
    errors = f"{_shown('accuracy', all_)} % of the test set (one sample: {_shown('accuracy', one)} %)"
    return f"<p>The average{samples} errs on {errors}{nll}.</p>"


def _checks(checks: Iterable[Check]) -> str:
    rows = ""
    for c in checks:
        mark = f'<span class="mark {c.level}">{MARKS[c.level]}</span> {c.level}'
        words = "<br>".join(_esc(line) for line in c.words.splitlines())
        cells = f'<td class="number">{_esc(c.value)}</td><td class="words">{words}</td>'
        rows += f'<tr class="{c.level}"><td>{mark}</td><th>{_esc(c.name)}</th>{cells}</tr>'
    return f'<table class="checks">{rows}</table>'


def _facts(facts: Mapping[str, str]) -> str:
    rows = "".join(f"<div><dt>{_esc(k)}</dt><dd>{_esc(v)}</dd></div>" for k, v in facts.items())
    return f"<dl>{rows}</dl>" if rows else ""


def _scores(m: Mapping[str, float]) -> str:
    """Rows one sample ... weighted average; columns the scores on the test set, then smaller on the training set."""
    splits = [s for s in ("test", "train") if any(k.startswith(f"{s}/") and not math.isnan(v) for k, v in m.items())]
    if not splits:
        return ""
    weighted = any(not math.isnan(v) for k, v in m.items() if "/bma_weighted/" in k)
    head = "".join(f'<th colspan="{len(SCORES)}" class="group {s}">{s}</th>' for s in splits)
    names = "".join(f'<th class="number {s}">{name}</th>' for s in splits for name in SCORES.values())
    body = ""
    rows = [row for row in ROWS if weighted or row != "bma_weighted"]
    for row in rows:
        cells = "".join(_score(m, split, row, score, rows) for split in splits for score in SCORES)
        body += f"<tr><th>{ROWS[row]}</th>{cells}</tr>"
    note = '<p class="note">Smaller is better everywhere; the best on the test set is bold. Brier: 0 to 2.</p>'
    thead = f"<thead><tr><th></th>{head}</tr><tr><th></th>{names}</tr></thead>"
    return f'<table class="scores">{thead}{body}</table>{note}'


def _score(m: Mapping[str, float], split: str, row: str, score: str, rows: Sequence[str]) -> str:
    """One cell; bold where it is the best of its column."""
    shown = {r: _shown(score, m[f"{split}/{r}/{score}"]) for r in rows}
    known = [float(v) for v in shown.values() if v != "–"]
    best = split == "test" and shown[row] != "–" and float(shown[row]) == min(known)
    return f'<td class="number {split}{" best" if best else ""}">{shown[row]}</td>'


def _shown(score: str, value: float) -> str:
    if math.isnan(value):
        return "–"
    return f"{100 * (1 - value):.2f}" if score == "accuracy" else f"{value:.4f}"


def _pictures(data: ReportData) -> list[str]:
    """A section for every picture that there are numbers for."""
    trace = data.trace if len(data.trace.get("step", ())) > 1 else {}
    h, curve = data.histogram, data.curve
    found = []
    if "energy" in trace:
        kept = np.asarray(data.kept_steps)
        found.append(_picture("Energy", figures.energy_trace, (trace["step"], trace["energy"], kept), ENERGY))
    if {"lr", "temperature", "t_eff", "kinetic_temperature", "multiplier"} & trace.keys():
        found.append(_picture("Learning rate and temperature", figures.schedule, (trace,), SCHEDULE))
    if curve is not None and len(curve.samples):
        found.append(
            _picture("Accuracy and NLL against the number of networks", figures.learning_curve, (curve,), CURVE)
        )
    if data.reliability:
        found.append(_picture("Reliability", figures.reliability, (data.reliability,), RELIABILITY, "half"))
    if h is not None:
        settled = "has settled and is frozen" if h.frozen else "still moves"
        about = f"zeta = {h.zeta:g}, T = {h.temperature:g}; psi {settled}. {HISTOGRAM}"
        found.append(_picture("Energy histogram and weighting", figures.histogram, (h,), about, "half"))
    return found


def _picture(title: str, draw: Callable[..., Figure], arguments: tuple[Any, ...], about: str, size: str = "") -> str:
    image = f'<img alt="{_esc(title)}" src="{figures.as_uri(draw, *arguments)}">'
    return _section(title, f"<figure>{image}<figcaption>{_esc(about)}</figcaption></figure>", size)


def _convergence(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    body = ""
    for r in rows:
        numbers = (f"{r.mean:,.4g}", f"{r.std:,.3g}", f"{r.rhat:.3f}", f"{r.ess:,.0f}")
        body += _line(r.name, ["–" if text == "nan" else text for text in numbers])
    head = _line("", ["mean", "std", "R-hat", "ESS"], "th")
    note = '<p class="note">R-hat: 1 where chains agree. ESS: how many independent draws these are worth.</p>'
    return f"<table><thead>{head}</thead>{body}</table>{note}"


def _numbers(m: Mapping[str, float]) -> str:
    """What stands in metrics.json beside the scores."""
    rest = {k: v for k, v in m.items() if not (k.startswith(("test/", "train/")) and k.count("/") == 2)}
    rows = "".join(_line(k, ["–" if math.isnan(v) else f"{v:,.5g}"]) for k, v in rest.items())
    return f"<table>{rows}</table>" if rows else ""


def _line(name: str, values: Iterable[str], tag: str = "td") -> str:
    cells = "".join(f'<{tag} class="number">{v}</{tag}>' for v in values)
    return f"<tr><th>{_esc(name)}</th>{cells}</tr>"


def _section(title: str, body: str, size: str = "") -> str:
    return f'<section class="{size}"><h2>{_esc(title)}</h2>{body}</section>' if body else ""


def _esc(text: object) -> str:
    return html.escape(str(text))
