"""Learning coefficients of networks whose values are known: python scripts/experiment.py learning_coefficients [OUT].

Linear networks y = B A x (reduced-rank regression) at their most singular minimum, and a regular model. Each row has
the coefficient of the limit N -> ∞, the expectation of the estimator at this N by Gibbs sampling or by a formula, what
`bdl.learning_coefficient` finds with its default settings, and its distance in standard errors.
"""

import math
import time
from pathlib import Path
from typing import Any

import torch
from literature.targets.reduced_rank import ReducedRank, regular
from tools.results import RESULTS, about, markdown, save
from torch import nn

import bdl

MODELS = [(1, 1, 1, 0), (2, 2, 2, 0), (2, 2, 2, 1), (2, 5, 2, 1), (3, 2, 5, 1), (4, 3, 4, 1)]
LARGE = [(1, 1, 1, 0), (2, 2, 2, 1)]  # once more, at ten times the items
STEP_SIZES = [(0.0193, 16_000), (0.00483, 24_000)]  # the one that is found for (2, 2, 2, 1), and a quarter of it
NLL = bdl.GaussianNLL(1.0)


def row(name: str, limit: float, multiplicity: str, expected: tuple[float, float], found: Any, seconds: float) -> dict:
    error = math.hypot(found.std_error, expected[1])
    return {
        "model": name, "N": found.num_data, "parameters": found.parameters, "limit": limit,
        "multiplicity": multiplicity,
        "expected": expected[0], "value": found.value, "std_error": found.std_error,
        "z": (found.value - expected[0]) / error, "sound": found.sound, "core_seconds": seconds,
    }  # fmt: skip


def of_model(sizes: tuple[int, int, int, int], n: int, steps: int) -> dict:
    model, began = ReducedRank(*sizes), time.process_time()
    found = bdl.learning_coefficient(model.network(), NLL, [model.items()], num_data=n, steps=steps)
    seconds = time.process_time() - began
    expected = model.expected(n, found.temperature, found.localization, chains=500, sweeps=n)
    M, H, N, r = sizes
    inside = N + r <= M + H and M + r <= N + H and H + r <= M + N
    multiplicity = "2" if inside and (M + H + N + r) % 2 else "1"
    return row("(M, H, N, r) = " + str(sizes), model.coefficient, multiplicity, expected, found, seconds)


def of_regression(n: int) -> dict:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(n, 4, dtype=torch.float64, generator=draw)
    torch.manual_seed(0)
    net, began = nn.Linear(4, 2).double(), time.process_time()
    found = bdl.learning_coefficient(net, NLL, [(x, net(x).detach())])
    seconds = time.process_time() - began
    ones = torch.cat([x, torch.ones(n, 1, dtype=torch.float64)], 1)
    h = torch.linalg.eigvalsh(ones.T @ ones / n).repeat(2)
    expected = regular(h, n, found.temperature, found.localization)
    return row("linear regression", 5.0, "1", (expected, 0.0), found, seconds)


def at_step_size(sizes: tuple[int, int, int, int], lr: float, steps: int) -> dict:
    """A longer run at a step size that is given, which tells its error."""
    model = ReducedRank(*sizes)
    found = bdl.learning_coefficient(
        model.network(), NLL, [model.items()], num_data=1000, chains=24, steps=steps, lr=lr, seed=5
    )
    return {"model": str(sizes), "lr": lr, "steps": steps, "value": found.value, "std_error": found.std_error}


def table(rows: list[dict]) -> str:
    head = "model", "N", "parameters", "λ, multiplicity", "E[λ̂] at N", "λ̂", "errors away", "verdict", "core-seconds"
    lines = []
    for r in rows:
        known = [str(r["parameters"]), f"{r['limit']:g}, {r['multiplicity']}", f"{r['expected']:.3f}"]
        value = [f"{r['value']:.3f} ± {r['std_error']:.3f}", f"{r['z']:+.1f}", "sound" if r["sound"] else "not sound"]
        lines.append([r["model"], f"{r['N']:,}", *known, *value, f"{r['core_seconds']:.0f}"])
    return markdown(head, lines)


def main(out: Path = RESULTS / "learning_coefficients") -> None:
    rows = [of_regression(1000), *(of_model(sizes, 1000, 4000) for sizes in MODELS)]
    rows += [of_model(sizes, 10_000, 20_000) for sizes in LARGE]
    step_sizes = [at_step_size((2, 2, 2, 1), *settings) for settings in STEP_SIZES]
    save(out / "learning_coefficients.json", {**about(), "rows": rows, "step_sizes": step_sizes}, table(rows))
    print(table(rows))
