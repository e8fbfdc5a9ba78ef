"""How much work the trials may do, counted in operations."""

from __future__ import annotations

from torch.utils.flop_counter import FlopCounterMode

from bdl.batch import rows_of
from bdl.engine.functional import evaluating
from bdl.lean import disable_on_demand
from bdl.tune.trial import Problem

TRIALS_SHARE = 0.2  # share of the steps of the run: for the trials, and again for those of T
FEWEST_TRIAL_STEPS, MOST_TRIAL_STEPS = 20, 1000
OPERATIONS = 2e11  # floating-point operations of one trial, some ten seconds of a core
BACKWARD = 3  # operations of a gradient, in those of a forward pass


def trial_steps(problem: Problem, steps: int, trials: int = 8, most: int = MOST_TRIAL_STEPS) -> int:
    """Steps of one of some trials: by the length of the run and by the cost of a step, the same on any machine.

    A time limit would make the settings depend on the machine's load, so operations are counted instead.
    """
    affordable = OPERATIONS / (_gradient_of_an_item(problem) * problem.batch_size)
    return int(max(FEWEST_TRIAL_STEPS, min(most, affordable, TRIALS_SHARE * steps / trials)))


def curvature_rows(problem: Problem, products: int, most: int) -> int:
    """Items of a Hessian whose `products` with vectors cost about as much as a trial; a batch of them at least."""
    affordable = OPERATIONS / (2 * _gradient_of_an_item(problem) * products)  # a product is the gradient of a gradient
    return int(min(most, max(problem.batch_size, affordable)))


def _gradient_of_an_item(problem: Problem) -> float:
    """Operations of the gradients that all chains take of one item."""
    x, y = problem.items
    rows = rows_of(x, slice(8))
    with FlopCounterMode(display=False) as counter, evaluating(problem.stack):
        disable_on_demand(type(counter.mode))
        problem.stack.broadcast(rows)
    return max(1.0, BACKWARD * counter.get_total_flops() / min(8, len(y)))
