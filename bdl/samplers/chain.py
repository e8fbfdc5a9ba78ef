"""One stack of chains: positions, the state of the dynamics, the random stream, and how many steps were taken."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor

from bdl.devices import moved
from bdl.errors import ConfigError
from bdl.lent import LentGradients
from bdl.samplers.buffer import ParameterBuffer
from bdl.samplers.dynamics.base import Scalar, Transition
from bdl.samplers.host import Host
from bdl.samplers.noise import Noise
from bdl.samplers.settings import any_positive
from bdl.seeding import generator
from bdl.torch_private import gather

MEASURE_EVERY = 10  # steps between two configurational temperatures, each of which reads θ and g once
READ_AT = "_bdl_read_at"  # attribute of a gradient: how often it had been written when a step last read it


class Chain:
    """The Markov chain that a Sampler drives; C chains at once when the parameters have a leading axis C.

    Args:
        params, names: the tensors that are sampled. They become views of `theta`.
        dynamics: how the chain moves.
        chains: C, or None for a single chain without a leading axis.
        seed, stack: name the random stream, from which alone injected noise is drawn.
    """

    def __init__(
        self,
        params: Sequence[Tensor],
        names: Sequence[str],
        dynamics: Transition,
        chains: int | None,
        seed: int,
        stack: int,
    ):
        self.buffer = ParameterBuffer(params, names, chains)
        self.dynamics, self.chains, self.seed, self.stack = dynamics, chains, seed, stack
        self.lead = self.buffer.lead  # the leading axes, () or (C,)
        self.steps, self.host = 0, Host()
        self.lr_factors: Tensor | None = None  # (d,) where blocks of parameters have factors of lr
        self.state = checked_state(dynamics, dynamics.init(self.theta))
        self.noise = Noise(seed, stack)
        self.generator = generator(self.theta.device, "noise", seed, stack)
        self.entropy: Tensor | None = None  # (...,) nats, of the approximation that θ was drawn from before the step
        # () or (C,) <θ - c, ∇U>/d, whose expectation is T in equilibrium (Wenzel et al. 2020); known at every 10th step
        self.configurational_temperature: Tensor | None = None
        self.watches_gradients = False  # whether the present gradients come from a closure that may forget backward()
        self._known_distinct = False  # True once something tells the chains apart
        self.companions: tuple[Tensor, ...] = ()  # (C, ...) each, that go where the states of the chains go
        self._allocate()

    @property
    def theta(self) -> Tensor:
        """(d,) or (C, d) positions, one contiguous buffer."""
        return self.buffer.theta

    @property
    def sees_all_data(self) -> bool:
        """Whether each step evaluates all the data, so that there is no batch noise."""
        return self.host.sees_all_data or self.dynamics.full_batch

    def column(self, value: Scalar) -> Scalar:
        """A (C,) tensor as (C, 1), in the type and on the device of theta; floats stay."""
        if not isinstance(value, Tensor) or value.ndim == 0:
            return value
        return value.to(self.theta, non_blocking=True).unsqueeze(-1)

    def per_chain(self, value: Tensor) -> Tensor:
        """A (C,) tensor as the user sees it: () for a single chain."""
        return value if self.chains is not None else value[0]

    def per_coordinate(self, lr: Scalar, temperature: Scalar, num_data: int) -> tuple[Scalar, Scalar]:
        """lr and tau = T/N as a dynamics takes them: floats or (C, 1), lr also (..., d) where blocks have factors."""
        lr, tau = self.column(lr), self.column(temperature) / num_data
        return lr if self.lr_factors is None else lr * self.lr_factors, tau

    # ---- a step, in its order ----

    def gather(self) -> list[int]:
        """Copy the parameters' gradients into g; returns the positions of parameters that have none."""
        if self.lent is not None and self.lent.are_lent:
            return self.lent.idle()
        idle = gather(self.buffer.params, self.g_views)
        if self.watches_gradients:
            for grad in [p.grad for p in self.buffer.params]:
                if grad is not None:
                    setattr(grad, READ_AT, grad._version)
        return idle

    def has_old_gradients(self) -> bool:
        """Whether there are gradients, and none has been written since the last `gather`."""
        now = [p.grad for p in self.buffer.params if p.grad is not None]
        return bool(now) and all(getattr(g, READ_AT, None) == g._version for g in now)

    def draw(self, temperature: Scalar) -> Tensor:
        """z for this step: standard normal where noise is injected, else zero."""
        if self.injects(temperature):
            self._z_is_zero = False
            return self.noise.fill(self.z, self.steps, self.generator)
        if not self._z_is_zero:
            self.z.zero_()
            self._z_is_zero = True
        return self.z

    def injects(self, temperature: Scalar) -> bool:
        """Whether this step injects noise. Raises ConfigError where it does not, and nothing tells the chains apart."""
        injects = self.dynamics.noisy and any_positive(temperature)
        if not (injects or self._known_distinct) and self.chains and self.chains > 1:
            refuse_identical(self.theta, self.g)
        self._known_distinct = True
        return injects

    def note_walk(self, steps: int) -> None:
        """Count steps that were made together."""
        self.steps += steps
        self.entropy = self.configurational_temperature = None
        self._z_is_zero = False

    def advance(self, state: Any) -> None:
        """Take the state that the dynamics has returned, and count the step."""
        if state.theta is not self.theta:  # a dynamics written without in-place operations
            self.theta.copy_(state.theta)
            state = dataclasses.replace(state, theta=self.theta)
        self.state = state
        self.steps += 1

    # ---- the state as tensors ----

    def vector_fields(self) -> list[str]:
        """Fields of the state that have the shape of theta, theta included."""
        shape = self.theta.shape
        return [name for name, value in self._fields() if isinstance(value, Tensor) and value.shape == shape]

    def tensors(self) -> list[Tensor]:
        """Every tensor of the state, to compare ranks by."""
        return [value for value in self.values() if isinstance(value, Tensor)]

    def values(self) -> list[Any]:
        """All that the state holds."""
        return [value for _, value in self._fields()]

    def reorder(self, order: Tensor) -> None:
        """Give chain c the state and the gradient of chain order[c], except what chain c has learnt."""
        for value in [*(getattr(self.state, name) for name in self.dynamics.travels), self.g, *self.companions]:
            value.copy_(value[order])

    def link(self, optimizer_state: MutableMapping[Tensor, Any]) -> None:
        """Let `state[p]` show every parameter-shaped part of the state, as torch's own optimisers do."""
        for p, name, view in self._memory():
            optimizer_state[p][name] = view

    @property
    def measures_next(self) -> bool:
        """Whether the next step is one of those that take the configurational temperature."""
        return (self.steps + 1) % MEASURE_EVERY == 0

    def measure(
        self, theta: Tensor, g: Tensor, idle: Sequence[int], num_data: int, offset: Callable[[Tensor], Tensor]
    ) -> None:
        """Take the configurational temperature of θ with the gradient g of U/N there, both (..., d), if it is due.

        offset: θ minus a constant vector. Its mean does not depend on that vector, and its noise is small around the
        mean of the prior, where that is where the chains are.
        """
        due = self.measures_next and not (idle or self.dynamics.variational)
        per_coordinate = num_data / theta.shape[-1]
        self.configurational_temperature = torch.linalg.vecdot(offset(theta), g) * per_coordinate if due else None

    # ---- moving, saving, loading ----

    def follow(self) -> None:
        """Follow parameters that `.to()`, `.double()` or a teardown has replaced."""
        old = self.theta
        if any(p.numel() != n * (self.chains or 1) for p, n in zip(self.buffer.params, self.buffer.sizes, strict=True)):
            raise ConfigError("a parameter changed its shape: build a new Sampler after changing the network")
        self.buffer.attach()
        theta = self.theta
        changes = {
            name: value.to(theta) if value.dtype == old.dtype else moved(value, theta.device)  # float64 keeps its type
            for name, value in self._fields()
            if isinstance(value, Tensor)
        }
        self.state = dataclasses.replace(self.state, **{**changes, "theta": theta})
        self.lr_factors = None if self.lr_factors is None else self.lr_factors.to(theta)
        if theta.device != old.device:
            self.generator = generator(theta.device, "noise", self.seed, self.stack, self.steps)
        self._allocate()

    def state_dict(self) -> dict[str, Any]:
        """All but the fields of theta's shape, which torch saves as `state[p]`, and theta, which the network saves."""
        vectors = set(self.vector_fields())
        return {
            "step": self.steps,
            "device": self.theta.device.type,
            "generator": self.generator.get_state(),
            "dynamics": {name: value for name, value in self._fields() if name not in vectors},
        }

    def load_state_dict(self, state: dict[str, Any], optimizer_state: MutableMapping[Tensor, Any]) -> None:
        """optimizer_state: torch's `state`, which holds copies of the fields of theta's shape."""
        for p, name, view in self._memory():
            view.copy_(optimizer_state[p][name])
        self.link(optimizer_state)
        for name, value in state["dynamics"].items():
            if isinstance(value, Tensor):  # loaded in the type that it has on this device
                value = value.to(getattr(self.state, name), copy=True)
            setattr(self.state, name, value)
        self.steps = state["step"]
        self.stray = StrayWatch()
        if state["device"] == self.theta.device.type:
            self.generator.set_state(state["generator"].cpu())
        else:  # a stream that no earlier step on such a device has drawn from
            self.generator = generator(self.theta.device, "noise", self.seed, self.stack, self.steps)
        self._known_distinct = self.steps > 0

    def _allocate(self) -> None:
        self.g = torch.zeros_like(self.theta)  # gradient of U/N in the step that is being made
        numbers = self.dynamics.noise_numbers(self.theta.shape[-1])
        self.z = self.theta.new_zeros(*self.lead, numbers)  # standard normal, zero where no noise is injected
        self.g_views = self.buffer.split(self.g)
        self.lent = LentGradients(self.buffer.params, self.g_views) if LentGradients.pays(self.g_views) else None
        self._z_is_zero = True
        self.stray = StrayWatch()

    def _fields(self) -> list[tuple[str, Any]]:
        return [(f.name, getattr(self.state, f.name)) for f in dataclasses.fields(self.state)]

    def _memory(self) -> Iterator[tuple[Tensor, str, Tensor]]:
        """Each parameter with its view of every field of theta's shape, but theta, and the name of the field."""
        for name in self.vector_fields():
            if name != "theta":
                for p, view in zip(self.buffer.params, self.buffer.split(getattr(self.state, name)), strict=True):
                    yield p, name, view


