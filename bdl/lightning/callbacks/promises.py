"""Promises: holds a run to what `tune=auto` promised from short trials, and says in one line what it cannot hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import lightning as L
import torch
from torch import Tensor

from bdl.lightning.blocks import SamplerCallback
from bdl.lightning.callbacks.average import ModelAverage
from bdl.lightning.callbacks.collect import CollectSamples
from bdl.samplers.dynamics.base import mean
from bdl.schedules import EveryStep
from bdl.tune.burn_in import MOVES, movement
from bdl.tune.step import NOISE_BUDGET, TOLERATED, heat_of

SPARED = 0.9  # times the budget: to this heat lr falls, because the noise may still grow
LATEST = 0.7  # share of the run that the burn-in may take
ROWS = 80  # energies that are read in a burn-in
FEWEST = 20  # energies over all the data that are worth their time; otherwise ROWS of batches are read
SHARE = 0.02  # the share of the run's time that the checks may take
GRADIENT = 3  # forward passes that cost as much as a gradient
ALIGNED = 50  # steps; the rows of `Monitor` are as far apart by default, so that a block ends there anyway

Keeper = CollectSamples | ModelAverage  # keeps states by a rule


class Promises(SamplerCallback):
    """Holds a run to the two promises of `tune=auto`: little heat, and samples at rest.

    At half of the burn-in and at its end, lr falls where batches heat the chains by more than 10 %. Where it has just
    fallen at the end, or the energies of the second half of the burn-in still move by more than 0.3 of their standard
    deviations under the posterior, the burn-in becomes twice as long, and the callback looks again. It takes 70 % of
    the run at most; as many samples as before are kept in the rest. To look takes 2 % of the run's time at most: where
    energies over all the data would cost more, those of batches are read. All samples have one lr. Chains of other
    stacks decide for themselves. The decisions are part of the checkpoint.

    Args:
        keepers: the callbacks whose rule moves. They share one `EveryStep`.
        lr: whether lr may fall; False where the user has given it.
        burn_in: whether the burn-in may grow; False where the user has given it.
        say: called with a line on every decision, and on a promise that is not kept.

    Raises ConfigError if the module returned no Sampler.
    """

    def __init__(
        self, keepers: Sequence[Keeper], lr: bool = True, burn_in: bool = True, say: Callable[[str], object] = print
    ):
        self.keepers, self.may_lower, self.may_extend, self.say = keepers, lr, burn_in, say
        rule: Any = keepers[0].keep
        self.rule: EveryStep = rule
        self._rows: list[tuple[int, float]] = []  # steps, and the mean energies of the chains, nats

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        self._total = trainer.estimated_stepping_batches
        size = getattr(trainer.train_dataloader, "batch_size", None) or 1
        affordable = SHARE * self._total * GRADIENT * size / self.sampler.num_data
        self._of_all_data = affordable >= FEWEST
        self._count = int(min(ROWS, affordable)) if self._of_all_data else ROWS

    def must_see(self, step: int) -> bool:
        burn_in = self.rule.burn_in
        spacing = max(1, burn_in // self._count)
        if spacing > ALIGNED:
            spacing -= spacing % ALIGNED
        return step <= burn_in and (step % spacing == 0 or step in (burn_in // 2, burn_in))

    def after_step(self, trainer: L.Trainer, pl_module: L.LightningModule, step: int) -> None:
        if (energy := self._energy()) is not None:
            self._rows.append((step, float(energy[self.sampler.target_chains if self.sampler.chains else ...].mean())))
        if step == self.rule.burn_in:
            self._end_burn_in(step)
        elif step == self.rule.burn_in // 2:
            self._lower_lr(step)

    def _energy(self) -> Tensor | None:
        """() or (C,) U over all the data where that costs little, otherwise of the batch; None if unknown."""
        sampler, host = self.sampler, self.sampler.host
        batch_is_all = sampler.dynamics.full_batch or host.sees_all_data
        measures = self._of_all_data and host.full_loss is not None and not batch_is_all
        return sampler.full_energy() if measures else sampler.energy

    def _end_burn_in(self, step: int) -> None:
        lowered, moved = self._lower_lr(step), self._movement(step)
        if not lowered and moved <= MOVES:
            return
        reason = "lr has just changed" if lowered else f"the energy still moves by {moved:.2g} standard deviations"
        later = min(2 * step, int(LATEST * self._total)) if math.isfinite(self._total) else 0
        if not self.may_extend or later <= step:
            remedy = "take a longer run (length)" if self.may_extend else "raise collect.keep.burn_in, which was given"
            self.say(f"tune: a promise is not kept: samples are not at rest. At step {step:,} {reason}: {remedy}")
            return
        samples = min(self.rule.count(int(self._total)), int(self._total) - later)
        every = (int(self._total) - later) // samples
        self._keep_by(EveryStep(int(self._total) - every * samples, every))
        self.say(f"tune: burn in {self.rule.burn_in:,} instead of {step:,}: {reason}")

    def _lower_lr(self, step: int) -> bool:
        """Lower lr where batches heat the chains too much; returns whether it fell."""
        group, heat = self.sampler.param_groups[0], heat_of(self.sampler)
        if not self.may_lower or not heat > TOLERATED * NOISE_BUDGET:
            return False
        group["lr"] *= SPARED * NOISE_BUDGET / heat
        self.say(
            f"tune: lr {mean(group['lr']):.4g} from step {step:,}: noise adds {heat:.0%} to "
            f"the temperature, the budget is {NOISE_BUDGET:.0%}"
        )
        return True

    def _movement(self, step: int) -> float:
        """Standard deviations by which the energy moves in the second half of the steps; 0 where it is at rest.

        A weighting that reads the energy moves it on purpose.
        """
        if self.sampler.weighting.needs_energy:
            return 0.0
        late = torch.tensor([energy for at, energy in self._rows if at > step / 2], dtype=torch.float64)
        temperature = mean(self.sampler.settings().temperature)
        return movement(late, temperature, self.sampler.chain.theta.shape[-1])

    def _keep_by(self, rule: EveryStep) -> None:
        self.rule = rule
        for keeper in self.keepers:
            keeper.keep = rule

    def state_dict(self) -> dict[str, Any]:
        return {"burn_in": self.rule.burn_in, "every": self.rule.every, "rows": list(self._rows)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._rows = [(int(step), float(energy)) for step, energy in state_dict["rows"]]
        self._keep_by(EveryStep(state_dict["burn_in"], state_dict["every"]))
