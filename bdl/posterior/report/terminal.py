"""How a posterior is shown: the table on the terminal and the report page."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from bdl.posterior.predict import Posterior
from bdl.posterior.report.figures import EnergyHistogram
from bdl.posterior.report.numbers import Summary, Trace
from bdl.posterior.report.page import ROWS, ReportData, write_report
from bdl.posterior.store import SampleStore


def print_summary(metrics: Mapping[str, float]) -> None:
    """One table: one sample, one chain's average and all chains' average, test and train, with T and T_eff below."""
    table = Table(box=None, pad_edge=False)
    for title in ("", "test error %", "NLL", "ECE", "Brier", "train error %"):
        table.add_column(title, justify="left" if not title else "right")
    for key, label in ROWS.items():
        if f"test/{key}/accuracy" in metrics:
            test, train = (_scores(metrics, split, key) for split in ("test", "train"))
            table.add_row(label, *test, train[0])
    console = Console()
    console.print(table)
    parts = [
        f"{metrics['samples']:.0f} samples of {metrics['chains']:.0f} chains",
        f"T {metrics['temperature']:g}, T_eff {_text(metrics['t_eff'])} (noise_ratio {_text(metrics['noise_ratio'])})",
        f"kinetic temperature {_text(metrics['kinetic_temperature'])}",
        f"R-hat max {_text(metrics['rhat/max'])}, ESS min {_text(metrics['ess/min'])}",
    ]
    swaps = [v for k, v in metrics.items() if k.startswith("swap_rate/")]
    known = {"acceptance": metrics.get("acceptance"), "ELBO": metrics.get("elbo")}
    parts += [f"{name} {_text(value)}" for name, value in known.items() if value is not None]
    parts += [f"swap rates {', '.join(_text(v) for v in swaps)}"] if swaps else []
    if "weight_ess" in metrics:
        parts.append(f"weight ESS {_text(metrics['weight_ess'])}")
    console.print("; ".join(parts), soft_wrap=True, highlight=False)


def write_page(
    path: Path, posterior: Posterior, summary: Summary, facts: Mapping[str, str], explain: str, trace: Trace | None
) -> None:
    """The report of one run, or of several merged; without a trace, the energies of the kept samples are shown."""
    test = next(iter(summary.evaluations.values()))
    columns = {k: v.numpy() for k, v in trace.items()} if trace else _kept_energies(posterior)
    store = posterior.stores[0]
    data = ReportData(
        title=facts.get("title", path.parent.name),
        facts={k: v for k, v in facts.items() if k != "title"},
        explain=explain,
        metrics=summary.metrics,
        trace=columns,
        kept_steps=sorted({r.step for r in posterior.records}),
        histogram=_histogram(store, posterior.records[0].stack),
        reliability={
            "one sample": (test.one_sample[0], test.labels),
            "average of all chains": (test.bma, test.labels),
        },
        curve=test.curve,
        convergence=summary.convergence,
        warnings=summary.warnings,
    )
    write_report(path, data)


def _kept_energies(posterior: Posterior) -> dict[str, np.ndarray]:
    """Batch energies of the kept samples, where no trace of the whole chain is at hand."""
    draws = np.asarray(posterior.to_arviz()["posterior"].dataset["energy_batch"]).T  # (draws, chains)
    steps = sorted({r.step for r in posterior.records})[: len(draws)]
    return {"step": np.asarray(steps, dtype=float), "energy": draws[: len(steps)]}


def _histogram(store: SampleStore, stack: int) -> EnergyHistogram | None:
    saved = store.weighting(stack)
    if saved is None or bool(saved["edges"].isnan().any()):
        return None
    records = [r for r in store.records() if r.stack == stack]
    about = store.about_weighting(stack)
    own = len(saved["edges"]) > 1  # one psi per chain: show the first chain's, with its own energies
    return EnergyHistogram(
        edges=saved["edges"][0].numpy(),
        log_psi=saved["log_psi"][0].numpy(),
        energies=(saved["recent_energies"][:, 0] if own else saved["recent_energies"].flatten()).numpy(),
        zeta=float(saved["zeta"][0]),
        temperature=float(saved["temperature"][0]),
        kind=about["energy"],
        frozen=records[-1].psi_frozen,
        cumulative=about["weighting"] != "Contour",
    )


def _scores(metrics: Mapping[str, float], split: str, key: str) -> list[str]:
    accuracy, nll, ece, brier = (
        metrics.get(f"{split}/{key}/{m}", math.nan) for m in ("accuracy", "nll", "ece", "brier")
    )
    return [f"{100 * (1 - accuracy):.2f}", f"{nll:.4f}", f"{ece:.4f}", f"{brier:.4f}"]


def _text(value: float) -> str:
    return "not known" if math.isnan(value) else f"{value:.3g}"
