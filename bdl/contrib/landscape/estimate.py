"""CoefficientEstimate: a local learning coefficient with its error, and whether it can be trusted."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor

from bdl.tune.burn_in import FAR, trend
from bdl.tune.friction import autocorrelation_time

BLOCKS = 10  # parts of a chain, whose means tell the error along it
APART = 3.0  # times by which the error between chains may exceed that along them; chance does so in 1 of 10⁵ cases
WARM = 0.05  # share by which a temperature may differ from T: λ̂ is off by the same share
BELOW = 0.01  # share of states that may have a lower loss than the network
ENOUGH = 50  # effective draws


@dataclass(frozen=True)
class CoefficientCheck:
    """One question about an estimate. passed: None where the answer is not known."""

    name: str
    passed: bool | None
    words: str

    def __str__(self) -> str:
        return f"{self.name}: {self.words}"


@dataclass(frozen=True)
class CoefficientEstimate:
    """λ̂ = N (E[L(w)] - L(w*)) / T of a network w*, see `bdl.learning_coefficient`.

    Args:
        trace: (C, draws) N (L(w) - L(w*)) / T along the chains, after the burn-in, double.
        loss: L(w*), the mean loss over the data, nats.
        num_data, temperature, localization: N, T, and γ in exp(-γ |w - w*|² / 2).
        parameters: how many are sampled.
        lr: the step size.
        held: the mean of γ |w - w*|² / 2. On a regular model value + held = parameters / 2, so it is what the
            localization takes from λ̂ there.
        heat: the share by which batch noise heats the chains; 0 for full batches.
        configurational: (C,) the configurational temperature of every chain over T, which is 1 in equilibrium.
    """

    trace: Tensor = field(repr=False)
    loss: float
    num_data: int
    temperature: float
    localization: float
    parameters: int
    lr: float
    held: float
    heat: float
    configurational: Tensor = field(repr=False)

    @cached_property
    def value(self) -> float:
        """λ̂, the mean over chains and time."""
        return float(self.trace.mean())

    @cached_property
    def std_error(self) -> float:
        """The larger of the standard errors between chains and along them."""
        return max(self._between, self._along)

    @property
    def chains(self) -> Tensor:
        """(C,) λ̂ of every chain."""
        return self.trace.mean(1)

    @cached_property
    def effective_draws(self) -> float:
        """Draws of all chains over their autocorrelation time."""
        times = autocorrelation_time(self.trace.T.unsqueeze(-1)).clamp_min(1.0)
        return float((self.trace.shape[1] / times).sum())

    @cached_property
    def checks(self) -> tuple[CoefficientCheck, ...]:
        return (self._agreement(), self._rest(), self._temperature(), self._basin(), self._draws())

    @property
    def sound(self) -> bool:
        """Whether every check has passed."""
        return all(check.passed is True for check in self.checks)

    def __str__(self) -> str:
        wrong = [str(check) for check in self.checks if check.passed is not True]
        return (
            f"λ̂ = {self.value:.4g} ± {self.std_error:.2g} of {self.parameters:,} parameters at loss {self.loss:.6g} "
            f"(N = {self.num_data:,}, T = {self.temperature:.4g}, γ = {self.localization:g}, lr {self.lr:.3g})\n"
            f"verdict: {'not sound: ' + '; '.join(wrong) if wrong else 'sound'}"
        )

    @property
    def _between(self) -> float:
        """The standard error of λ̂ by the differences between chains; 0 for one chain."""
        return float(self.chains.std()) / math.sqrt(len(self.trace)) if len(self.trace) > 1 else 0.0

    @property
    def _along(self) -> float:
        """The standard error of λ̂ by the differences between the parts of a chain."""
        parts = min(BLOCKS, self.trace.shape[1])
        if parts < 2:
            return math.inf
        means = self.trace[:, self.trace.shape[1] % parts :].reshape(len(self.trace), parts, -1).mean(-1)
        return math.sqrt(float(means.var(1).mean()) / means.numel())

    def _agreement(self) -> CoefficientCheck:
        if len(self.trace) < 2:
            return CoefficientCheck("chains", None, "one chain cannot disagree with itself: take several")
        ratio = self._between / max(self._along, 1e-300)
        words = f"the error between chains is {ratio:.2g} times that along them"
        return CoefficientCheck(
            "chains", ratio < APART, words if ratio < APART else f"{words}: more steps, or a longer burn-in"
        )

    def _rest(self) -> CoefficientCheck:
        mean = self.trace.mean(0)
        if len(mean) < 8:
            return CoefficientCheck("rest", None, "too few draws to see a drift: more steps")
        change, error = trend(mean)
        rests = abs(change) <= FAR * error
        words = f"λ̂ changes by {change:.2g} ± {error:.1g} from one half to the other"
        return CoefficientCheck("rest", rests, words if rests else f"{words}: a longer burn-in")

    def _temperature(self) -> CoefficientCheck:
        measured = self.configurational[self.configurational.isfinite()]
        if math.isnan(self.heat) or len(measured) == 0:
            return CoefficientCheck("temperature", None, "it was not measured: more steps")
        if self.heat > WARM:
            return CoefficientCheck("temperature", False, f"batches heat the chains by {self.heat:.1%}: a larger batch")
        ratio = float(measured.mean())
        error = float(measured.std()) / math.sqrt(len(measured)) if len(measured) > 1 else 0.0
        right = abs(ratio - 1) < WARM + FAR * error
        words = f"batches heat by {self.heat:.1%}, the configurational temperature is {ratio:.3f} ± {error:.1g} T"
        return CoefficientCheck("temperature", right, words if right else f"{words}: a smaller lr, or a longer burn-in")

    def _basin(self) -> CoefficientCheck:
        rounding = 1e-6 * max(1.0, abs(self.loss)) * self.num_data / self.temperature
        share = float((self.trace < -rounding).double().mean())
        words = f"{share:.1%} of the states have a lower loss than the network"
        if share <= BELOW and self.value > 0:
            return CoefficientCheck("minimum", True, words)
        lowest = -float(self.trace.min()) * self.temperature
        return CoefficientCheck(
            "minimum", False, f"{words}, by up to {lowest:.3g} nats: it is no minimum, or the chains left it; train "
            "on, or raise the localization",
        )  # fmt: skip

    def _draws(self) -> CoefficientCheck:
        words = f"{self.effective_draws:,.0f} effective draws"
        enough = self.effective_draws >= ENOUGH
        return CoefficientCheck("draws", enough, words if enough else f"{words}, fewer than {ENOUGH}: more steps")
