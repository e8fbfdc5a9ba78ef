"""The report of a run: one self-contained HTML page that says first whether to trust the samples."""

from __future__ import annotations

import html
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.figure import Figure

from bdl.posterior import figures
from bdl.posterior.diagnostics import Row
from bdl.posterior.evaluation import Curve
from bdl.posterior.figures import EnergyHistogram
from bdl.posterior.store import write_atomically

Level = Literal["ok", "look", "bad"]
LEVELS: tuple[Level, ...] = ("ok", "look", "bad")  # from best to worst
MARKS = {"ok": "✓", "look": "!", "bad": "✗"}  # a colour alone does not reach everybody
HEADLINES = {
    "ok": "Nothing speaks against these samples",
    "look": "Usable, but look at the open points first",
    "bad": "Do not trust these samples yet",
}
ROWS = {
    "one_sample": "one sample",
    "chain_bma": "one chain's average",
    "bma": "all chains' average",
    "bma_weighted": "all chains' average, importance-weighted",
}
SCORES = {"accuracy": "error %", "nll": "NLL (nats)", "ece": "ECE", "brier": "Brier"}
ENERGY = "Thin: the energy of each step; thick: its running mean. Chains in equilibrium overlap and have no trend at kept samples."
SCHEDULE = (
    "T_eff = T (1 + noise_ratio) is the temperature that mini-batch noise adds up to; shaded: the range over chains."
)
CURVE = "Where the curve still falls, more samples help; where one chain's average stays apart, the chains see different modes."
RELIABILITY = "On the dotted line confidence is right; below it the network is too sure. Bars: one standard error."
HISTOGRAM = "Where the dashed line leaves psi, psi has not settled. The multiplier scales the gradient: above 1 it pulls harder."
CSS = """
:root { --ok: #1b7f4f; --look: #a36200; --bad: #b3261e; --line: #e3e5e8; --muted: #646b73; }
* { box-sizing: border-box; }
body { margin: 0; background: #f6f7f8; color: #1f2429; font: 15px/1.5 system-ui, "Segoe UI", "Liberation Sans", sans-serif; }
main { max-width: 1100px; margin: 0 auto; padding: 28px 20px 48px; display: flex; flex-wrap: wrap; gap: 16px; }
header, section, .banner { flex: 1 1 100%; min-width: 0; }
section.half { flex: 1 1 420px; }
section { background: #fff; border: 1px solid var(--line); border-radius: 8px; padding: 16px 20px; overflow-x: auto; }
h1 { font-size: 24px; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 16px; margin: 0 0 10px; }
.banner { display: flex; gap: 16px; align-items: flex-start; padding: 16px 20px; border-radius: 8px; border-left: 8px solid; background: #fff; }
.banner h2 { font-size: 20px; margin: 0; }
.banner p { margin: 4px 0 0; }
.banner.ok { border-color: var(--ok); background: #eaf5ef; }
.banner.look { border-color: var(--look); background: #fdf4e3; }
.banner.bad { border-color: var(--bad); background: #fcebe9; }
.mark { display: inline-block; width: 1.5em; height: 1.5em; line-height: 1.5em; border-radius: 50%; text-align: center; color: #fff; font-weight: 700; }
.mark.ok { background: var(--ok); } .mark.look { background: var(--look); } .mark.bad { background: var(--bad); }
.banner .mark { font-size: 20px; flex: none; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { padding: 5px 10px 5px 0; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
tr:last-child > * { border-bottom: 0; }
th { font-weight: 500; } thead th { color: var(--muted); }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
figure { margin: 0; } img { width: 100%; height: auto; display: block; }
figcaption, .note { color: var(--muted); font-size: 13px; margin: 8px 0 0; }
pre { margin: 0; font: 12.5px/1.5 ui-monospace, "DejaVu Sans Mono", monospace; white-space: pre-wrap; overflow-wrap: anywhere; }
@media print { body { background: #fff; } main { padding: 0; } section, .banner { break-inside: avoid; } * { print-color-adjust: exact; } }
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


@dataclass(frozen=True)
class Check:
    """One line of the verdict."""

    level: Level
    name: str
    value: str
    words: str


def write_report(path: Path, data: ReportData) -> None:
    """Write the page, whole or not at all. Raises StoreError when the disk refuses."""
    write_atomically(Path(path), page(data).encode())


def verdict(data: ReportData) -> list[Check]:
    """What a stranger should check before trusting the samples, each with its number and a remedy."""
    m = _numbers_of(data)
    found = [
        _chains(m),
        _rhat(m),
        _ess(m),
        _temperature(m),
        _average(m),
        _calibration(m),
        _weights(m),
        _bins(data.histogram),
    ]
    return [*(check for check in found if check), _warnings(data.warnings)]


def page(data: ReportData) -> str:
    """The page as text. It loads nothing: style and pictures are in it."""
    checks = verdict(data)
    sections = [
        _banner(checks, data),
        _section("Checks", _checks(checks), "half"),
        _section("What was sampled", _facts(data.facts), "half"),
        _section("Predictions", _scores(_numbers_of(data)), ""),
        *_pictures(data),
        _section("Convergence", _convergence(data.convergence), "half"),
        _section("All numbers", _numbers(_numbers_of(data)), "half"),
        _section(
            "The sampler in its own words", f"<pre>{_esc(data.explain)}</pre>" if data.explain.strip() else "", ""
        ),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_esc(data.title)}</title>\n<style>{CSS}</style></head>\n"
        f"<body><main>\n<header><h1>{_esc(data.title)}</h1></header>\n"
        + "\n".join(sections)
        + "\n</main></body></html>\n"
    )


def _chains(m: Mapping[str, float]) -> Check | None:
    chains, samples = m["chains"], m["samples"]
    if math.isnan(chains):
        return None
    value = f"{chains:.0f}" if math.isnan(samples) else f"{chains:.0f} with {samples:,.0f} samples"
    if chains >= 2:
        return Check("ok", "Chains", value, "enough to compare chains with each other")
    return Check("look", "Chains", value, "one chain can't show that it missed something: run at least 2")


def _rhat(m: Mapping[str, float]) -> Check:
    value = m["rhat/max"]
    if math.isnan(value):
        return Check("look", "R-hat", "–", "not measured: it needs 2 chains and 4 samples of each")
    level = _grade(value, 1.05, 1.2)
    words = {
        "ok": "chains agree",
        "look": "chains agree only roughly: sample longer",
        "bad": "chains disagree: they have not reached one distribution, sample longer or change lr",
    }
    return Check(level, "R-hat, largest", f"{value:.3f}", words[level])


def _ess(m: Mapping[str, float]) -> Check:
    value, samples = m["ess/min"], m["samples"]
    if math.isnan(value):
        return Check("look", "ESS", "–", "effective sample size not measured: it needs 4 samples of each chain")
    level = _grade(-value, -100, -20)
    words = {
        "ok": "enough independent draws for means",
        "look": "few independent draws: keep more samples, further apart",
        "bad": "too few independent draws for any average: sample much longer",
    }
    of = "" if math.isnan(samples) else f" of {samples:,.0f}"
    return Check(level, "ESS, smallest", f"{value:,.0f}{of}", words[level])


def _temperature(m: Mapping[str, float]) -> Check | None:
    meant, reached = m["temperature"], m["t_eff"]
    if meant == 0:
        return Check("look", "Temperature", "T = 0", "this is optimisation: an ensemble of solutions, not a posterior")
    if math.isnan(meant):
        return None
    if math.isnan(reached):
        return Check(
            "look", "Temperature", f"T = {meant:.3g}", "T_eff not measured: mini-batches may heat the chain unseen"
        )
    ratio = max(reached / meant, meant / max(reached, 1e-300))
    level, value = _grade(ratio, 1.5, 3.0), f"T_eff {reached:.3g}, T {meant:.3g}"
    if level == "ok":
        return Check(level, "Temperature", value, "mini-batches hardly heat the chain")
    if reached < meant:
        return Check(
            level, "Temperature", value, "the chain is colder than it should be: check lr, friction and clipping"
        )
    words = f"mini-batches heat the chain to T_eff = {reached:.3g}: a smaller lr or larger batch brings it closer to T"
    return Check(level, "Temperature", value, words)


def _average(m: Mapping[str, float]) -> Check | None:
    """By Jensen an average beats its samples in NLL; one that does not holds samples that should not be in it."""
    one, all_ = ({s: m[f"test/{row}/{s}"] for s in ("accuracy", "nll")} for row in ("one_sample", "bma"))
    if math.isnan(one["nll"] + all_["nll"]):
        return None
    worse_nll = all_["nll"] > 1.01 * one["nll"] + 1e-6
    worse_error = all_["accuracy"] < one["accuracy"] - 0.001
    level = LEVELS[worse_nll + worse_error]
    words = {
        "ok": "averaging helps, or at least does no harm",
        "look": f"the average is worse in {'NLL' if worse_nll else 'error'}: were samples kept before the chain settled?",
        "bad": "the average is worse than one sample: keep later samples, or sample longer",
    }
    value = f"NLL {one['nll']:.3f} → {all_['nll']:.3f}"
    return Check(level, "Average against one sample", value, words[level])


def _calibration(m: Mapping[str, float]) -> Check | None:
    value = m["test/bma/ece"]
    if math.isnan(value):
        return None
    level = _grade(value, 0.03, 0.1)
    words = {
        "ok": "confidence of the average matches its accuracy",
        "look": "confidence of the average is off: see the reliability diagram",
        "bad": "confidence of the average misleads: see the reliability diagram",
    }
    return Check(level, "Calibration error (ECE)", f"{value:.3f}", words[level])


def _weights(m: Mapping[str, float]) -> Check | None:
    value, samples = m["weight_ess"], m["samples"]
    if math.isnan(value):
        return None
    level = "ok" if value >= max(10.0, 0 if math.isnan(samples) else 0.1 * samples) else "look"
    of = "" if math.isnan(samples) else f" of {samples:,.0f}"
    words = {
        "ok": "many samples share the weight",
        "look": "a few samples carry the weighted average: prefer the plain one",
    }
    return Check(level, "ESS of importance weights", f"{value:,.1f}{of}", words[level])


def _bins(h: EnergyHistogram | None) -> Check | None:
    if h is None:
        return None
    if not h.ready:
        return Check(
            "look", "Energy bins", "–", "the pilot has not found the range of energies yet: nothing is weighted"
        )
    u = h.energies[np.isfinite(h.energies)]
    outside = float(np.mean((u < h.edges[0]) | (u > h.edges[-1]))) if len(u) else 0.0
    value = f"{100 * outside:.1f} % outside"
    if outside > 0.05:
        return Check(
            "look", "Energy bins", value, "psi is blind where the bins end: widen low and high, or run the pilot again"
        )
    if not h.frozen:
        return Check(
            "look", "Energy bins", value, "psi still moves: no sample has an importance weight that means anything yet"
        )
    return Check("ok", "Energy bins", value, "they hold the energies and psi has settled")


def _warnings(warnings: Sequence[str]) -> Check:
    if not warnings:
        return Check("ok", "Warnings", "none", "the run had nothing to say")
    return Check("look", "Warnings", str(len(warnings)), "\n".join(warnings))


def _numbers_of(data: ReportData) -> dict[str, float]:
    """The metrics, NaN for what is null or absent."""
    return defaultdict(lambda: math.nan, {k: math.nan if v is None else float(v) for k, v in data.metrics.items()})


def _grade(value: float, ok: float, look: float) -> Level:
    return "ok" if value <= ok else "look" if value <= look else "bad"


def _banner(checks: Sequence[Check], data: ReportData) -> str:
    worst = max((c.level for c in checks), key=LEVELS.index)
    names = [c.name for level in ("bad", "look") for c in checks if c.level == level]
    about = f"<p>{'Fix' if worst == 'bad' else 'Look at'}: {_esc('; '.join(names))}.</p>" if names else ""
    mark = f'<span class="mark {worst}">{MARKS[worst]}</span>'
    return f'<div class="banner {worst}">{mark}<div><h2>{HEADLINES[worst]}</h2>{about}{_in_short(_numbers_of(data))}</div></div>'


def _in_short(m: Mapping[str, float]) -> str:
    """The result in one sentence."""
    one, all_ = m["test/one_sample/accuracy"], m["test/bma/accuracy"]
    if math.isnan(one + all_):
        return ""
    samples = "" if math.isnan(m["samples"]) else f" of {m['samples']:,.0f} networks"
    nll = "" if math.isnan(m["test/bma/nll"]) else f", NLL {m['test/bma/nll']:.3f} nats"
    return f"<p>The average{samples} errs on {100 * (1 - all_):.2f} % of the test set (one sample: {100 * (1 - one):.2f} %){nll}.</p>"


def _checks(checks: Iterable[Check]) -> str:
    rows = "".join(
        f'<tr class="{c.level}"><td><span class="mark {c.level}">{MARKS[c.level]}</span> {c.level}</td>'
        f"<th>{_esc(c.name)}</th><td class=number>{_esc(c.value)}</td><td class=words>{_lines(c.words)}</td></tr>"
        for c in checks
    )
    return f'<table class="checks">{rows}</table>'


def _facts(facts: Mapping[str, str]) -> str:
    rows = "".join(f"<tr><th>{_esc(k)}</th><td>{_esc(v)}</td></tr>" for k, v in facts.items())
    return f'<table class="facts">{rows}</table>' if rows else ""


def _scores(m: Mapping[str, float]) -> str:
    """Rows one sample ... weighted average; columns the scores on the test set, then smaller on the training set."""
    splits = [s for s in ("test", "train") if any(k.startswith(f"{s}/") and not math.isnan(v) for k, v in m.items())]
    if not splits:
        return ""
    weighted = any(not math.isnan(v) for k, v in m.items() if "/bma_weighted/" in k)
    head = "".join(f'<th colspan="{len(SCORES)}" class="{s}">{s}</th>' for s in splits)
    names = "".join(f'<th class="{s}">{name}</th>' for s in splits for name in SCORES.values())
    rows = [row for row in ROWS if weighted or row != "bma_weighted"]
    body = "".join(
        f"<tr><th>{ROWS[row]}</th>{''.join(_score(m, split, row, score, rows) for split in splits for score in SCORES)}</tr>"
        for row in rows
    )
    note = '<p class="note">Smaller is better everywhere; the best of the test set is bold. ECE: 15 bins. Brier: 0 to 2.</p>'
    return f'<table class="scores"><thead><tr><th></th>{head}</tr><tr><th></th>{names}</tr></thead>{body}</table>{note}'


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
    trace, h, curve = data.trace, data.histogram, data.curve
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
    body = "".join(
        f"<tr><th>{_esc(r.name)}</th>" + "".join(f"<td class=number>{v}</td>" for v in _row_cells(r)) + "</tr>"
        for r in rows
    )
    head = "".join(f"<th>{name}</th>" for name in ("", "mean", "std", "R-hat", "ESS"))
    note = '<p class="note">R-hat: rank-normalised, 1 where chains agree. ESS: how many independent draws these are worth.</p>'
    return f"<table><thead><tr>{head}</tr></thead>{body}</table>{note}"


def _row_cells(r: Row) -> list[str]:
    numbers = (f"{r.mean:,.4g}", f"{r.std:,.3g}", f"{r.rhat:.3f}", f"{r.ess:,.0f}")
    return ["–" if text == "nan" else text for text in numbers]


def _numbers(m: Mapping[str, float]) -> str:
    """What stands in metrics.json beside the scores."""
    rest = {k: v for k, v in m.items() if not (k.split("/")[0] in ("test", "train") and k.count("/") == 2)}
    rows = "".join(
        f"<tr><th>{_esc(k)}</th><td class=number>{'–' if math.isnan(v) else f'{v:,.5g}'}</td></tr>"
        for k, v in rest.items()
    )
    return f"<table>{rows}</table>" if rows else ""


def _section(title: str, body: str, size: str) -> str:
    return f'<section class="{size}"><h2>{_esc(title)}</h2>{body}</section>' if body else ""


def _esc(text: object) -> str:
    return html.escape(str(text))


def _lines(text: str) -> str:
    return "<br>".join(_esc(line) for line in text.splitlines())
