"""How often the verdict is right, on simulated runs of known kinds: python scripts/experiment.py verdict [--runs 20].

Prints the table that docs/verdict.md sums up, and writes it to DIR/verdict.md, with its numbers in DIR/verdict.json.
"""

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from tools.command import Said
from tools.results import RESULTS, about, markdown, origin, save

from bdl.posterior.judgements import OUTCOMES, Numbers, tolerance
from bdl.posterior.verdict import Verdict, verdict
from experiments.verdict.kinds import SCENARIOS
from experiments.verdict.runs import Scenario, SimulatedRun, simulate


@dataclass(frozen=True)
class Row:
    """The verdicts on the runs of one scenario."""

    scenario: Scenario
    runs: Sequence[SimulatedRun]
    verdicts: Sequence[Verdict]

    @property
    def trusted(self) -> int:
        return sum(v.outcome == "trust" for v in self.verdicts)

    @property
    def repeated(self) -> int:
        """How many runs say that another run would predict the same."""
        return sum(v.repeats.outcome == "trust" for v in self.verdicts)

    @property
    def error(self) -> float:
        """What 90 % of the items' averages scatter by from run to run at most, over the tolerance of the verdict."""
        std = np.std([run.averages for run in self.runs], axis=0, ddof=1)
        numbers = Numbers({k: float(v) for k, v in self.runs[0].metrics.items()})
        scale = math.sqrt(1 + self.scenario.level**2) if self.scenario.numbers else 1.0
        return float(np.quantile(std, 0.9)) / scale / tolerance(numbers)


def judged(scenarios: Sequence[Scenario], runs: int) -> list[Row]:
    rows = []
    for scenario in scenarios:
        made = simulate(scenario, runs)
        rows.append(Row(scenario, made, [verdict(run.metrics) for run in made]))
    return rows


def rates(rows: Sequence[Row], right: bool) -> tuple[int, int]:
    """(runs that are trusted, all runs) of the scenarios in which trust would be right, or wrong."""
    chosen = [row for row in rows if row.scenario.right is right]
    return sum(row.trusted for row in chosen), sum(len(row.runs) for row in chosen)


def by_scenario(rows: Sequence[Row]) -> str:
    cells = []
    for row in rows:
        counts = Counter(v.outcome for v in row.verdicts)
        numbers = [str(counts[outcome] or "") for outcome in OUTCOMES]
        cells.append([row.scenario.group, row.scenario.name, *numbers, f"{row.error:.1f}", str(row.repeated)])
    return markdown(["", "simulated run", *OUTCOMES, "error", "repeats"], cells)


def record(rows: Sequence[Row]) -> dict[str, Any]:
    """The numbers of the table, and where and when they were made."""
    (wrong, of_wrong), (right, of_right) = rates(rows, False), rates(rows, True)
    kinds = [
        {
            "group": row.scenario.group,
            "name": row.scenario.name,
            **{outcome: sum(v.outcome == outcome for v in row.verdicts) for outcome in OUTCOMES},
            "error": row.error,
            "repeats": row.repeated,
            "good ensembles": sum(v.head.kind == "good ensemble" for v in row.verdicts),
            "runs": len(row.runs),
        }
        for row in rows
    ]
    return about() | {
        "trust where it is wrong": wrong,
        "runs where it is wrong": of_wrong,
        "no trust where it is right": of_right - right,
        "runs where it is right": of_right,
        "core_seconds": round(time.process_time(), 1),
        "kinds": kinds,
    }


def main(
    *,
    runs: Annotated[int, Said("of each scenario")] = 20,
    out: Annotated[Path, Said(metavar="DIR")] = RESULTS,
) -> None:
    rows = judged(SCENARIOS, runs)
    numbers = record(rows)
    save(out / "verdict.json", numbers, f"{origin(numbers)}\n\n{by_scenario(rows)}")
    print(by_scenario(rows))
    for rate, of in (
        ("trust where it is wrong", "runs where it is wrong"),
        ("no trust where it is right", "runs where it is right"),
    ):
        print(f"{rate}: {numbers[rate]} of {numbers[of]} runs")
