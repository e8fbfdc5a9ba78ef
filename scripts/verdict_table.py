"""How often the verdict is right, on simulated runs of known kinds: python scripts/verdict_table.py [--runs 20].

Prints the table of docs/verdict.md, and writes it to DIR/verdict.md, with its numbers in DIR/verdict.json.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from verdict_runs import Sampled, Scenario, SimulatedRun, simulate

import bdl
from bdl.posterior.judgements import OUTCOMES, Numbers, tolerance
from bdl.posterior.verdict import Verdict, verdict
from bdl.run.machine import device_name

# The predictions alone shall tell of drifts and frozen directions; the configurational temperature sees many of them.
UNSEEN = {"configurational_temperature": math.nan}
SCENARIOS = (
    Scenario("converged", "4 chains of 250 independent draws", True),
    Scenario("converged", "4 chains of 1,000 slow draws", True, draws=1000, slow=5),
    Scenario("converged", "8 chains of 100 independent draws", True, chains=8, draws=100),
    Scenario("converged", "8 chains of 400 slow draws", True, chains=8, draws=400, slow=4),
    Scenario("converged", "20 chains of 50 independent draws", True, chains=20, draws=50),
    Scenario("converged", "some directions ten times slower than others", True, draws=1000,
             slow=(1, 1, 2, 2, 3, 4, 5, 10)),
    Scenario("converged", "200 test items", True, items=200),
    Scenario("converged", "numbers, 4 chains of 300 independent draws", True, draws=300, numbers=True),
    Scenario("converged", "numbers, 8 chains of 400 slow draws", True, chains=8, draws=400, slow=4, numbers=True),
    Scenario("converged", "huge logits: networks of ± 20 that differ", True, chains=8, draws=400, level=20,
             signal=30),
    Scenario("converged", "huge logits: networks of ± 100 that differ", True, chains=8, level=100, signal=150),
    Scenario("converged", "heavy tails: Student's law with 3 degrees of freedom", True, draws=500, tails=3,
             metrics=UNSEEN),
    Scenario("converged", "T_eff is 1.1 T, 4 chains of 300 independent draws", True, draws=300, heat=1.1),
    Scenario("converged", "two modes 2 std apart that all chains visit", True, draws=600, apart=2, switch=0.3),
    Scenario("converged", "importance weights worth 400 of 1,000 samples", True,
             metrics={"weight_ess": 400.0, "weights_biased": 0.0}),
    Scenario("converged", "SGLD, lr = 0.1", True, draws=400, sampler=Sampled(bdl.SGLD(), 0.1)),
    Scenario("converged", "SGHMC, lr = 0.3", True, draws=400, sampler=Sampled(bdl.SGHMC(0.3), 0.3)),
    Scenario("converged", "BAOAB at a third of its largest step", True, draws=400,
             sampler=Sampled(bdl.BAOAB(0.5), 1.0)),
    Scenario("converged", "numbers, 10 chains of 100 draws, two for each independent one", True, chains=10, draws=100,
             slow=2, numbers=True),
    Scenario("converged", "numbers, heavy tails: Student's law with 3 degrees of freedom, 8 chains", True, chains=8,
             draws=300, tails=3, numbers=True, metrics=UNSEEN),
    Scenario("converged", "numbers, two modes 4 std apart that all chains visit", True, draws=1000, apart=4, switch=0.3,
             numbers=True),
    Scenario("converged", "numbers, of whose variance the inputs explain a fifth", True, chains=8, level=0.2,
             signal=0.5, numbers=True),
    Scenario("converged", "a rare class: about 1 of 11 of 50 items", True, chains=8, shift=-3),
    Scenario("converged", "a rare class: about 1 of 11 of 200 items", True, chains=8, items=200, shift=-3),
    Scenario("converged", "long memory: 1/3 of the variance is 40 times slower, 8 chains of 1,000", True, chains=8,
             draws=1000, memory=(1 / 3, 40)),
    Scenario("converged", "half of 8 chains move 8 times slower, 500 draws", True, chains=8, draws=500,
             slow_chains=(4, 8)),
    Scenario("converged", "numbers, one of 8 chains moves 10 times slower, 500 draws", True, chains=8, draws=500,
             slow_chains=(1, 10), numbers=True),
    Scenario("short", "the draws are worth 20", False, slow=50),
    Scenario("short", "the draws are worth 60, 8 chains", False, chains=8, draws=200, slow=80 / 3),
    Scenario("short", "the draws are worth 80, numbers", False, draws=400, slow=20, numbers=True),
    Scenario("short", "burn-in kept: 4 std away at first", False, draws=500, slow=40, start=4),
    Scenario("short", "burn-in kept: 10 std away at first, and soon there", False, draws=500, slow=12, start=10),
    Scenario("short", "SGHMC from 5 std away, without burn-in, lr = 0.001", False, draws=100, start=5,
             sampler=Sampled(bdl.SGHMC(0.3), 0.001, burn_in=0)),
    Scenario("short", "long memory: 1/3 of the variance is 250 times slower, 4 chains of 500", False, draws=500,
             memory=(1 / 3, 250)),
    Scenario("short", "numbers, one of 4 chains moves 100 times slower", False, draws=300, slow_chains=(1, 100),
             numbers=True),
    Scenario("drift", "one direction 1.5 -> 1.2 std, 4,000 draws", False, draws=1000, drift=(1.5, 1.2),
             metrics=UNSEEN),
    Scenario("drift", "all directions 0.5 -> 0.4 std, 4,000 draws", False, draws=1000, drift=(0.5, 0.4), along="all",
             metrics=UNSEEN),
    Scenario("drift", "all items 0.6 -> 0.3 std, 1,000 draws", False, drift=(0.6, 0.3), along="items", metrics=UNSEEN),
    Scenario("drift", "all items 0.6 -> 0.3 std, 8 chains of 400 slow draws, numbers", False, chains=8, draws=400,
             slow=4, drift=(0.6, 0.3), along="items", numbers=True, metrics=UNSEEN),
    Scenario("drift", "all directions 0.6 -> 0.3 std, 1,000 draws", False, drift=(0.6, 0.3), along="all",
             metrics=UNSEEN),
    Scenario("drift", "the width of all directions 1 -> 0.8 of the right one, 4,000 draws", False, draws=1000,
             drift=(1, 0.8), along="spread", metrics=UNSEEN),
    Scenario("drift", "numbers, the width of all directions 1 -> 1.3, 8 chains of 400 slow draws", False, chains=8,
             draws=400, slow=2, drift=(1, 1.3), along="spread", numbers=True, metrics=UNSEEN),
    Scenario("drift", "3 of 50 items 0.5 -> -0.5 std, 2,000 draws", False, draws=500, drift=(0.5, -0.5), along="items",
             touched=3, metrics=UNSEEN),
    Scenario("frozen", "1 of 8 directions, from one start", False, frozen=1, metrics=UNSEEN),
    Scenario("frozen", "4 of 8 directions, from one start, 8 chains", False, chains=8, frozen=4, metrics=UNSEEN),
    Scenario("frozen", "4 of 8 directions, from one start, numbers, slow draws", False, draws=1000, slow=4, frozen=4,
             numbers=True, metrics=UNSEEN),
    Scenario("frozen", "1 of 8 directions, from starts 0.1 std apart", False, frozen=1, starts=0.1, metrics=UNSEEN),
    Scenario("frozen", "2 of 8 directions, from starts 0.3 std apart", False, frozen=2, starts=0.3, metrics=UNSEEN),
    Scenario("stuck", "modes 1/2 std apart, 4 chains", False, draws=500, apart=0.5),
    Scenario("stuck", "modes 1/2 std apart, 8 chains", False, chains=8, draws=250, apart=0.5),
    Scenario("stuck", "modes 1/2 std apart, half of 8 chains move 8 times slower, 500 draws", False, chains=8,
             draws=500, apart=0.5, slow_chains=(4, 8)),
    Scenario("stuck", "modes 3 std apart, 4 chains", False, apart=3),
    Scenario("stuck", "modes 3 std apart, 4 chains that change once in 250", False, apart=3, switch=1 / 250),
    Scenario("stuck", "numbers, modes 1/2 std apart, 20 chains", False, chains=20, draws=100, apart=0.5, numbers=True),
    Scenario("stuck", "one of 8 chains lies 2 std from the others", False, chains=8, draws=200, stray=True),
    Scenario("stuck", "modes 2 std apart at 3 of 50 items, 8 chains", False, chains=8, apart=2, touched=3),
    Scenario("stuck", "one of 8 chains stops after 2/3 of the draws", False, chains=8, draws=300, stopped=1 / 3,
             metrics=UNSEEN),
    Scenario("stuck", "numbers, one of 10 chains never moves", False, chains=10, draws=200, stopped=1, numbers=True,
             metrics=UNSEEN),
    Scenario("hot", "T_eff is 1.5 T", False, draws=300, heat=1.5),
    Scenario("hot", "kinetic temperature of 3 T, which alone was measured", False, draws=300,
             metrics={"kinetic_temperature": 3.0, "t_eff": math.nan, "configurational_temperature": math.nan}),
    Scenario("hot", "2 T, of which only the parameters tell", False, draws=300, heat=2.0,
             metrics={"t_eff": 1.0, "kinetic_temperature": math.nan}),
    Scenario("hot", "1.3 T, of which only the parameters tell", False, draws=300, heat=1.3,
             metrics={"t_eff": 1.0, "kinetic_temperature": 1.0}),
    Scenario("hot", "half of T, of which only the parameters tell", False, draws=300, heat=0.5,
             metrics={"t_eff": 1.0, "kinetic_temperature": math.nan}),
    Scenario("hot", "SGHMC with batch noise, T_eff is 2 T", False, draws=400,
             sampler=Sampled(bdl.SGHMC(0.3), 0.1, gradient_noise=math.sqrt(6))),
    Scenario("hot", "SGHMC at a third of its largest step: 1.5 T", False, draws=400,
             sampler=Sampled(bdl.SGHMC(0.3), 1.2)),
    Scenario("hot", "SGLD at nine tenths of its largest step: 10 T", False, draws=400,
             sampler=Sampled(bdl.SGLD(), 1.8)),
    Scenario("diverged", "logits of 30, the same for all chains", False, level=30, chance=True),
    Scenario("diverged", "numbers: outputs 10 std away", False, level=10, chance=True, numbers=True),
    Scenario("diverged", "numbers: right on average, and 5 times too wide", False, level=5, signal=8, wide=True,
             numbers=True),
    Scenario("diverged", "accuracy at chance", False, level=0.1, chance=True),
    Scenario("diverged", "a rare class, and nothing learnt", False, chains=8, level=0.1, shift=-3, chance=True),
    Scenario("weights", "importance weights worth 1.5 of 2,000 samples", False, draws=500,
             metrics={"weight_ess": 1.5, "weights_biased": 0.0}),
    Scenario("weights", "importance weights that cannot be had", False, metrics={"weight_ess": math.nan}),
    Scenario("tiny", "4 chains of 10 independent draws", False, draws=10),
    Scenario("tiny", "20 chains of 5 independent draws", False, chains=20, draws=5),
    Scenario("tiny", "1 chain of 1,000 independent draws", False, chains=1, draws=1000),
    Scenario("tiny", "2 chains of 500 independent draws, in one of two modes", False, chains=2, draws=500),
    Scenario("between", "1 test item", None, items=1),
    Scenario("between", "5 test items", None, items=5),
    Scenario("between", "the draws are worth 200", None, slow=5),
    Scenario("between", "the draws are worth 400", None, draws=400, slow=4),
    Scenario("between", "T_eff is 1.25 T", None, draws=300, heat=1.25),
    Scenario("between", "modes 1/4 std apart, 8 chains", None, chains=8, draws=250, apart=0.25),
    Scenario("between", "one direction 1.5 -> 1.2 std, 1,000 draws", None, drift=(1.5, 1.2), metrics=UNSEEN),
    Scenario("between", "all directions 0.5 -> 0.4 std, 1,000 draws", None, drift=(0.5, 0.4), along="all",
             metrics=UNSEEN),
)  # fmt: skip


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
    """The rows of the scenarios."""
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
    lines = [f"| | simulated run | {' | '.join(OUTCOMES)} | error | repeats |", "|" + "---|" * (len(OUTCOMES) + 4)]
    for row in rows:
        counts = Counter(v.outcome for v in row.verdicts)
        numbers = [str(counts[outcome] or "") for outcome in OUTCOMES]
        cells = [row.scenario.group, row.scenario.name, *numbers, f"{row.error:.1f}", str(row.repeated)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def record(rows: Sequence[Row]) -> dict[str, Any]:
    """The numbers of the table, and where and when they were made."""
    about = {"bdl": bdl.__version__, "device": device_name(), "date": date.today().isoformat()}
    (wrong, of_wrong), (right, of_right) = rates(rows, False), rates(rows, True)
    kinds = [
        {
            "group": row.scenario.group,
            "name": row.scenario.name,
            **{outcome: sum(v.outcome == outcome for v in row.verdicts) for outcome in OUTCOMES},
            "error": row.error,
            "repeats": row.repeated,
            "runs": len(row.runs),
        }
        for row in rows
    ]
    return about | {
        "trust where it is wrong": wrong,
        "runs where it is wrong": of_wrong,
        "no trust where it is right": of_right - right,
        "runs where it is right": of_right,
        "core_seconds": round(time.process_time(), 1),
        "kinds": kinds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20, help="of each scenario")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results", metavar="DIR")
    arguments = parser.parse_args()
    rows = judged(SCENARIOS, arguments.runs)
    numbers = record(rows)
    about = f"bdl {numbers['bdl']}, one core of {numbers['device']}, {numbers['date']}"
    (arguments.out / "verdict.json").write_text(json.dumps(numbers, indent=1) + "\n")
    (arguments.out / "verdict.md").write_text(f"{about}\n\n{by_scenario(rows)}\n")
    print(by_scenario(rows))
    for rate, of in (
        ("trust where it is wrong", "runs where it is wrong"),
        ("no trust where it is right", "runs where it is right"),
    ):
        print(f"{rate}: {numbers[rate]} of {numbers[of]} runs")


if __name__ == "__main__":
    main()
