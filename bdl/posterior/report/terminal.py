"""The terminal's table of what `summarise` found, the facts of the chains, and the verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from bdl.display import count_of, print_whole
from bdl.posterior.calibrated import sentence
from bdl.posterior.judge_law import by_direction, sampled_temperature
from bdl.posterior.judgements import or_nan
from bdl.posterior.report.numbers import AVERAGES, row_label, score_headings, shown_score
from bdl.posterior.verdict import verdict

OF_CHAINS = {"acceptance": "acceptance", "ELBO": "elbo", "weight ESS": "weight_ess"}
OF_CLASSES = ("balanced_accuracy", "auc", "average_precision")


def print_summary(metrics: Mapping[str, float], seconds: float = math.nan, class_names: Sequence[str] = ()) -> None:
    """Print what `summarise` found: scores of one sample and of averages, a line on the chains, last the verdict.

    seconds: of the run.
    """
    console = Console()
    print_whole(_scores_table(metrics))
    console.print("; ".join(_chain_facts(metrics, class_names)), soft_wrap=True, highlight=False)
    judged = verdict({**metrics, "seconds": seconds})
    for text in (*(f"{question} {answer}" for question, answer in judged.answers), judged.line):
        console.print(text, soft_wrap=True, highlight=False, markup=False)


def _scores_table(metrics: Mapping[str, float]) -> Table:
    table = Table(box=None, pad_edge=False)
    scores = score_headings(metrics)
    first = next(iter(scores))
    others = [heading.removesuffix(" (nats)") for score, heading in scores.items() if score != first]
    for title in ("", f"test {scores[first]}", *others, f"train {scores[first]}"):
        table.add_column(title, justify="left" if not title else "right", no_wrap=not title)
    for key in AVERAGES:
        if any(f"{split}/{key}/{first}" in metrics for split in ("test", "train")):
            test = [shown_score(s, metrics.get(f"test/{key}/{s}", math.nan)) for s in scores]
            train = shown_score(first, metrics.get(f"train/{key}/{first}", math.nan))
            table.add_row(row_label(key, metrics), *test, train)
    return table


def _chain_facts(metrics: Mapping[str, float], class_names: Sequence[str]) -> list[str]:
    m = or_nan(metrics)
    measured = [f"T sampled {sampled_temperature(m)}"] if by_direction(m) and m["temperature"] > 0 else []
    heat = f"T_eff {_text(metrics['t_eff'])}, the mean over directions (noise_ratio {_text(metrics['noise_ratio'])})"
    facts = [
        f"{count_of(int(metrics['samples']), 'sample')} of {count_of(int(metrics['chains']), 'chain')}",
        f"T {metrics['temperature']:g}, {heat}",
        *measured,
        f"kinetic temperature {_text(metrics['kinetic_temperature'])}",
        f"R-hat max {_text(metrics['rhat/max'])}, ESS min {_text(metrics['ess/min'])}",
    ]
    swaps = [v for k, v in metrics.items() if k.startswith("swap_rate/")]
    optional = {name: metrics.get(key) for name, key in OF_CHAINS.items()}
    optional |= {name.replace("_", " "): metrics.get(f"test/bma/{name}") for name in OF_CLASSES}
    facts += [f"{name} {_text(value)}" for name, value in optional.items() if value is not None]
    facts += [f"swap rates {', '.join(_text(v) for v in swaps)}"] if swaps else []
    facts += [text] if (text := sentence(metrics, class_names)) else []
    return facts


def _text(value: float) -> str:
    return "unknown" if math.isnan(value) else f"{value:.3g}"
