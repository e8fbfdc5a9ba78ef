"""What can be read of a sampler between its steps: energies, temperatures, weights, and a snapshot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bdl.devices import moved
from bdl.samplers.batch_gradient import BatchGradient, GradientEstimator
from bdl.samplers.batch_noise import BatchNoise
from bdl.samplers.chain import Chain
from bdl.samplers.compiled import CompiledUpdate
from bdl.samplers.compiled_microcanonical import CompiledMCLMC
from bdl.samplers.divergence import Survivors
from bdl.samplers.dynamics.base import Scalar, Transition
from bdl.samplers.exchange import Replicas
from bdl.samplers.potential import Potential
from bdl.samplers.settings import StepSettings
from bdl.samplers.weighting.reweighting import Reweighting
from bdl.snapshot import Snapshot, of_rows


class Readings:
    """The readings of a `Sampler`, which holds the pieces that they are taken of. Shapes are () or (C,)."""

    dynamics: Transition
    num_data: int
    chains: int | None
    chain: Chain
    potential: Potential
    batch_noise: BatchNoise
    reweighting: Reweighting
    survivors: Survivors
    compiled: CompiledUpdate
    kernel: CompiledMCLMC
    replicas: Replicas | None
    control: GradientEstimator | None
    evaluation: BatchGradient
    extras: dict[str, Callable[[], Tensor]]
    notes: list[str]
    used: StepSettings
    param_groups: list[dict[str, Any]]

    def settings(self) -> StepSettings:
        """The present lr, temperature of every chain, and zeta."""
        now, replicas = StepSettings.of(self.param_groups[0], self.steps), self.replicas
        return now if replicas is None else replace(now, temperature=replicas.temperatures(now.temperature))

    @property
    def steps(self) -> int:
        """How many steps the chain has taken."""
        return self.chain.steps

    @property
    def energy(self) -> Tensor | None:
        """() or (C,) batch estimate of U, nats, at the θ of the last gradient; None where it was not measured."""
        return None if self.potential.energy is None else self.chain.per_chain(self.potential.energy)

    @property
    def multiplier(self) -> Tensor:
        """() or (C,) factor by which the weighting has multiplied the last gradient."""
        return self.chain.per_chain(self.reweighting.multiplier)

    @property
    def log_weight(self) -> Tensor:
        """() or (C,) log importance weight at the last energy that psi has read."""
        return self.chain.per_chain(self.reweighting.log_weight)

    @property
    def acceptance(self) -> Tensor | None:
        """() or (C,) mean acceptance probability of an accept/reject kernel since it stopped adapting; else None."""
        rate = self.dynamics.acceptance(self.chain.state)
        return None if rate is None else self.chain.per_chain(rate.reshape(-1))

    @property
    def energy_error(self) -> Tensor | None:
        """() or (C,) mean square of energy errors over the one that the kernel tunes itself to; else None."""
        error = self.dynamics.energy_error(self.chain.state)
        return None if error is None else self.chain.per_chain(error.reshape(-1))

    @property
    def elbo(self) -> Tensor | None:
        """() or (C,) one-draw estimate of the evidence lower bound, nats, at T = 1; None unless variational.

        Its mean over draws is the bound. NaN under an improper prior, and at the first step, which starts from the
        parameters of the network instead of a draw.
        """
        chain, energy = self.chain, self.potential.energy
        if chain.entropy is None or energy is None:
            return None
        constant = self.potential.prior.constant(chain.theta.shape[-1])
        return chain.per_chain(chain.entropy.reshape(-1) - energy - constant)

    @property
    def configurational_temperature(self) -> Tensor | None:
        """() or (C,) <θ, ∇U>/d, or None, see `Chain`."""
        return self.chain.configurational_temperature

    def full_energy(self) -> Tensor:
        """() or (C,) U over all the data at the present θ, nats. Raises ConfigError without `full_loss`."""
        return self.chain.per_chain(self.potential.full_energy(self.param_groups[0]["lr"]))

    @property
    def batch_variance(self) -> Tensor | None:
        """(..., d) Var(g) of one batch, of every coordinate that `batch_noise` follows; None before it is known."""
        variance, share = self.batch_noise.variance, self.chain.host.noise_share
        return variance if variance is None or share == 1 else variance * share

    @property
    def noise_ratio(self) -> Tensor:
        """() or (C,) mean of lr Var(g) / (2 a tau), batch noise over injected noise; coordinates may differ much."""
        return self._batch_share(self.dynamics.noise_ratio)

    @property
    def t_eff(self) -> Tensor:
        """() or (C,) effective temperature, about T (1 + noise_ratio) less what the dynamics subtracts or absorbs.

        It is the mean over directions, and no bound: a direction in which batches have more noise than in others is
        hotter, see `Transition.heat_along`. The noise of shuffled batches cancels over a pass over the data, so that
        directions that relax over many passes are colder than this counts them. T itself under a `FullBatch` kernel.
        """
        share = self._batch_share(self.dynamics.heating)
        t = self.settings().temperature
        return (moved(t, share.device, non_blocking=True) if isinstance(t, Tensor) else t) * (1 + share)

    @property
    def kinetic_temperature(self) -> Tensor:
        """() or (C,) temperature that the momenta show, expected to be T for exact gradients; NaN without momenta."""
        lr, _ = self.chain.per_coordinate(self.param_groups[0]["lr"], 1.0, 1)
        return self.num_data * self.dynamics.kinetic_tau(self.chain.state, lr)

    @property
    def swap_rates(self) -> Tensor | None:
        """(K - 1,) share of swaps that were made between neighbours of the ladder; None without exchange."""
        return None if self.replicas is None else self.replicas.rates

    @property
    def target_chains(self) -> list[int]:
        """The chains with the target distribution: all that count; under replica exchange those of the first rung."""
        counting = [c for c in range(self.chains or 1) if c not in self.survivors.lost]
        return counting if self.replicas is None else self.replicas.target

    def log_weight_at(self, energy: Tensor) -> Tensor:
        """() or (C,) log importance weight of an energy (nats) of the kind that psi reads, with the present psi."""
        group = self.param_groups[0]
        return self.reweighting.log_weight_at(energy.to(self.chain.theta.device), group["zeta"], group["temperature"])

    def snapshot(self, full_energy: bool = True, freeze_weighting: bool = True) -> Snapshot:
        """The present state, as plain values. Raises DivergedError if it is not finite.

        full_energy: evaluate U over all the data, where `full_loss` is set. freeze_weighting: stop psi from learning if
        it has settled, which importance weights need.
        """
        self.potential.check(self.param_groups[0]["lr"])
        frozen = self.reweighting.freeze() if freeze_weighting else False
        rows, used = self.target_chains, self.used
        measured = full_energy and self.chain.host.full_loss is not None
        energy = of_rows(self.full_energy(), self.chains, rows) if measured else None
        return Snapshot(
            step=self.steps,
            stack=self.chain.stack,
            rows=rows,
            chains=[self.survivors.number(c) for c in rows],
            lr=_number(used.lr, rows),
            temperature=_number(used.temperature, rows),
            zeta=float(used.zeta),
            energy_full=energy,
            log_weight=of_rows(self.full_log_weight(energy, rows), self.chains, rows),
            psi_frozen=frozen,
            precision=_precisions(self.potential.prior.learned(), rows),
        )

    def full_log_weight(self, energy_full: list[float] | None, rows: list[int]) -> Tensor | None:
        """(C,) log importance weights at full-data energies, nats, of the chains `rows`; those of others mean nothing.

        None without such energies, and where psi reads others.
        """
        if self.reweighting.weighting.energy != "full" or energy_full is None:
            return None
        each = torch.full((self.chains or 1,), energy_full[0], dtype=torch.float64)
        each[rows] = torch.tensor(energy_full, dtype=torch.float64)
        return self.log_weight_at(each)

    def psi(self) -> tuple[dict[str, Tensor], dict[str, str]] | None:
        """psi and how it was fitted, see `Reweighting.describe`; None without a weighting."""
        group = self.param_groups[0]
        return self.reweighting.describe(float(group["zeta"]), group["temperature"])

    def excluded(self) -> dict[int, int]:
        """The step of the divergence by the number of every chain whose samples do not count."""
        return self.survivors.excluded()

    def _batch_share(self, terms: Callable[..., Tensor]) -> Tensor:
        """() or (C,) mean over coordinates of the dynamics' `noise_ratio` or `heating`; NaN where it is unknown."""
        chain, now, variance = self.chain, self.settings(), self.batch_variance
        if self.dynamics.full_batch or self.chain.host.sees_all_data:
            return torch.zeros(chain.lead, device=chain.theta.device)
        if variance is None or not self.dynamics.noisy or not now.samples:
            return torch.full(chain.lead, torch.nan, device=chain.theta.device)
        multiplier = self.reweighting.multiplier.to(variance).view(*chain.lead, 1)
        lr, tau = chain.per_coordinate(now.lr, now.temperature, self.num_data)
        state, lr = chain.thinned(lr, self.batch_noise.stride)
        return terms(state, variance * multiplier.square(), lr, tau).mean(-1)  # Var(w g) = w² Var(g)


def _precisions(learned: list[Tensor], rows: list[int]) -> list[list[float]] | None:
    """What a prior has learned, tensors (..., G), for these chains; None where it learns nothing."""
    if not learned:
        return None
    values = torch.cat(learned, -1)
    return values.reshape(-1, values.shape[-1])[rows].cpu().tolist()


def _number(value: Scalar, rows: list[int]) -> float | list[float]:
    """One number for all chains, or one for each of `rows`."""
    if isinstance(value, Tensor) and value.ndim:
        return [float(value[c]) for c in rows]
    return float(value)
