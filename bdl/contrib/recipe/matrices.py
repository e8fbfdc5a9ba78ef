"""The matrices D and Q of a recipe as a whole: their rows, the root of D, and what batch noise becomes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from bdl.contrib.recipe.blocks import BlockValue, MatrixBlock, StateVariable
from bdl.contrib.recipe.checks import root_of

State = Mapping[str, Tensor]  # the variables by name


@dataclass(frozen=True, eq=False)
class RecipeMatrices:
    """The blocks of D, whose sign is 1, and of Q, whose sign is -1, on one side of the diagonal."""

    variables: Sequence[StateVariable]
    blocks: Sequence[MatrixBlock]

    @cached_property
    def noisy(self) -> list[StateVariable]:
        """The variables that D makes noisy."""
        return [v for v in self.variables if any(b.sign == 1 and v in (b.row, b.column) for b in self.blocks)]

    @cached_property
    def joint(self) -> bool:
        """Whether the noises of different variables depend on each other."""
        return any(b.sign == 1 and not b.diagonal for b in self.blocks)

    @cached_property
    def rows(self) -> dict[str, list[tuple[MatrixBlock, bool, str]]]:
        """The blocks in the row of each variable; whether each is transposed there, and the variable of its column."""
        found = {}
        for v in self.variables:
            own = [(b, False, b.column.name) for b in self.blocks if b.row == v]
            found[v.name] = own + [(b, True, b.row.name) for b in self.blocks if b.column == v and not b.diagonal]
        return found

    def check_joint(self) -> None:
        """Raise ConfigError for constants that couple variables and are no semidefinite D."""
        constants = [b.given for b in self.blocks if b.sign == 1]
        if self.joint and not any(callable(given) for given in constants):
            theta = torch.zeros(
                max((len(given) for given in constants if isinstance(given, Tensor)), default=1), dtype=torch.float64
            )
            root_of(self.whole_D({v.name: theta if v.vector else theta[0] for v in self.variables}), "D")

    def split_noise(self, now: State, z: Tensor) -> dict[str, Tensor]:
        """Standard normal numbers by variable; where D couples variables, times the root of the whole of D."""
        if self.joint:
            z = (root_of(self.whole_D(now), "D") @ z.unsqueeze(-1)).squeeze(-1)
        d = now["theta"].shape[-1]
        parts = z.split([d if v.vector else 1 for v in self.noisy], -1)
        return {v.name: p if v.vector else p.squeeze(-1) for v, p in zip(self.noisy, parts, strict=True)}

    def whole_D(self, now: State) -> Tensor:
        """(..., n, n) D over the noisy variables."""
        blocks = {(b.row, b.column): b for b in self.blocks if b.sign == 1}
        rows = []
        for v in self.noisy:
            row = [self._part(blocks.get((v, w)), blocks.get((w, v)), (v, w), now) for w in self.noisy]
            rows.append(torch.cat(row, -1))
        return torch.cat(rows, -2)

    def diagonal_of_D(self, v: StateVariable, now: State) -> Any:
        """D_ii of a variable: a float, or a tensor that (..., d) or (...) broadcasts to."""
        for block in self.blocks:
            if block.sign == 1 and block.row == block.column == v:
                b = block.at(now)
                return b.value.diagonal(dim1=-2, dim2=-1) if b.rank == 2 else b.value
        return 0.0

    def batch_share(self, now: State, variance: Tensor) -> Tensor:
        """(..., d) Σ (M V M')_ii / Σ D_ii over the vectors of a coordinate; for a matrix D the diagonal of D⁻¹ M V M'.

        M is the block of D + Q between a vector and θ, and V the variance (..., d) of g.
        """
        vectors = [v for v in self.variables if v.vector]
        through = {v: self._through(v, now) for v in vectors}
        reached = [v for v in vectors if through[v]]
        (diffusion,) = [b for b in self.blocks if b.sign == 1 and b.row == b.column == reached[0]] or [None]
        if len(reached) == 1 and diffusion is not None and (b := diffusion.at(now)).rank == 2:
            m = self._matrix(through[reached[0]], now)
            return ((torch.linalg.pinv(b.value, hermitian=True) @ m * m) @ variance.unsqueeze(-1)).squeeze(-1)
        added, injected = torch.zeros_like(variance), torch.zeros_like(variance)
        for v in vectors:
            injected = injected + self.diagonal_of_D(v, now)
            if any(b.rank == 2 for _, b, _ in through[v]):
                added = added + (self._matrix(through[v], now).square() @ variance.unsqueeze(-1)).squeeze(-1)
            else:
                added = added + variance * sum((block.sign if t else 1) * b.value for block, b, t in through[v]) ** 2
        return torch.where(injected > 0, added / injected, torch.nan)

    def _through(self, v: StateVariable, now: State) -> list[tuple[MatrixBlock, BlockValue, bool]]:
        """The blocks between a variable and θ, where the chains are, and whether each is transposed."""
        return [(block, block.at(now), t) for block, t, other in self.rows[v.name] if other == "theta"]

    def _matrix(self, through: list[tuple[MatrixBlock, BlockValue, bool]], now: State) -> Tensor:
        """(..., d, d) their sum."""
        theta, total = now["theta"], torch.zeros((), dtype=now["theta"].dtype, device=now["theta"].device)
        for block, b, t in through:
            matrix = block.dense(b, theta.shape[-1], theta)
            total = total + (block.sign * matrix.mT if t else matrix)
        return total

    def _part(
        self, block: MatrixBlock | None, below: MatrixBlock | None, of: tuple[StateVariable, StateVariable], now: State
    ) -> Tensor:
        """(..., rows, columns) the part of D between two variables, of a block there or of its mirror image."""
        theta = now["theta"]
        d, size = theta.shape[-1], tuple(theta.shape[-1] if v.vector else 1 for v in of)
        if block is not None:
            part = block.dense(block.at(now), d, theta)
        elif below is not None:
            part = below.dense(below.at(now), d, theta).mT
        else:
            part = theta.new_zeros(size)
        return part.expand(*theta.shape[:-1], *size)
