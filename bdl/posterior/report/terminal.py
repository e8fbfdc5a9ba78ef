"""The table of results on the terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from bdl.posterior.report.numbers import ROWS, row_label, scores_of, shown_score
from bdl.posterior.verdict import verdict


def print_summary(metrics: Mapping[str, float]) -> None:
    """Print the scores of one sample and of the averages, a line on the chains, and last the verdict.

    metrics: flat, as `summarise` gives them.
    """
    console = Console()
    console.print(_scores_table(metrics))
    console.print("; ".join(_chain_facts(metrics)), soft_wrap=True, highlight=False)
    judged = verdict(metrics)
    for text in (*(f"{question} {answer}" for question, answer in judged.answers), judged.line):
        console.print(text, soft_wrap=True, highlight=False, markup=False)


def _scores_table(metrics: Mapping[str, float]) -> Table:
    table = Table(box=None, pad_edge=False)
    scores = scores_of(metrics)
    first = next(iter(scores))
    others = [heading.removesuffix(" (nats)") for score, heading in scores.items() if score != first]
    for title in ("", f"test {scores[first]}", *others, f"train {scores[first]}"):
        table.add_column(title, justify="left" if not title else "right", no_wrap=not title)
    for key in ROWS:
        if any(f"{split}/{key}/{first}" in metrics for split in ("test", "train")):
            test = [shown_score(s, metrics.get(f"test/{key}/{s}", math.nan)) for s in scores]
            table.add_row(
                row_label(key, metrics), *test, shown_score(first, metrics.get(f"train/{key}/{first}", math.nan))
            )
    return table


def _chain_facts(metrics: Mapping[str, float]) -> list[str]:
    facts = [
        f"{metrics['samples']:.0f} samples of {metrics['chains']:.0f} chains",
        f"T {metrics['temperature']:g}, T_eff {_text(metrics['t_eff'])} (noise_ratio {_text(metrics['noise_ratio'])})",
        f"kinetic temperature {_text(metrics['kinetic_temperature'])}",
        f"R-hat max {_text(metrics['rhat/max'])}, ESS min {_text(metrics['ess/min'])}",
    ]
    swaps = [v for k, v in metrics.items() if k.startswith("swap_rate/")]
    optional = {"acceptance": metrics.get("acceptance"), "ELBO": metrics.get("elbo")}
    facts += [f"{name} {_text(value)}" for name, value in optional.items() if value is not None]
    facts += [f"swap rates {', '.join(_text(v) for v in swaps)}"] if swaps else []
    if "weight_ess" in metrics:
        facts.append(f"weight ESS {_text(metrics['weight_ess'])}")
    return facts


def _text(value: float) -> str:
    return "unknown" if math.isnan(value) else f"{value:.3g}"
