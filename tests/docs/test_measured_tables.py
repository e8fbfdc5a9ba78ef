"""Tables of docs/results.md stand in a committed result: `scripts/bench_candidates.py` writes the rows."""

from __future__ import annotations

from pages import ROOT

RESULTS = ROOT / "scripts" / "results" / "tables"


def test_rows_of_candidates_are_those_that_were_measured():
    section = (
        (ROOT / "docs" / "results.md").read_text().split("## Tables: what chose the defaults")[1].split("\n## ")[0]
    )
    shown = [line for line in section.splitlines() if line.startswith("| ")]
    measured = (RESULTS / "candidates.md").read_text().splitlines()
    assert len(shown) == 5 and [line for line in shown if line not in measured] == []
