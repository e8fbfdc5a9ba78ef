"""The shell that joins a dynamics and a weighting to torch: a `torch.optim.Optimizer` whose steps draw samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from bdl.display import Shown
from bdl.errors import ConfigError
from bdl.frozen import FrozenMode, Only
from bdl.samplers import parallel
from bdl.samplers.batch_gradient import BatchGradient
from bdl.samplers.batch_noise import BatchNoise, stride_of
from bdl.samplers.buffer import checked, refuse_unfrozen, sampled
from bdl.samplers.chain import Chain
from bdl.samplers.clipping import Clip
from bdl.samplers.combinations import refuse_combinations, refuse_factors, refuse_learned, refuse_types
from bdl.samplers.divergence import OnDivergence, Survivors
from bdl.samplers.dynamics.base import Scalar, Transition
from bdl.samplers.estimator import Given, estimator_of
from bdl.samplers.exchange import Exchange, Replicas
from bdl.samplers.explanation import Explanation
from bdl.samplers.host import Host, OfHost
from bdl.samplers.kernel_moves import KernelMoves
from bdl.samplers.moves import GradientMoves, Walk
from bdl.samplers.potential import BoundGradient, Closure, Potential
from bdl.samplers.priors import blocks as block
from bdl.samplers.priors.base import Prior
from bdl.samplers.priors.independent import Gaussian
from bdl.samplers.resume import Saved, check_saved, to_save
from bdl.samplers.settings import Defaults, StepSettings, checked_numbers
from bdl.samplers.temperatures import ChainTemperatures
from bdl.samplers.weighting.base import Flat, Weighting
from bdl.samplers.weighting.learnt import described
from bdl.samplers.weighting.reweighting import Reweighting
from bdl.samplers.whole_steps import WalkBatches
from bdl.snapshot import Snapshot, of_rows
from bdl.torch_private import has_step_hooks


class Sampler(Shown, torch.optim.Optimizer):
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
        gradient: "control" or a `ControlVariate` for gradients with less batch noise, at more than twice the cost.
        only: patterns of names, such as "head.*": the other parameters are frozen (`requires_grad` becomes False).
        frozen: mode in which `BayesianModule` and `CollectSamples` hold the modules of a frozen part, see `bdl.frozen`.
        blocks: a `Block` by pattern, the first that matches: a prior and a factor of lr for some parameters.
        on_divergence: what one diverged chain of several causes: "stop" all, or "drop" it, see `divergence.Survivors`.

    Attributes:
        sampled: the tensors that are sampled.
        prior: the prior, with a scale or a mean per coordinate where it was given one per tensor. A mean "start" is
            read from the weights when it is first needed, at the latest in the first step.
        full_loss: set it to a function that returns the mean NLL over all the data, () or (C,).
        full_gradient: set it to a function that does the same and back-propagates it, as a closure does for a batch: it
            zeroes the gradients first. `gradient="control"` needs it.
        batch_loss: set it to a function that returns the mean NLL of the step's batch, () or (C,), without gradients.
        extras: functions by name that return what the dynamics names in `needs`.
        notes: lines that end `explain`; others, such as Lightning, add theirs.

    `param_groups[0]` holds `lr`, `temperature` and `zeta`; all may be changed between steps. After a step, `energy`,
    `multiplier` and `log_weight` belong to the θ at which that step took its gradient; their shape is () or (C,).

    Raises ConfigError for a value out of range, DivergedError when a loss or gradient is not finite, ReplicaError when
    the ranks of a group no longer hold the same numbers.
    """

    full_loss, full_gradient, batch_loss = OfHost(), OfHost(), OfHost()

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
        gradient: Given = None,
        only: Only = None,
        frozen: FrozenMode = "eval",
        blocks: block.Blocks | None = None,
        on_divergence: OnDivergence = "stop",
    ):
        lr, temperature = checked_numbers(num_data, chains, lr, temperature, seed=seed, stack=stack)
        refuse_types(prior, weighting, exchange, clip)
        refuse_combinations(dynamics, weighting, exchange, clip, on_divergence, chains)
        self.control = estimator_of(gradient, dynamics, weighting)
        super().__init__(checked(params), Defaults(lr=lr, temperature=temperature, zeta=weighting.zeta))
        self.dynamics, self.weighting, self.exchange, self.clip = dynamics, weighting, exchange, clip
        self.num_data, self.chains, self.seed, self.stack = int(num_data), chains, int(seed), int(stack)
        self.used = StepSettings(lr, temperature, weighting.zeta)  # settings of the last step
        live, self._frozen = sampled(self.param_groups[0], only)
        self.only, self.frozen, self.extras = only, frozen, {}
        self.notes = [f"block {pattern}: {each}" for pattern, each in (blocks or {}).items()]
        each = block.chosen_blocks(blocks, list(live))
        refuse_factors(dynamics, exchange, each)
        self.chain = Chain(list(live.values()), list(live), dynamics, chains, seed, stack)
        self.chain.host = Host(group=group)
        self.chain.lr_factors = block.lr_factors(each, self.chain.buffer.sizes, self.chain.theta)
        self.sampled, device = self.chain.buffer.params, self.chain.theta.device
        needs_energy = type(weighting).__name__ if weighting.needs_energy else None
        self.batch_noise = BatchNoise(stride_of(self.chain.theta, dynamics))
        self.reweighting = Reweighting(weighting, chains or 1, device, self.num_data)
        self.survivors = Survivors(on_divergence, self.chain, self.batch_noise)
        prior = block.prior_of(prior, each)
        refuse_learned(prior, dynamics, weighting, exchange)
        self.potential = Potential(self.chain, prior, self.num_data, clip, needs_energy, self.survivors)
        self.evaluation = (
            BatchGradient(self.potential)
            if self.control is None
            else self.control.evaluation(self.potential, self._follow)
        )
        self.replicas = None if exchange is None else Replicas(exchange, chains, self.chain.theta)
        pieces = self.chain, self.potential, self.batch_noise, self.replicas
        self.moves = (
            KernelMoves(*pieces)
            if dynamics.full_batch
            else GradientMoves(*pieces, self.reweighting, self.evaluation, self.extras)
        )
        self.temperatures = ChainTemperatures(self.chain, self.batch_noise, self.reweighting, self.num_data)
        self.explanation = Explanation(self.chain, self.potential, self.reweighting, self.replicas, self.control)
        self.chain.link(self.state)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if self.param_groups:
            raise ConfigError("a Sampler has one parameter group: one chain has one lr and one temperature")
        super().add_param_group(param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As torch's. The gradients of a large network are then added up where the next step reads them."""
        if self.chain.lent is None or not set_to_none or self.chain.buffer.moved():
            super().zero_grad(set_to_none)
        else:
            self.chain.lent.lend()

    @torch.no_grad()
    def step(  # type: ignore[override]
        self, closure: Closure | None = None, measure: bool = True, items: int | None = None
    ) -> Tensor | None:
        """One step of the chain; returns the loss, with the control variate where `gradient` asks for one.

        closure: zeroes the gradients, back-propagates the mean batch NLL and returns it. With `chains=C` it returns the
        (C,) mean losses whose sum it back-propagated. A `FullBatch` kernel calls it once or several times.
        measure: False leaves `energy` None where the step does not need it, which spares the ranks of a group an
        all-reduce. All ranks have to pass the same.
        items: how many the batch holds, so that those of a short batch count as much as others, see `BatchSizes`.
        """
        loss = self.moves.loss(closure, items)
        self._follow()  # after the closure, which may move the parameters
        self.used = self.settings()
        loss = self.moves.step(closure, loss, self.used, measure)
        if (group := self.host.group) is not None:
            h = self.reweighting.histogram
            parallel.compare_when_due(self.steps, [*self.chain.tensors(), *([] if h is None else [h.psi])], group)
        return loss

    @property
    def is_plain(self) -> bool:
        """Whether `advance` can take the place of `step`: there are no hooks of torch, and no process group."""
        return not has_step_hooks(self) and self.host.group is None

    @torch.no_grad()
    def advance(self, gradient: BoundGradient, measure: bool = True) -> Tensor:
        """One step without a closure, hooks and process group; returns the () or (C,) losses.

        measure: False leaves `energy` None where the step does not need it. Where the gradient has a `launch`, and the
        kernel is no `FullBatch`, the next step overwrites the losses.
        """
        self._follow()
        self.used = self.settings()
        return self.moves.advance(gradient, self.used, measure)

    @torch.no_grad()
    def walk(self, gradients: Walk | WalkBatches, settings: Sequence[StepSettings]) -> int:
        """Make steps of a sampler that `is_plain`, each as by `advance(measure=False)`, in C or in CUDA graphs.

        gradients: `Gradient.batches` of the steps. Returns how many were made. A step that compiled code leaves, as it
        does where a gradient is not finite, is for `advance` to make on its batch. A `FullBatch` kernel leaves the
        energies of its steps in `moves.walked`.
        """
        self._follow()
        made = self.moves.walk(gradients, settings) if self.moves.can_walk(settings) else 0
        if made:
            self.used, self.potential.energy = settings[made - 1], None
        return made

    @property
    def host(self) -> Host:
        """What the loop around the sampler tells it of the data, the network and the processes. Set it as a whole."""
        return self.chain.host

    @host.setter
    def host(self, host: Host) -> None:
        self.chain.host = host

    @property
    def prior(self) -> Prior:
        return self.potential.prior

    def check(self) -> None:
        """Raise DivergedError if any step so far met numbers that are not finite, or θ is not. A device sync."""
        self.potential.check(self.param_groups[0]["lr"])

    # ---- what can be read between two steps; shapes are () or (C,) ----

    def settings(self) -> StepSettings:
        """The present lr, temperature of every chain, and zeta."""
        now, replicas = StepSettings.of(self.param_groups[0], self.steps), self.replicas
        return now if replicas is None else replicas.settings(now)

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
        return self.dynamics.acceptance(self.chain.state)

    @property
    def energy_error(self) -> Tensor | None:
        """() or (C,) mean square of energy errors over the one that the kernel tunes itself to; else None."""
        return self.dynamics.energy_error(self.chain.state)

    @property
    def elbo(self) -> Tensor | None:
        """() or (C,) one-draw estimate of the evidence lower bound, nats, at T = 1; None unless variational.

        Its mean over draws is the bound. NaN under an improper prior, and at the first step, which starts from the
        parameters of the network instead of a draw.
        """
        return self.potential.elbo

    @property
    def configurational_temperature(self) -> Tensor | None:
        """() or (C,) <θ, ∇U>/d, or None, see `Chain`."""
        return self.chain.configurational_temperature

    def full_energy(self) -> Tensor:
        """() or (C,) U over all the data at the present θ, nats. Raises ConfigError without `full_loss`."""
        self._follow()  # a Trainer moves the network to the CPU when it ends
        return self.chain.per_chain(self.potential.full_energy(self.param_groups[0]["lr"]))

    @property
    def noise_ratio(self) -> Tensor:
        """() or (C,) mean of lr Var(g) / (2 a tau), batch noise over injected noise; coordinates may differ much."""
        return self.temperatures.noise_ratio(self.settings())

    @property
    def t_eff(self) -> Tensor:
        """() or (C,) effective temperature, about T (1 + noise_ratio) less what the dynamics subtracts or absorbs.

        It is the mean over directions, and no bound: a direction in which batches have more noise than in others is
        hotter, see `Transition.heat_along`. The noise of shuffled batches cancels over a pass over the data, so that
        directions that relax over many passes are colder than this counts them. T itself under a `FullBatch` kernel.
        """
        return self.temperatures.effective(self.settings())

    @property
    def kinetic_temperature(self) -> Tensor:
        """() or (C,) temperature that the momenta show, expected to be T for exact gradients; NaN without momenta."""
        return self.temperatures.kinetic(self.settings())

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
        self.check()
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
            log_weight=of_rows(self.reweighting.at_full_energy(energy, rows, self.settings()), self.chains, rows),
            psi_frozen=frozen,
            precision=_precisions(self.potential.prior.learned(), rows),
        )

    def psi(self) -> tuple[dict[str, Tensor], dict[str, str]] | None:
        """psi and how it was fitted, see `bdl.samplers.weighting.learnt.described`; None without a weighting."""
        group = self.param_groups[0]
        return described(self.reweighting, float(group["zeta"]), group["temperature"])

    def excluded(self) -> dict[int, int]:
        """The step of the divergence by the number of every chain whose samples do not count."""
        return self.survivors.excluded()

    def shown(self) -> tuple[str, Mapping[str, str]]:
        return self.explanation.shown(self.settings())

    def explain(self) -> str:
        """A few lines: N, T, prior, the target distribution, the injected noise of one step, and what adds to it."""
        now = StepSettings.of(self.param_groups[0], self.steps)
        heat = self.temperatures.explain(self.settings(), self.target_chains)
        lines = self.explanation.lines(now, [heat, *self.evaluation.explain(self.batch_noise)])
        return "\n".join([*lines, *self.notes])

    def law(self) -> dict[str, Any]:
        """What runs must share to be merged into one posterior, as JSON values."""
        return self.explanation.law()

    # ---- saving and loading ----

    def __getstate__(self) -> dict[str, Any]:
        raise ConfigError(
            "a Sampler cannot be copied or pickled, because its functions, such as full_loss, would still belong to "
            "the original's network: build another Sampler and load state_dict() into it"
        )

    def state_dict(self) -> dict[str, Any]:
        """`{state, param_groups, bdl}`; the last a dict of tensors and numbers that torch does not cast."""
        self.check()
        self.chain.link(self.state)
        device, pieces = self.chain.theta.device, {"chain": self.chain, **self._pieces()}
        return {**super().state_dict(), "bdl": to_save(self.explanation.identity(), device, pieces)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the chain that was saved, bit for bit on the same machine, versions, device and threads.

        Raises ConfigError for the state of another optimizer or of another sampler.
        """
        self._follow()
        saved = check_saved(state_dict, self.explanation.identity(), self.chain.theta.device)
        super().load_state_dict({k: state_dict[k] for k in ("state", "param_groups")})
        self.chain.load_state_dict(saved["chain"], self.state)
        for name, piece in self._pieces().items():
            piece.load_state_dict(saved[name], self.chain.theta)

    def _pieces(self) -> dict[str, Saved]:
        """The pieces with a state, besides the chain."""
        pieces: dict[str, Saved] = {"potential": self.potential, "batch_noise": self.batch_noise}
        pieces |= {"reweighting": self.reweighting, "survivors": self.survivors}
        pieces |= {} if self.control is None else {"control": self.evaluation}
        return pieces if self.replicas is None else {**pieces, "replicas": self.replicas}

    def _follow(self) -> None:
        """Follow parameters that something has moved, together with all that belongs to the chain."""
        refuse_unfrozen(self._frozen)
        if not self.chain.buffer.moved():
            return
        self.check()
        self.chain.follow()
        for piece in self._pieces().values():
            piece.to(self.chain.theta)
        self.chain.link(self.state)


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
