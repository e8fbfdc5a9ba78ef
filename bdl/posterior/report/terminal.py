"""The terminal's table of what `summarise` found, the facts of the chains, and the verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from bdl.display import count_of, figures, print_whole
from bdl.posterior.calibrated import sentence
from bdl.posterior.judge_law import by_direction, sampled_temperature
from bdl.posterior.judgements import or_nan
from bdl.posterior.report.numbers import AVERAGES, row_label, score_headings, shown_score
from bdl.posterior.target_values import Units
from bdl.posterior.verdict import verdict

OF_CHAINS = {"acceptance": "acceptance", "ELBO": "elbo", "weight ESS": "weight_ess"}
OF_CLASSES = ("balanced_accuracy", "auc", "average_precision")


def print_summary(metrics: Mapping[str, float], seconds: float = math.nan, class_names: Sequence[str] = (),
    units: Sequence[Units] = (),
) -> None:  # fmt: skip
    """Print what `summarise` found: scores of one sample and of averages, a line on the chains, last the verdict.

    seconds: of the run. units: of the targets of a regression; empty where they are not known.
    """
    console = Console()
    print_whole(_scores_table(metrics))
    facts = [*_of_targets(metrics, units), *_chain_facts(metrics, class_names)]
    console.print("; ".join(facts), soft_wrap=True, highlight=False)
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


def _of_targets(metrics: Mapping[str, float], units: Sequence[Units]) -> list[str]:
    """The RMSE in the units of each target; the table has those of the target that the network sees."""
    if (rmse := metrics.get("test/bma/rmse")) is None:
        return []
    one = {units[0].name: units[0].scale * rmse} if len(units) == 1 else {}
    each = one or {of.name: metrics.get(f"test/bma/{of.name}/rmse", math.nan) for of in units}
    texts = [f"{figures(value, 4)} in units of {name}" for name, value in each.items()]
    scale = f" (1 in the table is {units[0].scale:.4g})" if one and units[0].scale != 1 else ""
    return [f"RMSE {', '.join(texts)}{scale}" if texts else f"RMSE {figures(rmse, 4)} in units of y"]


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
