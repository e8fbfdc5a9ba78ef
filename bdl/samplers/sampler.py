"""The shell that joins a dynamics and a weighting to torch: gather, weigh, step. Only here noise is drawn."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from bdl.errors import ConfigError
from bdl.samplers import parallel
from bdl.samplers.accepting import accept_reject_step
from bdl.samplers.batch_noise import GradientNoise
from bdl.samplers.checks import check_loss, check_number, refuse_combinations, refuse_identical, refuse_idle
from bdl.samplers.clipping import Clip
from bdl.samplers.divergence import DivergenceWatch, Named, refuse
from bdl.samplers.dynamics.base import Dynamics, Scalar
from bdl.samplers.dynamics.metropolis import Kernel
from bdl.samplers.exchange import Exchange, Replicas, swap_states
from bdl.samplers.explain import explain
from bdl.samplers.flat import FlatBuffer
from bdl.samplers.heat import batch_share
from bdl.samplers.needs import extra_for
from bdl.samplers.priors import Gaussian, Prior
from bdl.samplers.resume import load_sampler_state, sampler_state
from bdl.samplers.weighting.reweighting import Reweighting, any_positive
from bdl.samplers.weighting.weightings import Flat, Histogram, Weighting
from bdl.seeding import generator


class Sampler(torch.optim.Optimizer):
    """Samples exp(-U/T) for U = -Σ log p(y_i|x_i,θ) - log p(θ), from gradients of mini-batch means.

    Args:
        params: tensors, or (name, tensor) pairs, all of one dtype on one device.
        dynamics: how θ moves, e.g. `SGHMC(friction=0.1)`, or an accept/reject kernel, e.g. `HMC()`.
        num_data: N, the number of items in the training set (images, not augmentations).
        lr: step size in SGD's units, > 0; a float, or a (C,) tensor.
        temperature: T >= 0; a float, or a (C,) tensor, on the CPU: a look at one on a GPU would make every step wait.
            1 is the Bayes posterior, below 1 a cold one.
        prior: `Gaussian(precision)`, `Uniform()`, ...
        weighting: `Flat()`, `AdaptiveWeight(...)`, `Contour(...)`.
        chains: C when every parameter carries a leading axis of C independent chains.
        clip: `ClipNorm(c)` or `ClipValue(c)` on the gradient of U/N.
        seed, stack: noise is drawn from a stream of its own, named by both.
        group: process group whose ranks share one chain, each with batches of its own: the energy is averaged over it
            (the gradient by DistributedDataParallel), and the ranks are compared every COMPARE_EVERY steps.
        exchange: `Exchange(ladder=...)`: replica exchange between the chains; `temperature` is the first rung's.

    `param_groups[0]` holds `lr`, `temperature` and `zeta`; all may be changed between steps. After a step, `energy`,
    `multiplier` and `log_weight` belong to the θ at which that step's gradient was taken; shape (), or (C,).

    Raises ConfigError for a value that can't be meant, DivergedError when loss or gradient stop being finite,
    ReplicaError when the ranks of a group no longer hold the same numbers.
    """

    def __init__(
        self,
        params: Iterable[Any],
        dynamics: Dynamics | Kernel,
        *,
        num_data: int,
        lr: Scalar,
        temperature: Scalar = 1.0,
        prior: Prior = Gaussian(1.0),
        weighting: Weighting = Flat(),
        chains: int | None = None,
        clip: Clip | None = None,
        seed: int = 0,
        stack: int = 0,
        group: dist.ProcessGroup | None = None,
        exchange: Exchange | None = None,
    ):
        if num_data < 1:
            raise ConfigError(f"num_data must be the number of training items, got {num_data}")
        if chains is not None and chains < 1:
            raise ConfigError(f"chains must be at least 1, got {chains}")
        check_number("lr", lr, chains, strict=True)
        check_number("temperature", temperature, chains, strict=False)
        super().__init__(params, {"lr": lr, "temperature": temperature, "zeta": weighting.zeta})
        self.dynamics: Any = dynamics
        self.weighting, self.clip = weighting, clip
        self.num_data, self.chains, self.seed, self.stack, self.group = int(num_data), chains, seed, stack, group
        self.steps = 0
        self.used = {"lr": lr, "temperature": temperature, "zeta": weighting.zeta}  # by the last step
        self.full_loss: Callable[[], Tensor] | None = None  # () or (C,) mean NLL over all the data at the present θ
        self.loss_is_whole = True  # False where the closure returns less than the batch's mean loss: energies unknown
        self.extras: dict[str, Callable[[], Tensor]] = {}
        self.notes: list[str] = []  # what others (Lightning, say) do to the gradient, for explain()
        live = [(i, p) for i, p in enumerate(self.param_groups[0]["params"]) if p.requires_grad]
        if not live:
            raise ConfigError("no parameter requires a gradient: nothing to sample")
        names = self.param_groups[0].get("param_names")
        labels = [names[i] if names else f"parameter {i}" for i, _ in live]
        self._flat = FlatBuffer([p for _, p in live], labels, chains)
        self._state = dynamics.init(self._flat.theta)
        self.prior = prior.bind(self._flat.shapes, self._flat.theta)
        self._noise = GradientNoise()
        self._generator = generator(self._flat.theta.device, "noise", seed, stack)
        self._energy: Tensor | None = None  # (C,) nats, C = 1 without chains
        self._reweighting = Reweighting(weighting, chains or 1, self._flat.theta.device)
        self.exchange = exchange
        self._replicas = None if exchange is None else Replicas(exchange, chains, self._flat.theta.device)
        self._entropy_of: Callable[[Any], Tensor] | None = getattr(dynamics, "entropy", None)
        self.is_kernel = isinstance(dynamics, Kernel)
        refuse_combinations(self)
        self._distinct = False
        self._entropy: Tensor | None = None  # (C,) of a variational approximation at the last step's draw
        self._allocate()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if self.param_groups:
            raise ConfigError("a Sampler has one parameter group: one chain has one lr and one temperature")
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:  # type: ignore[override]
        """One step of the chain. closure: zeroes the gradients, back-propagates the mean batch NLL and returns it.

        With `chains=C` it returns the (C,) mean losses whose sum it back-propagated.
        """
        if self.is_kernel:
            return accept_reject_step(self, closure)
        loss = self._evaluate(closure)
        self._reattach()
        lr, temperature, zeta = self._numbers()
        self.used = {"lr": lr, "temperature": temperature, "zeta": zeta}
        idle = self._flat.gather(self._g_views)
        if idle and hasattr(self._state, "xi"):
            refuse_idle(self.dynamics, self._flat.names[idle[0]])
        theta, g = self._flat.theta, self._g
        energy = None if loss is None or not self.loss_is_whole else self._energy_of(loss)
        self._watch(loss, energy)
        self._noise.observe(self.steps, g)
        self.prior.add_grad_(g, theta, self.num_data)
        for i in idle:
            self._g_views[i].zero_()
        if self.clip is not None:
            self.clip(g)
        if self._replicas is not None:
            swap_states(self, self._replicas, energy, temperature)
        multiplier = self._weigh(energy, temperature, zeta)
        self._draw(temperature)
        untouched = self._save(idle)
        if self._entropy_of:
            self._entropy = self._entropy_of(self._state).reshape(-1)
        extra = extra_for(self, multiplier)
        tau = self._column(temperature) / self.num_data
        self._advance(self.dynamics.step(self._state, g, self._column(lr), tau, self._z, *extra))
        for view, value in untouched:
            view.copy_(value)
        self._count()
        return loss

    @property
    def energy(self) -> Tensor | None:
        """() or (C,) batch estimate of U, nats, at the θ of the last step's gradient; None without a closure."""
        return None if self._energy is None else self._per_chain(self._energy)

    @property
    def multiplier(self) -> Tensor:
        """() or (C,) factor that the weighting put on the last gradient."""
        return self._per_chain(self._reweighting.multiplier)

    @property
    def log_weight(self) -> Tensor:
        """() or (C,) zeta log psi(U) of the last energy of the weighting's kind: the log importance weight."""
        return self._per_chain(self._reweighting.log_weight)

    @property
    def weighting_energy(self) -> Tensor | None:
        """() or (C,) the last energy of the kind that the weighting reads: batch, smoothed or full; nats."""
        energy = self._reweighting.energy
        return None if energy is None else self._per_chain(energy)

    @property
    def histogram(self) -> Histogram | None:
        """State of psi, None without a weighting."""
        return self._reweighting.histogram

    def full_energy(self) -> Tensor:
        """() or (C,) U over all the data at the present θ, nats. Needs `full_loss`."""
        if self.full_loss is None:
            raise ConfigError(
                "a full-data energy needs sampler.full_loss, a function that returns the mean NLL over all data"
            )
        with torch.no_grad():
            energy = self._energy_of(self.full_loss())
        refuse(self.steps, [("the full-data energy", energy)], self.param_groups[0]["lr"])
        return self._per_chain(energy)

    @property
    def noise_ratio(self) -> Tensor:
        """() or (C,) mean over coordinates of lr Var(g) / (2 a tau): variance from batches over variance injected.

        Single coordinates, and `grad_var` in them, may lie far from the mean.
        """
        return batch_share(self, "noise_ratio")

    @property
    def t_eff(self) -> Tensor:
        """() or (C,) about the temperature that the mini-batches make of T: T (1 + noise_ratio), less what the dynamics
        subtracts or absorbs; T itself under an accept/reject kernel.

        It takes batches as independent. Those of a shuffled epoch are not: in directions that relax over more than an
        epoch their noise cancels, and there T_eff is an upper bound.
        """
        share = batch_share(self, "heating")
        return torch.as_tensor(self._numbers()[1]).to(share.device) * (1 + share)

    @property
    def kinetic_temperature(self) -> Tensor:
        """() or (C,) temperature that the momenta show, expected to be T for exact gradients; NaN without momenta."""
        measure = getattr(self.dynamics, "kinetic_tau", None)
        if measure is None:
            return torch.full(self._flat.lead, math.nan, device=self._flat.theta.device)
        return self.num_data * measure(self._state, self._column(self.param_groups[0]["lr"]))

    @property
    def acceptance(self) -> Tensor | None:
        """() or (C,) mean acceptance probability of an accept/reject kernel since it stopped adapting; else None."""
        if not self.is_kernel:
            return None
        s = self._state
        return self._per_chain((s.accepted / max(s.steps - self.dynamics.adapt_steps, 0)).reshape(-1))

    @property
    def swap_rates(self) -> Tensor | None:
        """(K - 1,) share of proposed swaps that were made between neighbours of the ladder; None without exchange."""
        return None if self._replicas is None else self._replicas.rates

    @property
    def target_chains(self) -> list[int]:
        """The chains that sample the law meant: all of them, or under replica exchange those of the first rung."""
        return list(range(self.chains or 1)) if self._replicas is None else self._replicas.target

    @property
    def elbo(self) -> Tensor | None:
        """() or (C,) one-draw estimate of the evidence lower bound, nats, at T = 1; None unless variational.

        Its mean over draws is the bound. NaN under an improper prior, and at the first step, which starts from the
        network's own parameters instead of a draw.
        """
        if self._entropy is None or self._energy is None:
            return None
        return self._per_chain(self._entropy - self._energy - self.prior.constant(self._flat.theta.shape[-1]))

    def explain(self) -> str:
        """A few lines: N, T, prior, the law meant, the noise of one step, and what adds to it."""
        return explain(self)

    def log_weight_at(self, energy: Tensor) -> Tensor:
        """() or (C,) log importance weight that an energy of the weighting's kind has, psi as it stands; nats in."""
        return self._reweighting.log_weight_at(energy.to(self._flat.theta.device), self.param_groups[0]["zeta"])

    def freeze_weighting(self) -> bool:
        """Stop psi from learning if it has settled at the present T and zeta; returns whether it is frozen."""
        return self._reweighting.freeze()

    def check(self) -> None:
        """Raise DivergedError if any step so far met numbers that are not finite, or θ is not. A device sync."""
        lr = self.param_groups[0]["lr"]
        refuse(self.steps, [("a parameter", self._flat.theta)], lr)
        self._divergence.check(lr)

    def state_dict(self) -> dict[str, Any]:
        """`{state, param_groups, bdl}`; the last a dict of tensors and numbers that torch does not cast."""
        self.check()
        self._link_state()
        return {**super().state_dict(), "bdl": sampler_state(self)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the chain that was saved, bit for bit on the same machine, versions, device and threads."""
        self._reattach()
        load_sampler_state(self, state_dict)

    # ---- one step, in its order -------------------------------------------------------------------------------------

    def _evaluate(self, closure: Callable[[], Tensor] | None) -> Tensor | None:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if loss is not None:
            loss = torch.as_tensor(loss).detach()
        check_loss(loss, self._flat.lead, self.weighting, called=closure is not None)
        return loss

    def _reattach(self) -> None:
        """Follow parameters that `.to()`, `.double()` or a teardown has moved, and take the chain's state along."""
        if not self._flat.moved():
            return
        self.check()  # the flag of a bad step is about to be made anew
        old = self._flat.theta
        if any(p.numel() != n * (self.chains or 1) for p, n in zip(self._flat.params, self._flat.sizes, strict=True)):
            raise ConfigError("a parameter changed its shape under the sampler: build a new Sampler after such surgery")
        self._flat.attach()
        theta = self._flat.theta
        changes = {
            f.name: value.to(theta if value.dtype == old.dtype else theta.device)  # a double stays one
            for f in dataclasses.fields(self._state)
            if isinstance(value := getattr(self._state, f.name), Tensor)
        }
        self._state = dataclasses.replace(self._state, **{**changes, "theta": theta})
        self._noise.load_state_dict(self._noise.state_dict(), theta)
        self._reweighting.load_state_dict(self._reweighting.state_dict(), theta.device)
        if self._replicas is not None:
            self._replicas.load_state_dict(self._replicas.state_dict(), theta.device)
        if theta.device != old.device:
            self._generator = generator(theta.device, "noise", self.seed, self.stack, self.steps)
        self._allocate()

    def _allocate(self) -> None:
        theta = self._flat.theta
        self._g, self._z = torch.zeros_like(theta), torch.zeros_like(theta)
        self._g_views, self._z_views = self._flat.split(self._g), self._flat.split(self._z)
        self._silent = True  # is z zero?
        self._left_at: Tensor | None = None  # θ as a kernel's last step left it
        self._divergence = DivergenceWatch(theta.device)
        self._link_state()

    def _numbers(self) -> tuple[Scalar, Scalar, float]:
        group = self.param_groups[0]
        lr, temperature, zeta = group["lr"], group["temperature"], group["zeta"]
        for name, value in (("lr", lr), ("temperature", temperature), ("zeta", zeta)):
            if not isinstance(value, Tensor) and not value >= 0:
                raise ConfigError(f"{name} must be >= 0, got {value} at step {self.steps}")
        return lr, temperature if self._replicas is None else self._replicas.temperatures(temperature), zeta

    def _watch(self, loss: Tensor | None, energy: Tensor | None) -> None:
        def suspects() -> Named:
            yield from (("the loss", loss), ("the energy", energy))
            for name, view in zip(self._flat.names, self._g_views, strict=True):
                yield f"the gradient of {name}", view

        total = self._g.sum() if energy is None else self._g.sum() + energy.sum()
        self._divergence.see(self.steps, total, suspects, self.param_groups[0]["lr"])

    def _energy_of(self, loss: Tensor) -> Tensor:
        """(C,), C = 1 without chains; U = N loss + prior energy in double precision."""
        energy = loss.detach().double() * self.num_data
        if self.group is not None:
            parallel.mean_over(self.group, energy)
        return (energy + self.prior.energy(self._flat.theta)).reshape(-1)

    def _weigh(self, energy: Tensor | None, temperature: Scalar, zeta: float) -> Tensor | None:
        """Multiply the gradient by what the weighting says, and return that, (..., 1); None without a weighting."""
        self._energy = energy
        if energy is None or not self.weighting.needs_energy:
            return None
        full = lambda: self.full_energy().reshape(-1)  # noqa: E731
        multiplier = self._reweighting.step(energy, full, self.steps, temperature, zeta)
        multiplier = multiplier.to(self._g.dtype).view(*self._flat.lead, 1)
        self._g.mul_(multiplier)
        return multiplier

    def _draw(self, temperature: Scalar) -> None:
        if getattr(self.dynamics, "noisy", True) and any_positive(temperature):
            self._z.normal_(generator=self._generator)
            self._silent, self._distinct = False, True
            return
        if not self._silent:
            self._z.zero_()
            self._silent = True
        if self.chains and self.chains > 1 and not self._distinct:
            refuse_identical(self._flat.theta, self._g)
            self._distinct = True

    def _save(self, idle: list[int]) -> list[tuple[Tensor, Tensor]]:
        """Values of the coordinates that have no gradient, to be put back after the step: they are left alone."""
        if not idle:
            return []
        moving = [getattr(self._state, name) for name in self._vector_fields()]
        return [(view, view.clone()) for flat in moving for i, view in enumerate(self._flat.split(flat)) if i in idle]

    def _advance(self, state: Any) -> None:
        if state.theta is not self._flat.theta:  # a dynamics written without in-place operations
            self._flat.theta.copy_(state.theta)
            state = dataclasses.replace(state, theta=self._flat.theta)
        self._state = state

    def _count(self) -> None:
        """The step is made. Its ranks are compared after the first, where they may have started apart, and then on."""
        self.steps += 1
        if self.group is not None and (self.steps == 1 or self.steps % parallel.COMPARE_EVERY == 0):
            h, fields = self.histogram, (getattr(self._state, f.name) for f in dataclasses.fields(self._state))
            state = [v for v in fields if isinstance(v, Tensor)]
            parallel.compare(self.steps, state if h is None else [*state, h.psi], self.group)

    def _vector_fields(self) -> list[str]:
        theta = self._flat.theta
        values = ((f.name, getattr(self._state, f.name)) for f in dataclasses.fields(self._state))
        return [name for name, value in values if isinstance(value, Tensor) and value.shape == theta.shape]

    def _link_state(self) -> None:
        """`state[p]` shows every parameter-shaped part of the dynamics' state, as torch's own optimisers do."""
        for name in self._vector_fields():
            if name != "theta":
                for p, view in zip(self._flat.params, self._flat.split(getattr(self._state, name)), strict=True):
                    self.state[p][name] = view

    def _column(self, value: Scalar) -> Scalar:
        """(C,) tensors become (C, 1) of θ's type and device, floats stay."""
        if not isinstance(value, Tensor) or value.ndim == 0:
            return value
        return value.to(self._flat.theta, non_blocking=True).unsqueeze(-1)

    def _per_chain(self, value: Tensor) -> Tensor:
        return value if self.chains is not None else value[0]
