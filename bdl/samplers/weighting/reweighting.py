"""A weighting along one stack of chains: the energy it reads, psi, the multiplier and the log weight that follow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from bdl.devices import moved, widened, widest
from bdl.errors import ConfigError
from bdl.psi import Array, lean
from bdl.samplers.dynamics.base import Scalar
from bdl.samplers.potential import Launch, Potential
from bdl.samplers.resume import Saved
from bdl.samplers.settings import StepSettings, any_positive
from bdl.samplers.weighting.base import Weighting
from bdl.samplers.weighting.histogram import Histogram
from bdl.samplers.weighting.partition import RECENT
from bdl.samplers.weighting.recorded import RecordedWeighting, WeighedSteps, smoothed


class Reweighting(Saved):
    """Runs a weighting along one stack of chains. Shapes (C,), C = 1 without chains; energies in nats."""

    saved = ("multiplier", "log_weight", "energy", "reference", "reference_energy", "learnt_at")

    def __init__(self, weighting: Weighting, chains: int, device: torch.device, num_data: int = 1):
        self.weighting: Any = weighting
        self.num_data = num_data
        self.multiplier = torch.ones(chains, dtype=widest(device), device=device)
        self.log_weight = torch.zeros_like(self.multiplier)
        self.histogram: Histogram | None = None
        self.energy: Tensor | None = None  # the last energy of the kind that the weighting reads
        self.reference: Tensor | None = None  # (..., d) θ at which the control variate's energy is known
        self.reference_energy: Tensor | None = None  # over all the data, at `reference`
        self.learnt_at: tuple[Any, float] | None = None  # (T, zeta) at the last step that updated psi
        self._recorded: RecordedWeighting | None = None

    def weigh(
        self,
        g: Tensor,
        energy: Tensor | None,
        potential: Potential,
        now: StepSettings,
        scale: Callable[[Tensor, Tensor], Any] = Tensor.mul_,
        launch: Launch | None = None,
    ) -> Tensor | None:
        """Multiply g (..., d) in place by the multiplier (..., 1) and return it; psi learns from the energy (C,).

        scale: multiplies. launch: runs the kernels together, once the bins are known.
        """
        if energy is None or not self.weighting.needs_energy:
            return None
        self.energy = self._of_kind(energy, potential, now.lr)
        if launch is not None and g.device.type != "cpu" and now.all_sample:
            h = self.histogram
            if h is not None and h.edges is not None:
                return self._weigh_recorded(h, g, self.energy, now, launch)
        self._weigh_and_learn(lean(self.energy), now)
        multiplier = self.multiplier.to(g.dtype).view(*g.shape[:-1], 1)
        scale(g, multiplier)
        return multiplier

    def _weigh_recorded(self, h: Histogram, g: Tensor, u: Tensor, now: StepSettings, launch: Launch) -> Tensor:
        t, zeta, kernels = now.temperature, now.zeta, self._kernels()
        self._note_law(h, t, zeta)
        self.multiplier, self.log_weight, multiplier = kernels.weigh(h, g, u, t, zeta, not h.frozen, launch)
        u = kernels.seen
        self.weighting.observe(h, u, t, zeta, self.num_data)
        return multiplier

    def can_walk(self, settings: Sequence[StepSettings]) -> bool:
        """Whether steps with these settings need nothing but their own energies, and have the law of the last step."""
        h, known = self.histogram, ("batch", "ema")
        return (
            h is not None
            and h.edges is not None
            and self.energy is not None
            and self.weighting.energy in known
            and all(
                s.all_sample and (1.0 if self.in_temperatures else s.temperature, s.zeta) == self.learnt_at
                for s in settings
            )
        )

    @property
    def room(self) -> int:
        """How many steps there are before the bins may change; 0 where a pilot has still to find them, or has just."""
        h = self.histogram
        return 0 if h is None or h.edges is None or h.updates == 0 else RECENT - h.seen % RECENT

    def begin_walk(self, now: StepSettings) -> None:
        """Prepare a walk for which `can_walk` holds."""
        assert self.histogram is not None and self.energy is not None
        self._kernels().begin_walk(self.histogram, self.energy, now)

    def begin(self, steps: int) -> WeighedSteps:
        """The kernels of the next steps of the walk; `end` follows."""
        assert self.histogram is not None
        return self._kernels().begin(self.histogram, steps)

    def end(self, steps: int, now: StepSettings) -> None:
        """Count these steps, and look at the bins if it is time."""
        assert self.histogram is not None
        self.histogram.seen += steps
        self.weighting.look(self.histogram, now.temperature, now.zeta, self.num_data)

    def end_walk(self) -> None:
        """Take what the walk leaves."""
        both, self.energy = self._kernels().left()
        self.multiplier, self.log_weight = both.unbind()

    def _kernels(self) -> RecordedWeighting:
        if self._recorded is None or self._recorded.device != self.multiplier.device:
            self._recorded = RecordedWeighting(self.weighting, self.multiplier)
        return self._recorded

    def _weigh_and_learn(self, u: Array, now: StepSettings) -> None:
        t, zeta = now.temperature, now.zeta
        scale = lean(moved(t, self.multiplier.device, non_blocking=True)) if isinstance(t, Tensor) else t
        if self.in_temperatures:  # U/T has the law exp(-U/T) at every T, so that no T stands before the slope
            if not now.samples:
                self.multiplier, self.log_weight = torch.ones_like(self.multiplier), torch.zeros_like(self.log_weight)
                return
            if not now.all_sample:
                raise ConfigError(
                    f'units="temperature" divides energies by T, got {t}: set T > 0 in every chain, or units="nats"'
                )
            u, scale = u / scale, 1.0
        h = self.histogram = self.histogram or self.weighting.init(torch.as_tensor(u), self.num_data)
        log_psi, slope = h.evaluate(u)
        self.multiplier = torch.as_tensor(1 + zeta * scale * slope)
        toward = self.weighting.toward(t)
        self.log_weight = torch.as_tensor(zeta * log_psi if toward is None else toward.log_weight(zeta * log_psi, u))
        if now.samples:  # energies at T = 0 have no law that psi could learn
            self._learn(h, u, t, zeta)

    @property
    def in_temperatures(self) -> bool:
        return self.weighting.units == "temperature"

    def log_weight_at(self, u: Tensor, zeta: float, temperature: Scalar) -> Tensor:
        """(C,) the log weight to the target at the energies u (C,), nats, by the present psi; 0 without bins or U/T."""
        at = torch.as_tensor(temperature, dtype=u.dtype, device=u.device)
        if self.histogram is None or (self.in_temperatures and not any_positive(temperature)):
            return torch.zeros_like(u)
        log_psi = torch.as_tensor(self.histogram.evaluate(lean(u / at if self.in_temperatures else u))[0])
        toward = self.weighting.toward(temperature)
        return zeta * log_psi if toward is None else toward.log_weight(zeta * log_psi, u)

    def at_full_energy(self, energies: list[float] | None, rows: list[int], now: StepSettings) -> Tensor | None:
        """(C,) log importance weights at full-data energies, nats, of the chains `rows`; those of others mean nothing.

        None without such energies, and where psi reads others.
        """
        if self.weighting.energy != "full" or energies is None:
            return None
        each = torch.full(self.multiplier.shape, energies[0], dtype=torch.float64)
        each[rows] = torch.tensor(energies, dtype=torch.float64)
        return self.log_weight_at(each.to(self.multiplier.device), now.zeta, now.temperature)

    def freeze(self) -> bool:
        """Stop psi from learning if it has settled at the present T and zeta; returns whether it is frozen.

        With a target, the energies have to reach those of the target by then.
        """
        h = self.histogram
        if h is not None and not h.frozen and h.settled and self.learnt_at is not None:
            t, zeta = self.learnt_at
            toward = self.weighting.toward(torch.tensor(t) if isinstance(t, list) else t)
            h.frozen = toward is None or toward.is_reached(h, zeta)
        return h is not None and h.frozen

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "histogram": None if self.histogram is None else self.histogram.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any], theta: Tensor) -> None:
        super().load_state_dict(state, theta)
        for name in ("multiplier", "log_weight", "energy", "reference_energy"):
            setattr(self, name, widened(state[name], theta.device))
        h = state["histogram"]
        if h is not None:
            h = Histogram(**{k: widened(v, theta.device) for k, v in h.items()}, form=self.weighting.psi_form)
        self.histogram = h

    def _of_kind(self, batch_energy: Tensor, potential: Potential, lr: Scalar) -> Tensor:
        kind, last = self.weighting.energy, self.energy
        due = last is None or potential.chain.steps % self.weighting.refresh == 0
        if kind == "ema":
            if last is None:
                return batch_energy.clone()
            return smoothed(last, batch_energy)
        if kind == "full":
            return potential.full_energy(lr) if due or last is None else last
        if kind == "control":
            return batch_energy + self._correction(potential, lr, due)
        return batch_energy

    def _correction(self, potential: Potential, lr: Scalar, due: bool) -> Tensor:
        """(C,) energy of all the data less that of the batch, both at the reference θ: a control variate of mean 0.

        The noise of two energies of one batch is nearly the same while θ is near. due: the present θ is the reference.
        """
        if self.reference is None or self.reference_energy is None or due:
            self.reference, self.reference_energy = potential.chain.theta.clone(), potential.full_energy(lr)
        return self.reference_energy - potential.batch_energy_at(self.reference)

    def _learn(self, h: Histogram, u: Array, t: Scalar, zeta: float) -> None:
        self._note_law(h, t, zeta)
        if h.edges is not None:
            self.weighting.update(h, u, zeta)
        self.weighting.observe(h, u, t, zeta, self.num_data)

    def _note_law(self, h: Histogram, t: Scalar, zeta: float) -> None:
        """Let the histogram forget what it has learnt at another T or zeta."""
        at = 1.0 if self.in_temperatures else t.tolist() if isinstance(t, Tensor) else t
        learns_at = (at, 0.0 if h.edges is None else zeta)  # a pilot is not weighted
        if self.learnt_at not in (None, learns_at):
            h.forget()
        self.learnt_at = learns_at
