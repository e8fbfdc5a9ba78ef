"""Outcome: how far sampling has come, and what was recorded on the way; of one stack, or of all together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from bdl.posterior.traces import read_traces, side_by_side, write_trace
from bdl.run.directory import RunDirectory
from bdl.run.processes import StepStore


@dataclass(frozen=True)
class Outcome:
    """The steps that sampling has done, and the series recorded on the way."""

    steps: int
    trace: dict[str, torch.Tensor]
    swap_rates: torch.Tensor | None


def gather_outcomes(
    store: StepStore | None,
    directory: RunDirectory,
    stacks: Sequence[int],
    mine: Sequence[int],
    outcomes: Sequence[Outcome],
    steps: int | float,
) -> Outcome:
    """Join the outcomes of all stacks, in the main process once all are done. The others return their first.

    mine: the stacks of this process. outcomes: of the stacks among them that began. steps: the length of the run.
    Before its end the stacks stand at different steps, so the joint outcome is the least number of steps alone.
    """
    for stack, outcome in zip(mine, outcomes, strict=False):
        rates = {} if outcome.swap_rates is None else {"swap_rates": outcome.swap_rates}
        write_trace(directory.path, stack, outcome.trace | rates)
    done = min(outcome.steps for outcome in outcomes) if len(outcomes) == len(mine) else 0
    if store is not None:
        store.set(done)
        if not store.process.is_main:
            return outcomes[0]
        done = min(store.wait())
    if done < steps:
        return Outcome(done, {}, None)
    traces = read_traces(directory.path, stacks)
    swap_rates = [trace.pop("swap_rates") for trace in traces if "swap_rates" in trace]
    return Outcome(done, side_by_side(traces), torch.stack(swap_rates).mean(0) if swap_rates else None)
