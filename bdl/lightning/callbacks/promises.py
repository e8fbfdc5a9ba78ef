"""Promises: holds a run to what `tune=auto` promised from short trials, and says in one line what it cannot hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import lightning as L
import torch

from bdl.advice import key_or_argument
from bdl.data.ordered import size_of
from bdl.lightning.blocks import SamplerCallback
from bdl.lightning.callbacks.average import ModelAverage
from bdl.lightning.callbacks.collect import CollectSamples
from bdl.samplers.dynamics.base import mean
from bdl.schedules import EveryStep
from bdl.tune.burn_in import MOVES, movement
from bdl.tune.heat import CoolDirections
from bdl.tune.kept import Promised
from bdl.tune.step import (
    MOMENTA_BUDGET,
    NOISE_BUDGET,
    SPARED,
    TOLERATED,
    factor_by_hottest,
    factor_by_momenta,
    heat_of,
    heat_of_fall,
    kinetic_ratio,
    momentum_heat,
)

LATEST = 0.7  # share of the run that the burn-in may take
ROWS = 80  # energies and kinetic temperatures that are read in a burn-in
FEWEST = 20  # energies over all the data that are worth their time; otherwise ROWS of batches are read
SHARE = 0.02  # the share of the run's time that energies over all the data may take
GRADIENT = 3  # forward passes that cost as much as a gradient
ALIGNED = 50  # steps; the rows of `Monitor` are as far apart by default, so that they are read together
WATCHED = 100  # kinetic temperatures that are read while samples are kept
LATELY = 10  # the last kinetic temperatures, in which heat shows: of 10 % of the samples
CLOSEST = 10  # steps between two kinetic temperatures, at least

Keeper = CollectSamples | ModelAverage  # keeps states by a rule


class Promises(SamplerCallback):
    """Holds a run to the two promises of `tune=auto`: little heat, and samples at rest.

    At half of the burn-in and at its end, lr falls where batches heat the chains by more than 10 %, where they
    heat the hottest direction by more than promised, or where the
    kinetic temperature is surely above 1.25 T. The error of the step heats momenta too: where the curvature has grown,
    or where a weighting multiplies the gradient by more than in the trials. Where lr has just fallen at the end, or the
    energies of the second half of the burn-in still move by more than 0.3 of their standard deviations under the
    posterior, the burn-in becomes twice as long, and the callback looks again. It takes 70 % of the run at most; as
    many samples as before are kept in the rest. Energies over all the data take 2 % of the run's time at most: where
    they would cost more, those of batches are read. Samples have one lr, unless heat comes while they are kept, as
    to chains that still move downhill to where the curvature is larger: lr then falls at once, and no sample is
    dropped. Chains of other stacks decide for themselves. The decisions are part of the checkpoint.

    Args:
        keepers: the callbacks whose rule moves. They share one `EveryStep`.
        lr: whether lr may fall; False where the user has given it. A line at the end of the burn-in then says to what
            it should.
        burn_in: whether the burn-in may grow; False where the user has given it.
        say: called with a line on every decision, and on a promise that is not kept.

        cool: what was promised of the hottest direction, whose heat follows from the mean over directions; None where
            nothing was.

    Raises ConfigError if the module returned no Sampler.
    """

    def __init__(
        self,
        keepers: Sequence[Keeper],
        lr: bool = True,
        burn_in: bool = True,
        say: Callable[[str], object] = print,
        cool: CoolDirections | None = None,
    ):
        self.keepers, self.may_lower, self.may_extend, self.say, self.cool = keepers, lr, burn_in, say, cool
        rule: Any = keepers[0].keep
        self.rule: EveryStep = rule
        self._rows: list[tuple[int, float, float]] = []  # step, mean energy of the chains in nats, see `kinetic_ratio`
        self._fell = 0  # the step at which lr fell last
        self.at_rest = True  # False once it has said that samples are not

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        self.ends_block = pl_module.device.type != "cpu"  # an accelerator replays recorded steps, which own the buffers
        self._total = trainer.estimated_stepping_batches
        size = size_of(trainer.train_dataloader) or 1
        affordable = SHARE * self._total * GRADIENT * size / self.sampler.num_data
        self._of_all_data = affordable >= FEWEST
        self._count = int(min(ROWS, affordable)) if self._of_all_data else ROWS

    def must_see(self, step: int) -> bool:
        if step > self.rule.burn_in:
            return self.may_lower and self._is_watched(step)
        return self._on_grid(step, ROWS) or self._is_energy_due(step)

    def after_step(self, trainer: L.Trainer, pl_module: L.LightningModule, step: int) -> None:
        burn_in = self.rule.burn_in
        if step > burn_in:
            self._rows = [row for row in self._rows if row[0] > burn_in][1 - LATELY :]
        energy = self._energy(all_data=step <= burn_in) if self._is_energy_due(step) else math.nan
        self._rows.append((step, energy, kinetic_ratio(self.sampler)))
        if step == burn_in:
            self._end_burn_in(step)
        elif step == burn_in // 2 or step > burn_in:
            self._lower_lr(step)

    def _is_energy_due(self, step: int) -> bool:
        burn_in = self.rule.burn_in
        return step > burn_in or self._on_grid(step, self._count) or step in (burn_in // 2, burn_in)

    def _on_grid(self, step: int, count: int) -> bool:
        """Whether the step is one of about so many in the burn-in."""
        return step % _aligned(self.rule.burn_in // count) == 0

    def _is_watched(self, step: int) -> bool:
        """Whether the step, while samples are kept, is one of about WATCHED."""
        left = self._total - self.rule.burn_in
        return step % max(CLOSEST, _aligned(left // WATCHED if math.isfinite(left) else ALIGNED)) == 0

    def _energy(self, all_data: bool) -> float:
        """The mean U of the chains; NaN if unknown. all_data: over all the data where that costs little."""
        sampler = self.sampler
        measures = all_data and self._of_all_data and sampler.full_loss is not None and not sampler.chain.sees_all_data
        energy = sampler.full_energy() if measures else sampler.energy
        if energy is None:
            return math.nan
        return float(energy[sampler.target_chains if sampler.chains else ...].mean())

    def _end_burn_in(self, step: int) -> None:
        lowered, moved = self._lower_lr(step), self._movement(step)
        reason = "lr has just changed" if lowered else f"the energy still moves by {moved:.2g} standard deviations"
        if (lowered or moved > MOVES) and self._extend(step, reason):
            return
        factor, heat = self._heat(step)
        if not self.may_lower and factor < 1:
            lr, key = mean(self.sampler.param_groups[0]["lr"]), key_or_argument("sampler.lr")
            self.say(
                f"tune: a promise is not kept: at step {step:,} {heat}: lower {key} from {lr:.4g} to {lr * factor:.2g}"
            )

    def _extend(self, step: int, reason: str) -> bool:
        """Make the burn-in twice as long; returns whether it could, and says so either way."""
        later = min(2 * step, int(LATEST * self._total)) if math.isfinite(self._total) else 0
        if not self.may_extend or later <= step:
            longer = f"take a longer run ({key_or_argument('length')})"
            remedy = longer if self.may_extend else "raise collect.keep.burn_in, which was given"
            self.at_rest = False
            self.say(f"tune: a promise is not kept: samples are not at rest. At step {step:,} {reason}: {remedy}")
            return False
        samples = min(self.rule.count(int(self._total)), int(self._total) - later)
        every = (int(self._total) - later) // samples
        self._keep_by(EveryStep(int(self._total) - every * samples, every))
        if self.sampler.replicas is not None:
            self.sampler.replicas.adapt_until(self.rule.burn_in)
        self.say(f"tune: burn in {self.rule.burn_in:,} instead of {step:,}: {reason}")
        return True

    def _lower_lr(self, step: int) -> bool:
        """Lower lr where the chains are too hot; returns whether it fell."""
        group, (factor, reason) = self.sampler.param_groups[0], self._heat(step)
        if not self.may_lower or factor == 1:
            return False
        group["lr"] *= factor
        self._fell = step
        self.say(f"tune: lr {mean(group['lr']):.4g} from step {step:,}: {reason}")
        return True

    def _heat(self, step: int) -> tuple[float, str]:
        """By what lr is to be multiplied so that the chains are as cool as promised, and why; 1 where they are.

        The momenta count from the later half of the steps since lr fell, because those of a larger lr live on. The heat
        of an energy that still falls is taken off: a lower lr does not change where the chains go.
        """
        sampler, noise, since = self.sampler, heat_of(self.sampler), (self._fell + step) / 2
        late = [row for row in self._rows if row[0] > since]
        steps, energies, ratios = zip(*late, strict=True) if late else ((), (), ())
        number = len(sampler.target_chains) * sampler.chain.theta.shape[-1]
        momenta, surely = momentum_heat(steps, ratios, number, sampler.dynamics.friction)
        falling = heat_of_fall(steps, energies, sampler)
        by_noise = SPARED * NOISE_BUDGET / noise if noise > TOLERATED * NOISE_BUDGET else 1.0
        by_momenta = factor_by_momenta(momenta - falling, surely - falling)
        by_hottest, reason = factor_by_hottest(sampler, self.cool)
        if by_hottest < min(by_noise, by_momenta):
            return by_hottest, reason
        if by_noise <= by_momenta:
            return by_noise, f"noise adds {noise:.0%} to the temperature, the budget is {NOISE_BUDGET:.0%}"
        return by_momenta, f"the kinetic temperature is {1 + momenta:.3g} T, the budget is {1 + MOMENTA_BUDGET:.3g} T"

    def _movement(self, step: int) -> float:
        """Standard deviations by which the energy moves in the second half of the steps; 0 where it is at rest.

        A weighting that reads the energy moves it on purpose.
        """
        if self.sampler.weighting.needs_energy:
            return 0.0
        late = torch.tensor([e for at, e, _ in self._rows if at > step / 2 and not math.isnan(e)], dtype=torch.float64)
        temperature = mean(self.sampler.settings().temperature)
        return movement(late, temperature, self.sampler.chain.theta.shape[-1])

    def _keep_by(self, rule: EveryStep) -> None:
        self.rule = rule
        for keeper in self.keepers:
            keeper.keep = rule

    @property
    def promised(self) -> Promised:
        return Promised(None if self.cool is None else self.cool.heat, self.at_rest)

    def state_dict(self) -> dict[str, Any]:
        return {
            "burn_in": self.rule.burn_in, "every": self.rule.every, "rows": list(self._rows), "fell": self._fell,
            "at_rest": self.at_rest,
        }  # fmt: skip

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._rows = [(int(step), float(energy), float(ratio)) for step, energy, ratio in state_dict["rows"]]
        self._fell, self.at_rest = int(state_dict["fell"]), bool(state_dict.get("at_rest", True))
        self._keep_by(EveryStep(state_dict["burn_in"], state_dict["every"]))


def _aligned(steps: float) -> int:
    """A distance of about so many steps, a multiple of ALIGNED if it is longer."""
    spacing = max(1, int(steps))
    return spacing - spacing % ALIGNED if spacing > ALIGNED else spacing
