"""IdleParameters: what becomes of parameters for which a step has found no gradient."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from torch import Tensor

from bdl.errors import BdlWarning, ConfigError
from bdl.samplers.chain import Chain


class IdleParameters:
    """Parameters without a gradient, which stay as they are. `idle` are their positions in `chain.buffer.params`."""

    def __init__(self, chain: Chain):
        self._chain = chain
        self._is_known = False  # True once they have been spoken of

    def refuse(self, idle: Sequence[int]) -> None:
        """Raise ConfigError if a parameter has no gradient and the dynamics couples all parameters."""
        if idle and self._chain.dynamics.every_gradient:
            raise ConfigError(
                f"{type(self._chain.dynamics).__name__} averages over all parameters, but "
                f"{self._chain.buffer.names[idle[0]]} has no gradient: freeze it (requires_grad = False)"
            )

    def note(self, idle: Sequence[int], loss: Tensor | None) -> None:
        """Warn once that some parameters have no gradient. Raise ConfigError if none has one in spite of a loss.

        A step without a loss and without gradients leaves all alone, as torch.optim does. The first step of all warns
        of it, because a loop without backward() never moves.
        """
        names, step = self._chain.buffer.names, self._chain.steps
        if len(idle) == len(names):
            if loss is None:
                if step == 0:
                    remedy = "call loss.backward() before step()"
                    line = f"no parameter has a gradient, so the first step moved none: {remedy}"
                    warnings.warn(line, BdlWarning, stacklevel=8)
                return
            raise ConfigError(
                f"no parameter has a gradient at step {step}: call loss.backward() in the closure, and give the "
                "Sampler the parameters of the present network"
            )
        if not self._is_known:
            self._is_known = True
            warnings.warn(
                f"{len(idle)} of {len(names)} parameters, {names[idle[0]]} the first, have no gradient at step {step} "
                "and are left as they are; remove a detach() or torch.no_grad() that cuts them off; if their layer was "
                "replaced, build a new Sampler",
                BdlWarning,
                stacklevel=8,
            )

    def silence(self, idle: Sequence[int]) -> None:
        """Zero their gradients in `chain.g`."""
        for i in idle:
            self._chain.g_views[i].zero_()

    def values(self, idle: Sequence[int]) -> list[tuple[str, int, Tensor]]:
        """Copies of every coordinate of the state that is theirs, for `put_back`."""
        return [(name, i, self._view(name, i).clone()) for i in idle for name in self._chain.vector_fields()]

    def put_back(self, values: list[tuple[str, int, Tensor]]) -> None:
        """Undo what a step has made of the coordinates that `values` has copied before it."""
        for name, i, value in values:
            self._view(name, i).copy_(value)

    def _view(self, name: str, i: int) -> Tensor:
        return self._chain.buffer.split(getattr(self._chain.state, name))[i]
