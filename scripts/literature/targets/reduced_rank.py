"""Reduced-rank regression, whose learning coefficient is known: by a formula, and at finite N by Gibbs sampling."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

D64 = torch.float64


@dataclass(frozen=True)
class ReducedRank:
    """Reduced-rank regression y = B A x: M inputs, H hidden units, N outputs, a true matrix diag(1, ..., 0) of rank r.

    The network w* has B A equal to it, and its other H - r hidden units are 0: the most singular of all minima, where
    the local coefficient is the global one. Inputs have the second moment 1.
    """

    M: int
    H: int
    N: int
    r: int

    @property
    def coefficient(self) -> float:
        """λ (Aoyagi & Watanabe 2005, main theorem)."""
        M, H, N, r = self.M, self.H, self.N, self.r
        if M + H < N + r:
            return (H * M - H * r + N * r) / 2
        if N + H < M + r:
            return (H * N - H * r + M * r) / 2
        if M + N < H + r:
            return M * N / 2
        even = -((H + r) ** 2) - M**2 - N**2 + 2 * (H + r) * (M + N) + 2 * M * N
        return (even + (M + H + N + r) % 2) / 8

    @property
    def parameters(self) -> int:
        return self.H * (self.M + self.N)

    def network(self) -> nn.Sequential:
        net = nn.Sequential(nn.Linear(self.M, self.H, bias=False), nn.Linear(self.H, self.N, bias=False)).double()
        with torch.no_grad():
            for weight in net.parameters():
                weight.zero_()
                weight[range(self.r), range(self.r)] = 1.0
        return net

    def items(self) -> tuple[Tensor, Tensor]:
        """M inputs with the second moment 1, and their targets without noise: L is exact, and costs nothing."""
        x = math.sqrt(self.M) * torch.eye(self.M, dtype=D64)
        return x, self.network()(x).detach()

    def expected(
        self, num_data: float, temperature: float, localization: float, chains: int = 1000, sweeps: int = 600
    ) -> tuple[float, float]:
        """E[λ̂] at finite N, and the standard error of this number, by Gibbs sampling, which has no step size.

        In exp(-c |B A - W|² / 2 - γ |w - w*|² / 2), c = N / T, A is Gaussian given B, and B given A. The sweeps mix
        within about c of them along the valleys; a third is burn-in, and the error is that between chains.
        """
        c, g = num_data / temperature, localization
        a, b = (weight.detach() for weight in self.network().parameters())
        A, B, W = a.expand(chains, *a.shape), b.expand(chains, *b.shape), b @ a
        draw, total = torch.Generator().manual_seed(0), torch.zeros(chains, dtype=D64)
        for sweep in range(sweeps):
            B = conditional(A.mT, W.T, b.T, c, g, draw).mT
            A = conditional(B, W, a, c, g, draw)
            if sweep >= sweeps // 3:
                total += c / 2 * (B @ A - W).square().sum((1, 2))
        each = total / (sweeps - sweeps // 3)
        return float(each.mean()), float(each.std()) / math.sqrt(chains)


def conditional(B: Tensor, W: Tensor, a: Tensor, c: float, g: float, draw: torch.Generator) -> Tensor:
    """(chains, H, M) draws of A from exp(-c |B A - W|² / 2 - g |A - a|² / 2), whose columns are independent."""
    precision = c * B.mT @ B + g * torch.eye(B.shape[-1], dtype=D64)
    L = torch.linalg.cholesky(precision)
    mean = torch.cholesky_solve(c * B.mT @ W + g * a, L)
    z = torch.randn(mean.shape, dtype=D64, generator=draw)
    return mean + torch.linalg.solve_triangular(L.mT, z, upper=True)


def regular(h: Tensor, num_data: float, temperature: float, localization: float) -> float:
    """E[λ̂] of a quadratic loss with the curvatures h (d,): each direction has 1/2 without the localization's share."""
    pull = num_data * h / temperature
    return float((pull / (pull + localization)).sum() / 2)
