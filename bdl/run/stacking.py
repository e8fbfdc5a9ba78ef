"""Stacked weights of the chains of runs: fitted to rows of their data, stored with the run, taken back."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, Literal

from bdl.data.module import DataModule
from bdl.errors import ConfigError
from bdl.posterior.judge_modes import RHAT_APART
from bdl.posterior.judgements import has_no_temperature, or_nan
from bdl.posterior.predict import Posterior
from bdl.posterior.report.numbers import Summary
from bdl.posterior.stacking import ITEMS, Stacking
from bdl.posterior.stacking_file import write_stacking

StackingRequest = Literal["auto", "stacking", "uniform"]
# A quarter of leave-one-out densities is unreliable on tables where stacking helps, two fifths where it does harm:
# scripts/results/tables/stacking.md
MOST_UNRELIABLE = 0.3


@dataclass(frozen=True)
class ChainWeights:
    """Whether a run weights its chains, and by which data."""

    request: StackingRequest
    data: DataModule

    def add_to(self, summary: Summary, posterior: Posterior[Any]) -> None:
        """Fit and store weights where they are asked for, and say in the summary how the stacked average predicts.

        `auto` stores them where the chains of a posterior do not agree and leave-one-out densities are reliable, if
        there are no importance weights. Raises ConfigError as `Posterior.stack` does, but under `auto` weights are then
        uniform.
        """
        m = or_nan(summary.metrics)
        if self.request == "uniform":
            return
        if self.request == "stacking":
            add_stacked(summary, stack_chains(posterior, self.data))
        elif m["rhat/max"] > RHAT_APART and not has_no_temperature(m) and "weight_ess" not in m:
            with contextlib.suppress(ConfigError):  # too few samples of a chain, or items without an order
                if (stacking := fit_chains(posterior, self.data)).unreliable <= MOST_UNRELIABLE:
                    write_stacking(posterior.stored, stacking)
                    return add_stacked(summary, stacking)
            take_back(posterior)  # those that earlier samples gave


def fit_chains(posterior: Posterior[Any], data: DataModule) -> Stacking:
    """The weights by validation rows, or by training rows where there are none.

    Raises ConfigError as `Posterior.stack` does.
    """
    held_out = data.has("val")
    return posterior.stack(data.slices("val" if held_out else "train", ITEMS), held_out)


def stack_chains(posterior: Posterior[Any], data: DataModule) -> Stacking:
    """Fit the weights, and store them with the run. Raises ConfigError as `fit_chains` does."""
    stacking = fit_chains(posterior, data)
    write_stacking(posterior.stored, stacking)
    return stacking


def take_back(posterior: Posterior[Any]) -> None:
    """Take stored weights back: the run predicts with the uniform average again."""
    if posterior.stacking is not None:
        write_stacking(posterior.stored, None)
    posterior.stacking = None


def add_stacked(summary: Summary, stacking: Stacking) -> None:
    """Add to a summary what weights say that were fitted after it."""
    summary.metrics |= stacking.metrics
    for split, evaluation in summary.evaluations.items():
        evaluation.stacking = stacking
        scores = {f"bma_stacked/{name}": value for name, value in evaluation.scores(evaluation.bma_stacked).items()}
        summary.metrics |= {f"{split}/{k}": value for k, value in (scores | evaluation.against_uniform()).items()}
