"""Steps of MCLMC in C, by microcanonical_kernel.c.

What a step does between its gradients is some ninety of torch's kernels on few numbers, which take longer than the
gradients of the networks that tables get. The two forms equal each other to rounding, not to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from bdl.samplers.chain import Chain
from bdl.samplers.compiled.steps import ADDRESS, DOUBLE, FOLDER, NUMBER, ChainFields, CompiledSteps, doubles, fields
from bdl.samplers.dynamics.microcanonical import DRIFT, MCLMC, MEMORY, SPREAD, STAGES, WIDTH

_VECTORS = ("gradient", "direction", "mean", "square")
_NUMBERS = ("potential", "length", "log_factor", "errors", "weights", "error", "undone", "level")
_SCRATCH = ("start", "before", "u")

Evaluate = Callable[[], Tensor]  # leaves the gradient of the mean loss at θ in `chain.g`; returns the () or (C,) losses


class _Walk(ChainFields):
    """`Walk` of microcanonical_kernel.c."""

    _fields_ = [
        *fields(NUMBER, "stages", "steps"),
        *fields(ADDRESS, *_VECTORS, *_NUMBERS),
        ("kicks", DOUBLE * 3),
        ("drifts", DOUBLE * 2),
        *fields(DOUBLE, "energy_var", "energy_var_start", "width", "memory", "shift"),
        *fields(NUMBER, "adjusted", "adapt_steps", "first", "last", "finds_length", "made"),
        *fields(ADDRESS, *_SCRATCH, "potentials", "kinetic", "size"),
    ]


class CompiledMCLMC(CompiledSteps):
    """The steps of a chain under `MCLMC` in compiled code, where no other process shares the chain."""

    source, prefix, structure, width = FOLDER / "microcanonical_kernel.c", "bdl_microcanonical_", _Walk, 2
    functions = [("begin", None, [ADDRESS]), ("after", NUMBER, [ADDRESS, NUMBER])]
    vectors, numbers, number_type = _VECTORS, _NUMBERS, torch.float64

    def __init__(self, chain: Chain):
        super().__init__(chain)
        self.dynamics: Any = chain.dynamics
        self._scratch: list[Tensor] = []

    def knows_chain(self) -> bool:
        host = self.chain.host
        return type(self.dynamics) is MCLMC and host.compiled and host.group is None and host.loss_is_whole

    @property
    def stages(self) -> int:
        """Gradients of a step."""
        return len(STAGES[self.dynamics.integrator][1])

    def step(self, evaluate: Evaluate, lr: float, tau: float) -> Tensor:
        """One step from θ; returns the () or (C,) losses at which it ends."""
        losses = self.chain.theta.new_empty(self.stages, self.chain.chains or 1)
        self.prepare([(lr, tau)], losses)
        loss = losses[0]
        for number in range(self.stages):
            loss = evaluate()
            losses[number] = loss
            self.library.bdl_microcanonical_after(self.address, number)
        self.chain.state.steps += 1
        return loss

    def prepare(
        self, settings: Sequence[tuple[float, float]], losses: Tensor, potentials: Tensor | None = None
    ) -> None:
        """Begin the first of some steps: θ moves to where the first gradient is taken.

        settings: lr and tau of each step. losses: (steps * stages, C), is read. potentials: (steps, C) for U/N at which
        each step ends, in double precision.
        """
        self.hold(doubles([x for each in settings for x in each]), losses, potentials)
        self.fields.potentials = None if potentials is None else potentials.data_ptr()
        self.fields.steps, self.fields.made = len(settings), self.chain.state.steps
        self.library.bdl_microcanonical_begin(self.address)

    def put_back(self) -> None:
        """Return to where the step that is being made has begun."""
        self.chain.theta.copy_(self._scratch[0])

    def describe(self) -> None:
        theta, kernel, fields = self.chain.theta, self.dynamics, self.fields
        self._scratch = [torch.empty_like(theta) for _ in _SCRATCH]
        self._scratch += [theta.new_empty(self.chain.chains or 1, dtype=torch.float64) for _ in range(2)]
        for name, tensor in zip((*_SCRATCH, "kinetic", "size"), self._scratch, strict=True):
            setattr(fields, name, tensor.data_ptr())
        kicks, drifts = STAGES[kernel.integrator]
        fields.stages, fields.kicks[: len(kicks)], fields.drifts[: len(drifts)] = self.stages, kicks, drifts
        fields.energy_var, fields.energy_var_start = kernel.energy_var, kernel.energy_var_start or kernel.energy_var
        fields.width, fields.memory, fields.adapt_steps = WIDTH, MEMORY, kernel.adapt_steps
        fields.adjusted, fields.shift = kernel.adjusted, DRIFT
        fields.first, fields.last = (int(share * kernel.adapt_steps) for share in SPREAD)
        fields.finds_length = kernel.length is None
