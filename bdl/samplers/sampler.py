"""The shell that joins a dynamics and a weighting to torch: a `torch.optim.Optimizer` whose steps draw samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from bdl.errors import ConfigError
from bdl.frozen import FrozenMode, Only
from bdl.identity import identity
from bdl.samplers import blocks as block
from bdl.samplers import parallel
from bdl.samplers.batch_noise import BatchNoise
from bdl.samplers.buffer import refuse_unfrozen, sampled
from bdl.samplers.chain import Chain
from bdl.samplers.clipping import Clip
from bdl.samplers.combinations import refuse_combinations, refuse_factors
from bdl.samplers.dynamics.base import Scalar, Transition
from bdl.samplers.exchange import Exchange, Replicas
from bdl.samplers.explain import explain
from bdl.samplers.extras import Extras
from bdl.samplers.forwarded import forwarded, per_chain
from bdl.samplers.moves import Parts, by_closure, by_gradient, full_batch_move, gradient_move
from bdl.samplers.potential import Closure, Gradient, Launch, Potential
from bdl.samplers.priors import Gaussian, Prior
from bdl.samplers.resume import check_saved, refuse_copy, to_save
from bdl.samplers.settings import Settings, check_numbers
from bdl.samplers.survivors import OnDivergence, Survivors
from bdl.samplers.temperatures import batch_share
from bdl.samplers.weighting.reweighting import Reweighting
from bdl.samplers.weighting.weightings import Flat, Weighting


class Sampler(torch.optim.Optimizer):
    """Samples exp(-U/T) for U = -Σ log p(y_i|x_i,θ) - log p(θ), from gradients of mini-batch means.

    Args:
        params: tensors, or (name, tensor) pairs, all of one dtype on one device.
        dynamics: how θ moves, e.g. `SGHMC(friction=0.1)`, or a kernel on all the data, e.g. `HMC()`.
        num_data: N, the number of items in the training set (images, not augmentations).
        lr: step size in SGD's units, > 0; a float, or a (C,) tensor.
        temperature: T >= 0; a float, or a (C,) tensor on the CPU, since reading one on a GPU makes every step wait.
            1 is the Bayes posterior; below 1 the posterior is cold.
        prior: `Gaussian(precision)`, `Uniform()`, ...
        weighting: `Flat()`, `AdaptiveWeight(...)`, `Contour(...)`.
        chains: C when every parameter carries a leading axis of C independent chains.
        clip: `ClipNorm(c)` or `ClipValue(c)` on the gradient of U/N.
        seed, stack: together they name the random stream from which noise is injected.
        group: process group whose ranks share one chain and each see other batches. The energy is averaged over it (and
            the gradient by DistributedDataParallel); every `parallel.COMPARE_EVERY` steps the ranks are compared.
        exchange: `Exchange(ladder=...)`, replica exchange between the chains; `temperature` is that of the first rung.
        only: patterns of names, such as "head.*": the other parameters are frozen (`requires_grad` becomes False).
        frozen: mode in which `BayesianModule` and `CollectSamples` hold the modules of a frozen part, see `bdl.frozen`.
        blocks: a `Block` by pattern, the first that matches: a prior and factors of lr and T for some parameters.
        on_divergence: of one of several chains: "stop" all, "drop" it, or "restart" it, see `survivors.Survivors`.

    `param_groups[0]` holds `lr`, `temperature` and `zeta`; all may be changed between steps. After a step, `energy`,
    `multiplier` and `log_weight` belong to the θ at which that step took its gradient; their shape is () or (C,).

    Raises ConfigError for a value out of range, DivergedError when a loss or gradient is not finite, ReplicaError when
    the ranks of a group no longer hold the same numbers.
    """

    def __init__(
        self,
        params: Iterable[Any],
        dynamics: Transition,
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
        only: Only = None,
        frozen: FrozenMode = "eval",
        blocks: block.Blocks | None = None,
        on_divergence: OnDivergence = "stop",
    ):
        check_numbers(num_data, chains, lr, temperature)
        refuse_combinations(dynamics, weighting, exchange, clip, on_divergence, chains)
        super().__init__(params, {"lr": lr, "temperature": temperature, "zeta": weighting.zeta})
        self.dynamics, self.weighting, self.exchange = dynamics, weighting, exchange
        self.num_data, self.chains = int(num_data), chains
        self.used = Settings(lr, temperature, weighting.zeta)  # settings of the last step
        live, self._frozen = sampled(self.param_groups[0], only)
        self.only, self.frozen, each = only, frozen, block.chosen_blocks(blocks, list(live))
        self.notes = block.describe_blocks(blocks)  # lines of `explain`; others, such as Lightning, add theirs
        refuse_factors(dynamics, weighting, exchange, each)
        self.chain = Chain(list(live.values()), list(live), dynamics, chains, seed, stack)
        self.chain.factors = block.factors_of(each, self.chain.buffer.sizes, self.chain.theta)
        device = self.chain.theta.device
        needs_energy = type(weighting).__name__ if weighting.needs_energy else None
        self.batch_noise, self.reweighting = BatchNoise(), Reweighting(weighting, chains or 1, device, self.num_data)
        self.survivors = Survivors(on_divergence, self.chain, self.batch_noise)
        prior = block.prior_of(prior, each)
        self.potential = Potential(self.chain, prior, self.num_data, clip, group, needs_energy, self.survivors)
        self.prior_identity, self.facts = block.identity_of_prior(self.prior), block.law_of_factors(self.chain.factors)
        self.replicas = None if exchange is None else Replicas(exchange, chains, device)
        self.quantities = Extras(dynamics, self.chain, self.potential, self.batch_noise)
        self.parts = Parts(self.batch_noise, self.reweighting, self.replicas, self.quantities)
        self.chain.link(self.state)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if self.param_groups:
            raise ConfigError("a Sampler has one parameter group: one chain has one lr and one temperature")
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Tensor | None:  # type: ignore[override]
        """One step of the chain; returns the loss.

        closure: zeroes the gradients, back-propagates the mean batch NLL and returns it. With `chains=C` it returns the
        (C,) mean losses whose sum it back-propagated. A `FullBatch` kernel calls it once or several times.
        """
        if self.dynamics.full_batch:
            self._follow()
            now = self.used = self._settings()
            at_theta = by_closure(self.chain, self.potential, closure)
            loss = full_batch_move(self.chain, self.potential, self.parts, at_theta, now)
        else:
            loss = self.potential.loss(closure)
            self._follow()  # after the closure, which may move the parameters
            now = self.used = self._settings()
            e = self.potential.evaluate(loss, self.chain.gather())
            gradient_move(self.chain, self.potential, self.parts, e, now)
        if self.group is not None:
            psi = [] if self.histogram is None else [self.histogram.psi]
            parallel.compare_when_due(self.steps, [*self.chain.tensors(), *psi], self.group)
        return loss

    def takes_gradient_of(self, params: Sequence[Tensor]) -> bool:
        """Whether `advance` can take the place of `step` for gradients of just these parameters, in this order."""
        hooked = self._optimizer_step_pre_hooks or self._optimizer_step_post_hooks or self.group is not None
        return not hooked and list(map(id, params)) == list(map(id, self.chain.buffer.params))

    @torch.no_grad()
    def advance(self, gradient: Gradient, measure: bool = True, launch: Launch | None = None) -> Tensor:
        """One step without autograd, hooks and process group; returns the () or (C,) losses.

        gradient: writes the gradients of the mean losses into tensors of the parameters' shapes; returns the losses.
        measure: False leaves `energy` None where the step does not need it. launch: runs the gradient's kernels
        together, as a CUDA graph does, unless the kernel is a `FullBatch`. The next step then overwrites the losses.
        """
        self._follow()
        now = self.used = self._settings()
        if self.dynamics.full_batch:
            return full_batch_move(self.chain, self.potential, self.parts, by_gradient(self.chain, gradient), now)
        e = self.potential.evaluate_by(gradient, measure or self.parts.read_energy, launch)
        gradient_move(self.chain, self.potential, self.parts, e, now)
        return e.loss  # type: ignore[return-value]

    steps = forwarded("chain", "steps", "How many steps the chain has taken.")
    seed = forwarded("chain", "seed", "First name of the random stream of injected noise.")
    stack = forwarded("chain", "stack", "Second name of that stream: the number of this stack of chains.")
    configurational_temperature = forwarded("chain", "configurational_temperature", "() or (C,) <θ, ∇U>/d, or None.")
    clip = forwarded("potential", "clip", "`ClipNorm`, `ClipValue` or None.")
    prior = forwarded("potential", "prior", "The prior, with a scale per coordinate where it was given one per tensor.")
    group = forwarded("potential", "group", "The process group whose ranks share this chain, or None.")
    full_loss = forwarded("potential", "full_loss", "Set it to a function that returns the mean NLL over all the data.")
    batch_loss = forwarded("potential", "batch_loss", "Set it to the mean NLL of the step's batch, without gradients.")
    loss_is_whole = forwarded("potential", "loss_is_whole", "False where the closure returns a part of the batch only.")
    elbo = forwarded(
        "potential", "elbo", "() or (C,) estimate of the evidence lower bound, see `Potential.elbo`, or None."
    )
    acceptance = forwarded("chain", "acceptance", "() or (C,) acceptance of an accept/reject kernel; else None.")
    sampled = forwarded("chain", "params", "The tensors that are sampled.")
    extras = forwarded("quantities", "sources", "Functions by name that return what the dynamics names in `needs`.")
    histogram = forwarded("reweighting", "histogram", "State of psi, None without a weighting.")

    energy = per_chain(
        "potential", "energy", "() or (C,) batch estimate of U, nats, at the last gradient's θ; or None."
    )
    multiplier = per_chain("reweighting", "multiplier", "() or (C,) factor of the last gradient by the weighting.")
    log_weight = per_chain("reweighting", "log_weight", "() or (C,) log importance weight at the last energy of psi.")

    def full_energy(self) -> Tensor:
        """() or (C,) U over all the data at the present θ, nats. Raises ConfigError without `full_loss`."""
        return self.chain.per_chain(self.potential.full_energy(self.param_groups[0]["lr"]))

    @property
    def noise_ratio(self) -> Tensor:
        """() or (C,) mean of lr Var(g) / (2 a tau), batch noise over injected noise; coordinates may differ much."""
        return self._batch_share(self.dynamics.noise_ratio)

    @property
    def t_eff(self) -> Tensor:
        """() or (C,) effective temperature, about T (1 + noise_ratio) less what the dynamics subtracts or absorbs.

        T itself under a `FullBatch` kernel. An upper bound in slow directions, where a shuffled epoch's noise cancels.
        """
        share = self._batch_share(self.dynamics.heating)
        return torch.as_tensor(self._settings().temperature).to(share.device) * (1 + share)

    @property
    def kinetic_temperature(self) -> Tensor:
        """() or (C,) temperature that the momenta show, expected to be T for exact gradients; NaN without momenta."""
        lr, units = self.chain.per_coordinate(self.param_groups[0]["lr"], 1.0, 1)  # units: factors of T, or 1
        return self.num_data * self.dynamics.kinetic_tau(self.chain.state, lr * units)

    @property
    def swap_rates(self) -> Tensor | None:
        """(K - 1,) share of swaps that were made between neighbours of the ladder; None without exchange."""
        return None if self.replicas is None else self.replicas.rates

    @property
    def target_chains(self) -> list[int]:
        """The chains with the intended law: all that count, or under replica exchange those of the first rung."""
        counting = filter(self.survivors.counts, range(self.chains or 1))
        return list(counting) if self.replicas is None else self.replicas.target

    def explain(self) -> str:
        """A few lines: N, T, prior, the intended law, the injected noise of one step, and what adds to it."""
        target = self.target_chains if self.chains else ...
        heat = self.noise_ratio[target], self.t_eff[target]
        now = Settings.of(self.param_groups[0], self.steps)
        return explain(self.chain, self.potential, now, self.reweighting, self.replicas, heat, self.notes)

    def log_weight_at(self, energy: Tensor) -> Tensor:
        """() or (C,) log importance weight of an energy (nats) of the kind that psi reads, with the present psi."""
        group = self.param_groups[0]
        return self.reweighting.log_weight_at(energy.to(self.chain.theta.device), group["zeta"], group["temperature"])

    def freeze_weighting(self) -> bool:
        """Stop psi from learning if it has settled at the present T and zeta; returns whether it is frozen."""
        return self.reweighting.freeze()

    def check(self) -> None:
        """Raise DivergedError if any step so far met numbers that are not finite, or θ is not. A device sync."""
        self.potential.check(self.param_groups[0]["lr"])

    def identity(self) -> dict[str, Any]:
        """Plain values that a sampler must share to continue this one."""
        return {
            "num_data": self.num_data,
            "dynamics": self.dynamics.identity(),
            "weighting": self.weighting.identity()["type"],
            "exchange": identity(self.exchange),
            "chains": self.chains,
            "numbers per chain": self.chain.theta.shape[-1],
            "blocks": block.identity_of_factors(self.chain.factors),
        }

    def __getstate__(self) -> dict[str, Any]:
        refuse_copy()

    def state_dict(self) -> dict[str, Any]:
        """`{state, param_groups, bdl}`; the last a dict of tensors and numbers that torch does not cast."""
        self.check()
        self.chain.link(self.state)
        return {**super().state_dict(), "bdl": to_save(self.identity(), self.chain, self._device_parts())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the chain that was saved, bit for bit on the same machine, versions, device and threads.

        Raises ConfigError for the state of another optimizer or of another sampler.
        """
        self._follow()
        saved = check_saved(state_dict, self.identity(), self.chain.theta.device)
        super().load_state_dict({k: state_dict[k] for k in ("state", "param_groups")})
        self.chain.load_state_dict(saved["chain"], self.state)
        for name, part in self._device_parts().items():
            if name in saved:  # a sampler that would have stopped has no survivors
                part.load_state_dict(saved[name], self.chain.theta)

    def _device_parts(self) -> dict[str, Any]:  # they follow the parameters, and stand in a checkpoint
        parts = {"potential": self.potential, "batch_noise": self.batch_noise, "reweighting": self.reweighting}
        parts |= {} if self.survivors.policy == "stop" else {"survivors": self.survivors}
        return parts if self.replicas is None else {**parts, "replicas": self.replicas}

    def _follow(self) -> None:
        """Follow parameters that something has moved, together with all that belongs to the chain."""
        refuse_unfrozen(self._frozen)
        if not self.chain.buffer.moved():
            return
        self.check()
        self.chain.follow()
        for part in self._device_parts().values():
            part.to(self.chain.theta)
        self.chain.link(self.state)

    def _settings(self) -> Settings:
        """The present lr, temperature of every chain, and zeta."""
        now = Settings.of(self.param_groups[0], self.steps)
        return now if self.replicas is None else Settings(now.lr, self.replicas.temperatures(now.temperature), now.zeta)

    def _batch_share(self, terms: Callable[..., Tensor]) -> Tensor:
        return batch_share(self.chain, self.batch_noise, self.reweighting, self._settings(), self.num_data, terms)
