"""The matrices D and Q of a recipe as a whole: their rows, the root of D, and what batch noise becomes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from bdl.contrib.recipe.blocks import MatrixBlock, State, StateVariable, Value, dense, is_matrix, times
from bdl.contrib.recipe.checks import root_of


@dataclass(frozen=True, eq=False)
class RecipeMatrices:
    """The blocks of D and of Q that are not zero."""

    variables: Sequence[StateVariable]
    blocks: Sequence[MatrixBlock]

    @cached_property
    def noisy(self) -> list[StateVariable]:
        """The variables that D makes noisy."""
        return [v for v in self.variables if any(b.in_D and b.row == v for b in self.blocks)]

    @cached_property
    def joint(self) -> bool:
        """Whether the noises of different variables depend on each other."""
        return any(b.in_D and not b.diagonal for b in self.blocks)

    @cached_property
    def rows(self) -> dict[str, list[MatrixBlock]]:
        """The blocks in the row of each variable, its own first: their ∇H may be the variable itself, which moves."""
        own_first = sorted(self.blocks, key=lambda b: not b.diagonal)
        return {v.name: [b for b in own_first if b.row == v] for v in self.variables}

    def split_noise(self, now: State, z: Tensor) -> dict[str, Tensor]:
        """Standard normal numbers (C, n) by variable; where D couples variables, times the root of the whole of D."""
        if self.joint:
            z = (self.root_of_D(now) @ z.unsqueeze(-1)).squeeze(-1)
        sizes = [now["theta"].shape[-1] if v.vector else 1 for v in self.noisy]
        return {v.name: part for v, part in zip(self.noisy, z.split(sizes, -1), strict=True)}

    def root_of_D(self, now: State) -> Tensor:
        """(C, n, n) the root of D over the noisy variables."""
        theta, rows = now["theta"], []
        sizes = {v.name: theta.shape[-1] if v.vector else 1 for v in self.noisy}
        for v in sizes:
            row = {w: theta.new_zeros(len(theta), sizes[v], sizes[w]) for w in sizes}
            for block in self.rows[v]:
                if block.in_D:
                    row[block.column.name] = dense(block.at(now), row[block.column.name])
            rows.append(torch.cat([*row.values()], -1))
        return root_of(torch.cat(rows, -2), "D")

    def diagonal_of_D(self, v: StateVariable, now: State) -> Value:
        """D_ii of a variable: a float, or a tensor that (C, n) broadcasts to."""
        D = self.diffusion(v, now)
        return D.diagonal(dim1=-2, dim2=-1) if is_matrix(D) else D

    def diffusion(self, v: StateVariable, now: State) -> Value:
        """The block of D between a variable and itself; 0.0 where there is no block."""
        return next((b.at(now) for b in self.rows[v.name] if b.in_D and b.diagonal), 0.0)

    def batch_share(self, now: State, variance: Tensor) -> Tensor:
        """(C, d) Σ (M V M')_ii / Σ D_ii over the vectors of a coordinate; for a matrix D the diagonal of D⁻¹ M V M'.

        M is the block of D + Q between a vector and θ, and V the variance (C, d) of g.
        """
        vectors = [v for v in self.variables if v.vector]
        reached = [v for v in vectors if any(b.column.name == "theta" for b in self.rows[v.name])]
        if len(reached) == 1 and is_matrix(D := self.diffusion(reached[0], now)):
            m = self._through(reached[0], now, matrix=True)
            return times(torch.linalg.pinv(D, hermitian=True) @ m * m, variance)
        added, injected = torch.zeros_like(variance), torch.zeros_like(variance)
        for v in vectors:
            injected = injected + self.diagonal_of_D(v, now)
            added = added + times(self._through(v, now) ** 2, variance)
        return torch.where(injected > 0, added / injected, torch.nan)

    def _through(self, v: StateVariable, now: State, matrix: bool = False) -> Value:
        """The block of D + Q between a vector and θ, as a matrix if it is one or if `matrix`."""
        theta = now["theta"]
        values = [b.at(now) for b in self.rows[v.name] if b.column.name == "theta"]
        if matrix or any(is_matrix(b) for b in values):
            zero = theta.new_zeros(*theta.shape, theta.shape[-1])
            return sum((dense(b, zero) for b in values), zero)
        return sum(values, 0.0)
