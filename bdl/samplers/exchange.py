"""Replica exchange: chains at a ladder of temperatures that swap their states."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from bdl.devices import widened, widest
from bdl.errors import ConfigError, check_choice
from bdl.samplers.batch_noise import BatchNoise
from bdl.samplers.chain import Chain
from bdl.samplers.held import HeldNumbers
from bdl.samplers.potential import Launch, Potential
from bdl.samplers.resume import Saved
from bdl.samplers.settings import StepSettings

KEEP = 0.99  # decay of the running mean of the energy's variance
AUTO = "auto"
SWAPS = 0.3  # probability of a swap that an automatic ladder looks for
HOTTEST = 10.0  # T that it need not exceed by further rungs
WIDEST = 4.0  # times the distance on a Gaussian, that rungs may have: energies not at rest yet differ by too little
GAIN, DELAY, POWER = 2.0, 10, 0.6  # a distance's logarithm moves by GAIN / (swaps + DELAY)**POWER times the error


@dataclass(frozen=True)
class Exchange:
    """Replica exchange SG-MCMC (Deng et al. 2020, algorithm 1), over any dynamics.

    Chain c is at rung k = c mod K of the ladder, at the temperature T · ladder[k]. The first rung has the target
    distribution, and only its chains are kept. Every `every` steps neighbours (k, k + 1), even and odd k in turn,
    swap states with probability

        min(1, exp(c (U_k - U_{k+1} - c σ²))),    c = 1/T_k - 1/T_{k+1}

    σ² = `energy_var` is the variance that the mini-batch gives to one energy, half that of U_k - U_{k+1}. The penalty
    c²σ² keeps the law of every rung under normal errors of the energies (Ceperley & Dewing 1999). "estimated" takes σ²
    from the change of U_k - U_{k+1} between consecutive steps, which is right for chains that share their batches, too.
    The estimate includes what U itself changes in a step; it is then too large, and swaps are rarer. With exact
    energies give 0; full-batch kernels always use 0. Momenta are rescaled by the root of the ratio of lr T, in the
    middle of their next kick, where they are independent of θ.

    ladder: multiples of T, or "auto". An automatic ladder begins with the distances at which neighbours swap with
    probability SWAPS on a Gaussian of as many parameters (`gaussian_distance`). In the second half of the first
    `adapt_steps` steps each distance moves towards the one at which they do so here: its logarithm follows the
    probability of the last swap less SWAPS, at a falling rate (Miasojedow, Moulines & Vihola 2013). Then it is fixed;
    no sample may be kept before. It has `rungs` rungs; for None as many as leave two chains in the first rung, and no
    more than reach HOTTEST T. Chains that do not fill their ladder are its first rungs.

    lr_power: lr of a rung is lr / ladder**lr_power. Hot chains reach places of larger curvature, where lr has to be
    smaller. `bdl.tune` finds it.

    energy: "batch" reads the energy of the step's batch. "full" reads the energy of all the data (`Sampler.full_loss`),
    which has no error and costs one pass over the data every `every` steps. With batches c σ must be of order one, or
    nothing ever swaps: on Landsat at batch 100 σ is 240 nats, and c between T = 0.2 and 0.21 is 0.24.

    Raises ConfigError for a ladder that does not rise from 1, and for fewer than two chains.
    """

    ladder: Sequence[float] | Literal["auto"] = "auto"  # multiples of T
    every: int = 1
    energy_var: float | Literal["estimated"] = "estimated"  # nats², of a batch energy
    energy: Literal["batch", "full"] = "batch"
    rungs: int | None = None  # of an automatic ladder
    adapt_steps: int = 0
    lr_power: float = 0.0

    def __post_init__(self) -> None:
        if self.ladder != AUTO:
            self._check_ladder()
        if self.every < 1:
            raise ConfigError(f"every must be at least 1 step, got {self.every}")
        if self.adapt_steps < 0:
            raise ConfigError(f"adapt_steps must be >= 0, got {self.adapt_steps}")
        if self.rungs is not None and (self.ladder != AUTO or self.rungs < 2):
            raise ConfigError(f"rungs is a number of at least 2 beside ladder=auto, got {self.rungs}: leave it null")
        if not 0 <= self.lr_power < math.inf:
            raise ConfigError(f"lr_power must be >= 0 and finite, got {self.lr_power}")
        check_choice("energy", self.energy, ("batch", "full"))
        estimated = self.energy_var == "estimated"
        if not (estimated or isinstance(self.energy_var, int | float) and self.energy_var >= 0):
            raise ConfigError(f'energy_var must be "estimated" or a variance >= 0, got {self.energy_var!r}')

    def _check_ladder(self) -> None:
        try:
            rungs = [float(f) for f in self.ladder]
        except (TypeError, ValueError):
            raise ConfigError(f"a ladder is a list of multiples of T, got {self.ladder!r}") from None
        if len(rungs) < 2 or rungs[0] != 1 or not all(a < b for a, b in zip(rungs, rungs[1:], strict=False)):
            raise ConfigError(
                f"a ladder is two or more rising multiples of T that begin with 1, got {rungs}; put them in order"
            )

    def first_ladder(self, parameters: int, chains: int) -> Tensor:
        """(K,) multiples of T, double: the ladder before it has adapted."""
        if self.ladder != AUTO:
            return torch.tensor([float(f) for f in self.ladder], dtype=torch.float64)
        distance = gaussian_distance(parameters)
        reaching = 1 + math.ceil(math.log(HOTTEST) / distance)
        rungs = self.rungs or max(2, min(chains // 2, reaching))
        return (distance * torch.arange(rungs, dtype=torch.float64)).exp()


def gaussian_distance(parameters: int, rate: float = SWAPS) -> float:
    """log(T_2 / T_1) at which two chains on a Gaussian of so many parameters swap with probability `rate`.

    U - U_min has the Gamma distribution of shape k = d/2 and scale T. The mean of min(1, exp(c (U_1 - U_2))) is twice
    P(U_1 > U_2), which is I_x(k, k) with x = T_1 / (T_1 + T_2) (Kofke 2002). It is about 2.1 / sqrt(d) at 0.3.
    """
    from scipy.special import betaincinv  # slow to import

    x = float(betaincinv(parameters / 2, parameters / 2, rate / 2))
    return math.log1p(-x) - math.log(x)


class Replicas(Saved):
    """Runs an Exchange along one stack of chains. Shapes (C,)."""

    saved = ("tried", "done", "chance", "turn", "previous", "square", "count", "ladder", "moves", "adapting")

    def __init__(self, exchange: Exchange, chains: int | None, theta: Tensor):
        if chains is None or chains < 2:
            raise ConfigError(f"replica exchange needs chains to exchange, got {chains or 1}: set chains to 2 or more")
        self.exchange, self.chains, device = exchange, chains, theta.device
        self.ladder = exchange.first_ladder(theta.shape[-1], chains)  # (K,) multiples of T; double on the CPU, like T
        self.rungs, self.widest = len(self.ladder), WIDEST * self.ladder.log().diff()
        self.moves = 0  # of the ladder
        self.adapting = exchange.adapt_steps if exchange.ladder == AUTO else 0  # steps after which it is fixed
        self._spread(device)
        self.tried = torch.zeros(self.rungs - 1, dtype=widest(device), device=device)  # swaps proposed per pair
        self.done = torch.zeros_like(self.tried)
        self.chance = torch.zeros_like(self.tried)  # mean probability of the last swap of each pair
        self.turn = 0  # the pairs that swap next: those whose lower rung is even (0) or odd (1)
        self.previous: Tensor | None = None  # (C,) energies of the last step
        self.square = torch.zeros(chains, dtype=widest(device), device=device)  # running mean: σ² of each and the next
        self.count = 0  # changes of energy in that mean
        self._held: HeldNumbers | None = None  # what the kernels of a swap read of a step

    @property
    def target(self) -> list[int]:
        """The chains of the first rung, which sample the target distribution."""
        return list(range(0, self.chains, self.rungs))

    @property
    def rates(self) -> Tensor:
        """(K - 1,) share of proposed swaps that were made, per pair of neighbours; NaN before the first."""
        return self.done / self.tried

    def settings(self, now: StepSettings) -> StepSettings:
        """Those of every chain, (C,) on the CPU, from those of the first rung; lr as it is where all rungs share it."""
        lr, t = (v.cpu() if isinstance(v, Tensor) else v for v in now.pair)
        power = self.exchange.lr_power
        return replace(now, temperature=t * self.factor, lr=lr * self.factor**-power if power else now.lr)

    def load_state_dict(self, state: Mapping[str, Any], theta: Tensor) -> None:
        for name in self.saved:
            setattr(self, name, widened(state[name], theta.device))
        self.ladder = self.ladder.cpu().double()
        self._spread(theta.device)

    def _spread(self, device: torch.device) -> None:
        """Give every chain its rung, and every turn the colder chains of its pairs."""
        rung = [c % self.rungs for c in range(self.chains)]
        with_next = [c for c in range(self.chains - 1) if rung[c] + 1 < self.rungs]  # a last ladder may be short
        self.factor, self.rung = self.ladder[rung], torch.tensor(rung, device=device)
        self.below = [torch.tensor([c for c in with_next if rung[c] % 2 == k], device=device).long() for k in (0, 1)]

    def counts(self, energy: Tensor) -> bool:
        """Count a change of energy; False at the first energy, which has none before it."""
        if self.previous is None:
            self.previous = energy.clone()
            return False
        self.count += 1
        return True

    @property
    def weight(self) -> float:
        """Of the last change in the running mean."""
        return max(1 - KEEP, 1 / self.count)

    def follow(self, energy: Tensor, weight: float | Tensor) -> None:
        assert self.previous is not None
        step = energy - self.previous
        self.square.lerp_((step - step.roll(-1)).square() / 4, weight)
        self.previous.copy_(energy)

    def order(self, energy: Tensor, temperature: Tensor, log_u: Tensor, exact: bool = False) -> Tensor:
        """(C,) the chain whose state each chain takes over; energy, temperature and log_u are (C,)."""
        order = torch.arange(self.chains, device=energy.device)
        below = self.below[self.turn]
        u, t, variance = energy, temperature, 0.0 if exact else self.variance()
        variance = variance[below] if isinstance(variance, Tensor) else variance
        c = 1 / t[below] - 1 / t[below + 1]
        log_p = c * (u[below] - u[below + 1] - c * variance)
        swapped, pair = log_u[below] < log_p, self.rung[below]
        tried = torch.zeros_like(self.tried).index_add_(0, pair, torch.ones_like(log_p, dtype=self.tried.dtype))
        chance = torch.zeros_like(tried).index_add_(0, pair, log_p.clamp_max(0).exp().to(tried))
        self.chance.copy_(torch.where(tried > 0, chance / tried, self.chance))
        self.tried += tried
        self.done.index_add_(0, pair, swapped.to(self.done))
        order[below] += swapped.long()
        order[below + 1] -= swapped.long()
        if self.previous is not None:
            self.previous.copy_(self.previous[order])
        return order

    def adapt(self) -> None:
        """Move the rungs of the pairs that swapped last. Waits for the device."""
        pairs, distance = slice(self.turn, None, 2), self.ladder.log().diff()
        error = self.chance.cpu().double()[pairs] - SWAPS
        distance[pairs] *= (GAIN / (self.moves + DELAY) ** POWER * error).exp()
        self.ladder[1:] = torch.minimum(distance, self.widest).cumsum(0).exp()
        self.factor = self.ladder[self.rung.cpu()]  # graphs hold the tensors on the device
        self.moves += 1
        self.tried.zero_()
        self.done.zero_()  # rates are those of the ladder as it stays

    def adapts(self, step: int) -> bool:
        """Whether a swap after so many steps moves the ladder."""
        return self.exchange.adapt_steps / 2 <= step < self.adapting

    def adapt_until(self, step: int) -> None:
        """Let an automatic ladder that adapts do so until the end of a burn-in that has become longer."""
        self.adapting = max(self.adapting, step) if self.adapting else 0

    def pass_turn(self) -> None:
        """Let the other pairs swap next."""
        self.turn = 1 - self.turn if self.rungs > 2 else 0

    def swap(
        self,
        chain: Chain,
        potential: Potential,
        batch_noise: BatchNoise,
        now: StepSettings,
        launch: Launch | None = None,
        exact: bool = False,
    ) -> None:
        """Swap states between neighbours, if it is time. Chains keep their T and what they have learnt at it.

        launch: runs the kernels together. exact: the energies are those of all the data.
        """
        energy = potential.energy
        if energy is None:
            raise ConfigError("replica exchange needs the energy of every step: call step(closure)")
        follows, due = self.counts(energy), now.samples and not (chain.steps + 1) % self.exchange.every
        exact = exact or chain.sees_all_data and self.exchange.energy == "full"
        judged = potential.full_energy(now.lr) if due and self.exchange.energy == "full" and not exact else energy
        held = self._near(energy)
        seen = held.copy("energy", energy)
        judged = seen if judged is energy else held.copy("full energy", judged)
        weight = held.put("weight", self.weight if follows else 1.0)
        t, lr = held.put("temperature", now.temperature, each=True), held.put("lr", now.lr, each=True)
        uniform = held.uniform("uniform", chain.generator) if due else None

        def work() -> Tensor | None:
            if follows:
                self.follow(seen, weight)
            if uniform is None:
                return None
            order = self.order(judged, t, uniform.log(), exact)
            chain.reorder(order)
            chain.dynamics.after_swap(chain.state, order, chain.g, lr, t)
            return order

        mine = self.previous, self.square, self.tried, self.done, self.chance
        reads = (*mine, chain.theta, chain.g, *chain.values(), *chain.companions)
        key = ("exchange", follows, due, due and self.turn, judged is seen, self.count > 0)
        order = work() if launch is None else launch(work, key, reads)
        if order is not None:
            if self.adapts(chain.steps):
                self.adapt()
            self.pass_turn()
            batch_noise.reorder(order)

    def _near(self, energy: Tensor) -> HeldNumbers:
        """Where the kernels of a swap find the numbers of a step, on the device of the energies."""
        if self._held is None or not self._held.serves(energy.device, energy.dtype):
            self._held = HeldNumbers(energy)
        return self._held

    def describe(self) -> str:
        """The sentence of `Sampler.explain`."""
        ladder = ", ".join(f"{f:.4g}" for f in self.ladder.tolist())
        known = ", ".join(f"{r:.2f}" for r in self.rates.tolist() if r == r) or "unknown yet"
        power = self.exchange.lr_power
        slower = f"; lr falls with T to the power {power:.3g}" if power else ""
        kept = f"the first rung, {len(self.target)} of {self.chains} chains, is kept"
        return f"replica exchange: temperatures T times {ladder}{slower}; {kept}; swap rates {known}"

    def variance(self) -> Tensor | float:
        """σ² of the pairs (c, c + 1), (C,) or a number; infinite while it is unknown, which forbids every swap."""
        var = 0.0 if self.exchange.energy == "full" else self.exchange.energy_var
        if var != "estimated":
            return float(var)
        return self.square if self.count else math.inf
