"""How many steps the trials may take."""

from __future__ import annotations

from torch.utils.flop_counter import FlopCounterMode

from bdl.functional import evaluating
from bdl.tune.trial import Problem

TRIALS = 8  # trials of about this many times `trial_steps` steps in all
SHARE = 0.2  # of the steps of the run
FEWEST, MOST = 20, 1000
OPERATIONS = 2e11  # floating-point operations of one trial, some ten seconds of a core


def trial_steps(problem: Problem, steps: int) -> int:
    """Steps of one trial: by the length of the run and by the cost of a step, which are the same on any machine.

    A time limit would make the settings depend on the machine's load, so operations are counted instead: three times
    those of a forward pass of the batch, for all chains.
    """
    x, _ = problem.items
    rows = x[:8]
    with FlopCounterMode(display=False) as counter, evaluating(problem.stack):
        problem.stack.broadcast(rows)
    per_step = 3 * counter.get_total_flops() / len(rows) * problem.batch_size
    affordable = OPERATIONS / max(per_step, 1)
    return int(max(FEWEST, min(MOST, affordable, SHARE * steps / TRIALS)))
