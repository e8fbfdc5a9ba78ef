"""The shell that joins a dynamics and a weighting to torch: a `torch.optim.Optimizer` whose steps draw samples."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from bdl.errors import ConfigError
from bdl.frozen import FrozenMode, Only
from bdl.samplers import blocks as block
from bdl.samplers import parallel
from bdl.samplers.batch_gradient import BatchGradient, Given, estimator_of
from bdl.samplers.batch_noise import BatchNoise, stride_of
from bdl.samplers.buffer import checked, refuse_unfrozen, sampled
from bdl.samplers.chain import Chain, Host
from bdl.samplers.clipping import Clip
from bdl.samplers.combinations import refuse_combinations, refuse_factors, refuse_learned, refuse_types
from bdl.samplers.compiled import CompiledUpdate
from bdl.samplers.compiled_microcanonical import CompiledMCLMC
from bdl.samplers.divergence import OnDivergence, Survivors
from bdl.samplers.dynamics.base import Scalar, Transition
from bdl.samplers.exchange import Exchange, Replicas
from bdl.samplers.explanation import Explained
from bdl.samplers.hosted import Hosted
from bdl.samplers.moves import by_closure, full_batch_move, gradient_move
from bdl.samplers.potential import Closure, Gradient, Idle, Launch, Potential
from bdl.samplers.priors import Gaussian, Prior
from bdl.samplers.resume import Saved, check_saved, to_save
from bdl.samplers.settings import StepSettings, check_numbers
from bdl.samplers.walk import Walk, walk
from bdl.samplers.weighting.base import Flat, Weighting
from bdl.samplers.weighting.reweighting import Reweighting
from bdl.torch_private import has_step_hooks


class Sampler(Explained, Hosted, torch.optim.Optimizer):
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
        extras: functions by name that return what the dynamics names in `needs`.
        notes: lines that end `explain`; others, such as Lightning, add theirs.

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
        gradient: Given = None,
        only: Only = None,
        frozen: FrozenMode = "eval",
        blocks: block.Blocks | None = None,
        on_divergence: OnDivergence = "stop",
    ):
        check_numbers(num_data, chains, lr, temperature)
        refuse_types(prior, weighting, exchange, clip)
        refuse_combinations(dynamics, weighting, exchange, clip, on_divergence, chains)
        self.control = estimator_of(gradient, dynamics, weighting)
        super().__init__(checked(params), {"lr": lr, "temperature": temperature, "zeta": weighting.zeta})
        self.dynamics, self.weighting, self.exchange, self.clip = dynamics, weighting, exchange, clip
        self.num_data, self.chains, self.seed, self.stack = int(num_data), chains, seed, stack
        self.used = StepSettings(lr, temperature, weighting.zeta)  # settings of the last step
        live, self._frozen = sampled(self.param_groups[0], only)
        self.only, self.frozen, self.extras = only, frozen, {}
        self.notes = [f"block {pattern}: {each}" for pattern, each in (blocks or {}).items()]
        each = block.chosen_blocks(blocks, list(live))
        refuse_factors(dynamics, exchange, each)
        self.chain = Chain(list(live.values()), list(live), dynamics, chains, seed, stack)
        self.chain.host = Host(group=group)
        self.compiled, self.kernel = CompiledUpdate(self.chain), CompiledMCLMC(self.chain)
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
        self.replicas = None if exchange is None else Replicas(exchange, chains, device)
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
    def step(self, closure: Closure | None = None, measure: bool = True) -> Tensor | None:  # type: ignore[override]
        """One step of the chain; returns the loss, with the control variate where `gradient` asks for one.

        closure: zeroes the gradients, back-propagates the mean batch NLL and returns it. With `chains=C` it returns the
        (C,) mean losses whose sum it back-propagated. A `FullBatch` kernel calls it once or several times.
        measure: False leaves `energy` None where the step does not need it, which spares the ranks of a group an
        all-reduce. All ranks have to pass the same.
        """
        loss = None if self.dynamics.full_batch else self.evaluation.loss(closure)
        self._follow()  # after the closure, which may move the parameters
        now = self.used = self.settings()
        if self.dynamics.full_batch:
            loss = full_batch_move(self, by_closure(self.chain, self.potential, closure), now)
        else:
            e = self.evaluation.evaluate(loss, self._measures(measure))
            gradient_move(self, e, now)
            loss = e.loss
        if (group := self.host.group) is not None:
            h = self.reweighting.histogram
            parallel.compare_when_due(self.steps, [*self.chain.tensors(), *([] if h is None else [h.psi])], group)
        return loss

    @property
    def is_plain(self) -> bool:
        """Whether `advance` can take the place of `step`: there are no hooks of torch, and no process group."""
        return not has_step_hooks(self) and self.host.group is None

    @torch.no_grad()
    def advance(
        self, gradient: Gradient, measure: bool = True, launch: Launch | None = None, idle: Idle = tuple
    ) -> Tensor:
        """One step without a closure, hooks and process group; returns the () or (C,) losses.

        gradient: writes the gradients of the mean losses into tensors of the parameters' shapes; returns the losses.
        measure: False leaves `energy` None where the step does not need it. launch: runs the gradient's kernels
        together, as a CUDA graph does, unless the kernel is a `FullBatch`. The next step then overwrites the losses.
        idle: the positions of the parameters for which `gradient` has just found no gradient, and written zeros.
        """
        self._follow()
        now = self.used = self.settings()
        if self.dynamics.full_batch:
            return full_batch_move(self, lambda: (gradient(self.chain.g_views), list(idle())), now)
        e = self.evaluation.evaluate_by(gradient, self._measures(measure), launch, idle)
        gradient_move(self, e, now, launch)
        return e.loss  # type: ignore[return-value]

    def _measures(self, asked: bool) -> bool:
        """Whether a step has to know its energy."""
        return asked or self.replicas is not None or self.weighting.needs_energy

    def walk(self, gradients: Walk, settings: Sequence[StepSettings]) -> int:
        """Steps of a sampler that `is_plain`, each as by `advance(measure=False)`, in C: see `walk.walk`."""
        self._follow()
        return walk(self, gradients, settings)

    @property
    def prior(self) -> Prior:
        return self.potential.prior

    def full_energy(self) -> Tensor:
        self._follow()  # a Trainer moves the network to the CPU when it ends
        return super().full_energy()

    def freeze_weighting(self) -> bool:
        """Stop psi from learning if it has settled at the present T and zeta; returns whether it is frozen."""
        return self.reweighting.freeze()

    def check(self) -> None:
        """Raise DivergedError if any step so far met numbers that are not finite, or θ is not. A device sync."""
        self.potential.check(self.param_groups[0]["lr"])

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
        return {**super().state_dict(), "bdl": to_save(self.identity(), device, pieces)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the chain that was saved, bit for bit on the same machine, versions, device and threads.

        Raises ConfigError for the state of another optimizer or of another sampler.
        """
        self._follow()
        saved = check_saved(state_dict, self.identity(), self.chain.theta.device)
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