class StrayWatch:
    """Notices that something else than the sampler has moved θ between two steps of a full-batch kernel.

    It compares θ at the start of a step with θ at the end of the last one, whose energy and gradient the step reuses.

    On an accelerator the answer stays on the device, so that no step waits, until `refuse` reads it.
    """

    def __init__(self) -> None:
        self.left_at: Tensor | None = None  # (..., d) θ after the last step; None before the first one
        self._strayed: Tensor | None = None  # () whether θ has been elsewhere before a noted step

    def has_moved(self, theta: Tensor) -> bool:
        """Whether θ is elsewhere than the last step left it. A device sync."""
        return self.left_at is not None and not torch.equal(self.left_at, theta)

    def note(self, theta: Tensor) -> None:
        """Note on the device, without a wait, whether something has moved θ since the last step: see `refuse`."""
        assert self.left_at is not None
        moved = (self.left_at != theta).any()
        self._strayed = moved if self._strayed is None else self._strayed.logical_or_(moved)

    def refuse(self, kernel: object, step: int) -> None:
        """Raise ConfigError if a noted step began elsewhere than the step before it had ended. A device sync."""
        strayed, self._strayed = self._strayed, None
        if strayed is not None and bool(strayed):
            raise ConfigError(
                f"something has changed the parameters between two steps, after which {type(kernel).__name__} "
                f"used a gradient of the old ones (noticed at step {step}; nothing since then was written): "
                "change them before the first step, or load them together with the sampler's state_dict()"
            )


def refuse_identical(theta: Tensor, g: Tensor) -> None:
    """Raise ConfigError if all chains have the same θ and gradient, both (C, d)."""
    if bool((theta == theta[0]).all()) and bool((g == g[0]).all()):
        raise ConfigError(
            f"{len(theta)} identical chains: same start, same batches and no injected noise; start them apart "
            "(bdl.ChainStack does), give each its own batches, or set temperature > 0"
        )


def checked_state(dynamics: Transition, state: Any) -> Any:
    """The state. Raises ConfigError unless it is a dataclass with every field that the dynamics lets travel."""
    name = type(dynamics).__name__
    if not dataclasses.is_dataclass(state) or isinstance(state, type):
        raise ConfigError(f"{name}.init must return a dataclass, e.g. bdl.Position(theta), got {type(state).__name__}")
    fields = {f.name for f in dataclasses.fields(state)}
    for field in ("theta", *dynamics.travels):
        if field not in fields:
            raise ConfigError(
                f"the state of {name}, {type(state).__name__}, has no field {field!r}: add it, or correct `travels`"
            )
    return state
