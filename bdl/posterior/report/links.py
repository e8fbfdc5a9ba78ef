"""Where on the page one sees what a check is about."""

from __future__ import annotations

import re
from collections.abc import Sequence

PREDICTIONS, CONVERGENCE = "Predictions", "Convergence"
# Check -> beginnings of titles of sections; the first that is on the page counts.
SEEN_IN = {
    "Monte Carlo error": ("Accuracy and NLL", "RMSE and NLL", CONVERGENCE),
    "Temperature": ("Learning rate",),
    "T_eff": ("Learning rate",),
    "Kinetic temperature": ("Learning rate",),
    "Configurational temperature": ("Learning rate",),
    "Level of single samples": (PREDICTIONS,),
    "Average against a constant": (PREDICTIONS,),
    "Average against the start": (PREDICTIONS,),
    "Width against residuals": ("Calibration of quantiles", PREDICTIONS),
    "Chains against each other": (CONVERGENCE,),
    "R-hat (largest)": (CONVERGENCE,),
    "ESS (smallest)": (CONVERGENCE,),
    "ESS of the tails": (CONVERGENCE,),
    "Drift of predictions": (CONVERGENCE,),
    "Slowest direction": (CONVERGENCE,),
    "Energy": ("Energy",),
    "Average against one sample": ("Accuracy and NLL", "RMSE and NLL", PREDICTIONS),
    "Calibration error (ECE)": ("Reliability", PREDICTIONS),
    "Calibration of intervals": ("Calibration of quantiles", PREDICTIONS),
    "ESS of importance weights": ("Energy histogram",),
    "Energy bins": ("Energy histogram",),
}


def anchor(title: str) -> str:
    """The id of a section.

    >>> anchor("Predictions against data, first of 2 targets")
    'predictions-against-data-first-of-2-targets'
    """
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def links_to(titles: Sequence[str]) -> dict[str, str]:
    """The ids of the sections to which checks point, by check, on a page with sections of these titles."""
    links = {}
    for check, beginnings in SEEN_IN.items():
        # An exact title comes before one that only begins like it: "Energy" is not "Energy histogram"
        found = [t for b in beginnings for t in sorted(titles, key=lambda t: t != b) if t.startswith(b)]  # noqa: B023
        if found:
            links[check] = anchor(found[0])
    return links
