"""Densities sampled by batches, against NUTS of another library (`tests/helpers/nuts_densities.py`).

Tests of `bdl.contrib.density.sample`, with what must not pass: a density without its Jacobian, too much batch noise.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from densities import MODELS
from torch.distributions import AffineTransform, ComposeTransform, ExpTransform, StickBreakingTransform

import bdl
from bdl.contrib.density.ordered import OrderedBijection
from bdl.contrib.density.parameters import DensityPosterior

pytestmark = pytest.mark.slow
REFERENCE = json.loads((Path(__file__).parents[1] / "helpers" / "nuts_densities.json").read_text())


class Forgotten(ExpTransform):
    """An exponential function that forgets its Jacobian."""

    def log_abs_det_jacobian(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(x)


def scaled(width: float | list[float], *further: Any) -> Any:
    """Free values in units of the posterior's widths: all directions are about equally steep, so that one lr suits all,
    and batches heat all alike."""
    return ComposeTransform([AffineTransform(0.0, torch.tensor(width)), *further])


RUNS: dict[str, dict[str, Any]] = {
    "eight_schools": dict(batch_size=None, steps=1600, lr=0.1, chains=64, constraints={"mu": scaled(3.0)}),
    "logistic": dict(
        batch_size=1000, steps=1500, lr=20.0, chains=32,
        constraints={
            "mu": scaled(0.3), "alpha": scaled(0.08), "beta": scaled(0.03), "tau": scaled(0.25, ExpTransform())
        },
    ),
    "mixture": dict(
        batch_size=500, steps=900, lr=5.0, chains=32,
        constraints={
            "means": scaled([0.027, 0.022, 0.012], OrderedBijection()), "std": scaled(0.018, ExpTransform()),
            "shares": scaled(0.05, StickBreakingTransform()),
        },
    ),
}  # fmt: skip


def sampled(name: str, run_dir: Path, **changed: Any) -> DensityPosterior:
    model, run = MODELS[name]().arguments(), {**RUNS[name], **changed}
    run["constraints"] = {**model["constraints"], **run.get("constraints", {})}
    return bdl.sample_density(**{**model, **run}, run_dir=run_dir, dynamics=bdl.BAOAB(0.1), accelerator="cpu")


def away(name: str, found: DensityPosterior) -> tuple[np.ndarray, np.ndarray]:
    """Of all numbers of all parameters: means, in standard errors from NUTS's; standard deviations over NUTS's."""
    table = found.summary()
    names = np.array([str(row).partition("[")[0] for row in table.index])
    errors, ratios = [], []
    for parameter, numbers in REFERENCE[name].items():
        mine = table[names == parameter]
        error = np.hypot(mine["mcse_mean"], numbers["mcse_mean"])
        errors.append((mine["mean"] - numbers["mean"]) / error)
        ratios.append(mine["sd"] / numbers["sd"])
    return np.concatenate(errors), np.concatenate(ratios)


@pytest.mark.parametrize("name", RUNS)
def test_means_are_those_of_nuts_and_widths_those_of_t_eff(name: str, tmp_path):
    """Each mean within 3 standard errors. The widths exceed NUTS's by the root of T_eff, on average over the numbers
    within 4 %; T by direction, from exact gradients, says the same."""
    found = sampled(name, tmp_path)
    errors, ratios = away(name, found)
    heat = found.metrics["t_eff"]
    print(name, errors.round(2), ratios.round(3), heat, found)
    assert abs(errors).max() < 3
    assert ratios.mean() == pytest.approx(heat**0.5, rel=0.04)
    assert found.metrics.get("temperature/direction/all", heat) == pytest.approx(heat, rel=0.1)


def test_a_forgotten_jacobian_is_seen(tmp_path):
    """tau alone is constrained: without the Jacobian its density is that of tau over tau, and the mean far lower."""
    forgotten = {**RUNS["eight_schools"]["constraints"], "tau": Forgotten()}
    errors, _ = away("eight_schools", sampled("eight_schools", tmp_path, constraints=forgotten, steps=800))
    assert abs(errors).max() > 6


def test_too_much_batch_noise_is_told(tmp_path):
    """Twenty times the lr: widths are no longer NUTS's, T_eff says by how much, and the verdict refuses the samples.

    T_eff is the mean over free values. It is the mean of the variances' ratios, to which the widths belong, if all have
    about one T. So the means are free values here: the first of ordered ones moves all three, and has 5 T where the
    others have 1.5, so that the widths' mean is 8 % below the root of T_eff.
    """
    free = {**RUNS["mixture"]["constraints"], "means": scaled([0.027, 0.030, 0.022])}
    found = sampled("mixture", tmp_path, lr=100.0, steps=600, constraints=free)
    ratios, heat = away("mixture", found)[1], found.metrics["t_eff"]
    print(ratios.round(3), heat, found)
    assert heat > 1.4 and ratios.mean() > 1.3 and ratios.mean() == pytest.approx(heat**0.5, rel=0.06)
    assert found.verdict.outcome == "another temperature"
