"""Table 1 of Liang 2024, iterations on ten functions, with the settings of the authors' code."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

BINS = 100  # energy bins of every setting; the first begins at 0


@dataclass(frozen=True)
class Settings:
    """How one function was run. Its gradients carry normal noise of standard deviation (high - low) / 1000."""

    start: tuple[float, float]  # low, high: x_0 is uniform in it, per coordinate; also the box of `reject`
    lr: float
    temperature: float
    zeta: float
    bin_width: float  # Δu, nats
    gain: float  # c of the stochastic approximation, whose step is min(1, c / (k^.75 + 1000))
    threshold: float  # a run succeeds when f falls below it
    reject: bool  # whether a step that leaves `start` is undone
    thousands: tuple[float, float, float, float]  # published iterations / 1000: SGLD, AWSGLD with 10, 100, 1000 bins

    @property
    def gradient_noise(self) -> float:
        return (self.start[1] - self.start[0]) / 1000

    @property
    def energies(self) -> tuple[float, float]:
        """Lower and upper end of the bins, nats."""
        return 0.0, BINS * self.bin_width

    def draw(self, chains: int, dim: int, generator: torch.Generator | None = None) -> Tensor:
        """(chains, dim) starting points."""
        low, high = self.start
        return low + (high - low) * torch.rand(chains, dim, generator=generator, dtype=torch.float64)


# start, lr, T, zeta, Δu, c, f <, reject; each was repeated 40 times
PUBLISHED: dict[str, Settings] = {
    "rastrigin": Settings((-2.56, 5.12), 5e-4, 5, 0.02, 3, 200, 75, True, (8.7, 16.8, 9.4, 7.1)),
    "griewank": Settings((-300, 600), 0.1, 10, 10, 5, 100, 25, False, (467.8, 4.3, 5.3, 13.7)),
    "sum_squares": Settings((-5, 10), 0.01, 0.01, 1, 1, 100, 1.5, False, (math.inf, 81.4, 78.3, 96.9)),
    "rosenbrock": Settings((-5, 10), 1e-5, 10, 10, 3, 100, 20, False, (61, 19.9, 21.6, 26.3)),
    "zakharov": Settings((-5, 10), 1e-9, 1e4, 0.5, 50, 100, 500, False, (66.8, 10, 5.8, 10.1)),
    "powell": Settings((-4, 5), 1e-4, 1, 200, 2, 100, 1, False, (98.4, 34.8, 20, 51.7)),
    "dixon_price": Settings((-10, 10), 1e-5, 10, 20, 2, 100, 10, False, (32.6, 23.1, 20, 23)),
    "levy": Settings((-10, 10), 1e-4, 100, 10, 60, 100, 400, False, (23.3, 0.1, 0.4, 1.0)),
    "sphere": Settings((-2.56, 5.12), 0.01, 1e-4, 1, 2, 100, 1e-3, False, (0.5, 0.1, 0.1, 0.2)),
    # The script that runs starts in [-1, 1]; another file of that code says [-15, 30].
    "ackley": Settings((-1, 1), 0.01, 0.05, 0.2, 0.04, 100, 0.4, True, (11.7, 16.1, 3.4, 7.4)),
}
