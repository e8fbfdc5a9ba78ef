"""The problems of `experiment.py explore`: gradients, descent into modes, and a tiny cell of each method."""

import json

import pytest
import torch
from experiments.explore import explore
from experiments.explore.methods import METHODS
from experiments.explore.problems import PROBLEMS
from experiments.explore.scores import find_modes
from repeats import slow_where


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_problem_has_the_gradient_of_its_energy(name: str):
    problem = PROBLEMS[name]()
    theta = problem.start(2, seed=0).double()
    step = torch.randn(theta.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x, v = theta.float(), step.float()
    rise = (problem.energy_and_grad(x + 0.01 * v)[0] - problem.energy_and_grad(x - 0.01 * v)[0]) / 0.02
    along = (problem.energy_and_grad(x)[1] * v).sum(-1)
    assert torch.allclose(rise, along, rtol=0.02, atol=0.02 * float(along.abs().max()))


def test_modes_of_the_mixture_are_orders_of_its_means():
    """States near each of two orders of the means fall into two modes, which are found; one order alone is one mode."""
    problem = PROBLEMS["mixture"]()
    near = problem.quench(problem.start(64, seed=0))
    energy = problem.energy_and_grad(near)[0]
    best = near[energy.argmin()].expand(40, -1)
    assert (
        len(find_modes(problem, best + 0.01 * torch.randn(best.shape, generator=torch.Generator().manual_seed(0)))) == 1
    )
    swapped = best[:, [1, 0, 2]]
    assert len(find_modes(problem, torch.cat([best, swapped]))) == 2


@pytest.mark.parametrize("name", slow_where(lambda name: name != "mixture", list(PROBLEMS)))
def test_tiny_cells(name: str, tmp_path):
    """Every method has a line for each seed, and a second call runs nothing again."""
    methods = ["plain", "weighted"] if name == "mixture" else list(METHODS)
    found = explore(name, methods, [0], tmp_path, quick=True)
    lines = (tmp_path / "explore.jsonl").read_text().splitlines()
    cells = [cell for cell in map(json.loads, lines) if cell["seed"] == 0]
    assert found["dim"] == PROBLEMS[name]().dim and {cell["method"] for cell in cells} <= set(METHODS)
    assert all(0 <= cell["tv"] <= 1 for cell in cells if "tv" in cell) and any("tv" in cell for cell in cells)
    explore(name, methods, [0], tmp_path, quick=True)
    assert (tmp_path / "explore.jsonl").read_text().splitlines() == lines
