"""Tables of docs/results.md and of the README stand in committed results, which scripts/bench_*.py write."""

from __future__ import annotations

import json
import statistics

import pytest
from pages import README, ROOT

PAGE = ROOT / "docs" / "results.md"
RESULTS = ROOT / "scripts" / "results" / "tables"


def rows_of(heading: str) -> list[str]:
    """Lines of the tables in a section of docs/results.md."""
    _, _, after = PAGE.read_text().partition(f"{heading}\n")
    return [line for line in after.partition("\n## ")[0].splitlines() if line.startswith("| ")]


def test_rows_of_candidates_are_those_that_were_measured():
    shown, measured = (
        rows_of("## Tables: what chose the defaults"),
        (RESULTS / "candidates.md").read_text().splitlines(),
    )
    assert len(shown) == 5 and [line for line in shown if line not in measured] == []


def spread(values: list[float], digits: int) -> str:
    return f"{statistics.mean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}"


@pytest.fixture
def default_runs() -> list[dict]:
    return json.loads((RESULTS / "landsat-default.json").read_text())["runs"]


def test_the_default_is_shown_as_it_was_measured(default_runs):
    fields = [("rhat/max", 3), ("ess/min", 0), ("mcse/most", 4)]
    cells = [
        spread([100 * (1 - run["bma"]["accuracy"]) for run in default_runs], 2),
        spread([run["bma"]["nll"] for run in default_runs], 4),
        *(spread([run[name] for run in default_runs], digits) for name, digits in fields),
        ", ".join(run["verdict"] for run in default_runs),
        spread([run["core_seconds"] for run in default_runs], 0),
    ]
    assert rows_of("### The default")[1] == f"| {' | '.join(cells)} |"


def test_the_readme_says_what_the_default_gave(default_runs):
    error = spread([100 * (1 - run["bma"]["accuracy"]) for run in default_runs], 2)
    nll = spread([run["bma"]["nll"] for run in default_runs], 4)
    assert f"{error} %, its NLL {nll}" in README.read_text()


METHODS = {
    "MCLMC with `energy_var=0.1`": "mclmc",
    "MCLMC with `energy_var=0.0005`": "mclmc-fine",
    "MCLMC from an ensemble (MILE)": "mile",
    "NUTS": "nuts",
    "HMC": "hmc",
    "HMC with diagonal masses": "hmc-mass",
    "SGHMC": "sghmc",
    "SGNHT": "sgnht",
    "pSGLD": "psgld",
    "cyclical SGHMC": "cyclical",
    "SGLD": "sgld",
    "MultiSWAG": "multiswag",
    "SWAG": "swag",
    "deep ensemble of 8": "ensemble",
    "last-layer Laplace": "laplace",
    "one network": "network",
}


def test_distances_of_methods_are_those_that_were_measured():
    problems = json.loads((ROOT / "scripts" / "results" / "leaderboard" / "leaderboard.json").read_text())["problems"]

    def cell(problem: str, method: str) -> str:
        runs = problems[problem]["runs"]
        longest = max(run["passes"] for run in runs)
        found = [r["distance"] for r in runs if r["method"] == method and r["passes"] == longest and r["distance"]]
        return f"{found[0]:.3f}" if found and found[0] < 5 else "–"

    _, _, after = (ROOT / "docs" / "samplers.md").read_text().partition("## Measured on your machine\n")
    shown = [line for line in after.partition("\n## ")[0].splitlines() if line.startswith("| ")][1:]
    columns = ("landsat", "airfoil", "diabetes", "cifar")
    rows = [[name, *(cell(column, method) for column in columns)] for name, method in METHODS.items()]
    assert shown == [f"| {' | '.join(row)} |" for row in rows]
