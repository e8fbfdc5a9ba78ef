"""Tests of `bdl.tune.cycles`."""

import pytest
import torch

import bdl
from bdl.schedules import Cycle, CyclicalCosine
from bdl.tune.choice import Choice
from bdl.tune.cycles import EXPLORE, MOTION, PEAK, choose_cycles
from bdl.tune.trial import Problem


def problem(chains: int = 2) -> Problem:
    x = torch.linspace(-1, 1, 40).unsqueeze(1)
    stack = bdl.ChainStack(torch.nn.Linear(1, 2), chains)
    return Problem(stack, bdl.HeteroscedasticNLL(), (x, x), 40, 40)


def chosen(lr: float, burn_in: int, steps: int = 4000) -> dict[str, Choice]:
    found = (Choice("lr", lr, "found"), Choice("burn_in", burn_in, "found"))
    return {c.name: c for c in choose_cycles(found, problem(), bdl.SGHMC(0.1), bdl.Gaussian(), steps)}


def test_sampling_begins_at_the_lr_found_and_moves_as_far_as_stated():
    cycle = Cycle(30_000, 1, EXPLORE)
    lr = CyclicalCosine(PEAK, cycle)
    moved = [lr(k) for k in range(cycle.length) if cycle.sampling(k)]
    assert moved[0] == pytest.approx(1, rel=1e-3)
    assert sum(moved) / cycle.length == pytest.approx(MOTION, rel=1e-2)


def test_a_cycle_is_as_long_as_its_sampling_part_needs():
    """A slow chain has one cycle, a fast one has several, and all keep about as many samples."""
    slow, middle, fast = (chosen(1e-3, burn_in) for burn_in in (1600, 150, 10))
    assert [c["cycle"].value["cycles"] for c in (slow, middle, fast)] == [1, 3, 8]
    assert "longer run" in slow["cycle"].reason
    assert [c["samples_per_cycle"].value for c in (slow, middle, fast)] == [100, 33, 12]
    assert all("burn_in" not in c for c in (slow, middle, fast))


def test_a_peak_that_diverges_is_lowered():
    cool, hot = chosen(1e-3, 100), chosen(10.0, 100)
    assert cool["lr"].value == pytest.approx(PEAK * 1e-3)
    assert hot["lr"].value < 10


def test_choices_without_burn_in_stay_as_they_are():
    found = (Choice("prior", 1.0, "found"),)
    assert choose_cycles(found, problem(), bdl.PSGLD(), bdl.Gaussian(), 4000) == found
