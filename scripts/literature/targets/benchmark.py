"""Ten functions on which global optimisers are compared, as the SFU library defines them; each has minimum 0."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from literature.targets.base import Target

PI = math.pi


@dataclass(frozen=True)
class Benchmark(Target):
    """f(x) as an energy. Abstract: each of the ten functions defines `energy`, its box and its minimiser.

    `box` is the usual search box of every coordinate, and f is 0 at `minimiser()`. The code behind Liang 2024 changes
    the definition of the functions that have a field `as_published`; their docstrings say how.
    """

    dim: int
    box: ClassVar[tuple[float, float]]

    def minimiser(self) -> Tensor:
        """(d,) the point where f = 0."""
        return torch.zeros(self.dim, dtype=torch.float64)


def count(x: Tensor) -> Tensor:
    """(d,) 1, 2, ..., d."""
    return torch.arange(1, x.shape[-1] + 1).to(x)


@dataclass(frozen=True)
class Rastrigin(Benchmark):
    """f = 10 d + Σ_i (x_i² - 10 cos 2πx_i)"""

    dim: int = 20
    box: ClassVar[tuple[float, float]] = (-5.12, 5.12)

    def energy(self, x: Tensor) -> Tensor:
        return 10 * self.dim + (x.square() - 10 * (2 * PI * x).cos()).sum(-1)


@dataclass(frozen=True)
class Griewank(Benchmark):
    """f = 1 + Σ_i x_i² / 4000 - Π_i cos(x_i / √i)"""

    dim: int = 20
    box: ClassVar[tuple[float, float]] = (-600.0, 600.0)

    def energy(self, x: Tensor) -> Tensor:
        return 1 + x.square().sum(-1) / 4000 - (x * count(x).rsqrt()).cos().prod(-1)


@dataclass(frozen=True)
class SumSquares(Benchmark):
    """f = Σ_i i x_i²"""

    dim: int = 20
    box: ClassVar[tuple[float, float]] = (-10.0, 10.0)

    def energy(self, x: Tensor) -> Tensor:
        return (count(x) * x.square()).sum(-1)


@dataclass(frozen=True)
class Rosenbrock(Benchmark):
    """f = Σ_{i<d} 100 (x_{i+1} - x_i²)² + (x_i - 1)²"""

    dim: int = 20
    box: ClassVar[tuple[float, float]] = (-5.0, 10.0)

    def energy(self, x: Tensor) -> Tensor:
        left, right = x[..., :-1], x[..., 1:]
        return (100 * (right - left.square()).square() + (left - 1).square()).sum(-1)

    def minimiser(self) -> Tensor:
        return torch.ones(self.dim, dtype=torch.float64)


@dataclass(frozen=True)
class Zakharov(Benchmark):
    """f = Σ_i x_i² + s² + s⁴,    s = Σ_i i x_i / 2

    as_published: s = Σ_i (i - 1) x_i / 2.
    """

    dim: int = 20
    as_published: bool = False
    box: ClassVar[tuple[float, float]] = (-5.0, 10.0)

    def energy(self, x: Tensor) -> Tensor:
        square = (x @ (count(x) - int(self.as_published)) / 2).square()
        return x.square().sum(-1) + square + square.square()


@dataclass(frozen=True)
class Powell(Benchmark):
    """f = Σ (a + 10 b)² + 5 (c - e)² + (b - 2 c)⁴ + 10 (a - e)⁴ over the d/4 consecutive groups (a, b, c, e)

    as_published: (b - c)⁴, and groups that begin three places earlier, so that the first one wraps around.
    """

    dim: int = 24
    as_published: bool = False
    box: ClassVar[tuple[float, float]] = (-4.0, 5.0)

    def energy(self, x: Tensor) -> Tensor:
        k, shift = (1, 3) if self.as_published else (2, 0)
        a, b, c, e = x.roll(shift, -1).unflatten(-1, (-1, 4)).unbind(-1)
        squares = (a + 10 * b).square() + 5 * (c - e).square()
        return (squares + (b - k * c).pow(4) + 10 * (a - e).pow(4)).sum(-1)


@dataclass(frozen=True)
class DixonPrice(Benchmark):
    """f = (x_1 - 1)² + Σ_{i>1} i (2 x_i² - x_{i-1})²

    as_published: weight i - 1 instead of i. Both forms have their minimum at x_i = 2^-(1 - 2^(1-i)).
    """

    dim: int = 25
    as_published: bool = False
    box: ClassVar[tuple[float, float]] = (-10.0, 10.0)

    def energy(self, x: Tensor) -> Tensor:
        weights = count(x)[1:] - int(self.as_published)
        return (x[..., 0] - 1).square() + (weights * (2 * x[..., 1:].square() - x[..., :-1]).square()).sum(-1)

    def minimiser(self) -> Tensor:
        return torch.exp2(torch.exp2(1 - torch.arange(1, self.dim + 1, dtype=torch.float64)) - 1)


@dataclass(frozen=True)
class Levy(Benchmark):
    """f = sin² πw_1 + Σ_{i<d} (w_i - 1)² (1 + 10 sin²(πw_i + 1)) + (w_d - 1)² (1 + sin² 2πw_d),    w = 1 + (x - 1) / 4

    as_published: w = x, and 10 sin² 2πw_d in the last term.
    """

    dim: int = 30
    as_published: bool = False
    box: ClassVar[tuple[float, float]] = (-10.0, 10.0)

    def energy(self, x: Tensor) -> Tensor:
        r, k = (x - 1, 10.0) if self.as_published else ((x - 1) / 4, 1.0)  # r = w - 1
        first, inner, last = (PI * r[..., 0]).sin().square(), r[..., :-1], r[..., -1]
        ripple, tail = (PI * (inner + 1) + 1).sin().square(), (2 * PI * last).sin().square()  # sin² 2πw = sin² 2πr
        return first + (inner.square() * (1 + 10 * ripple)).sum(-1) + last.square() * (1 + k * tail)

    def minimiser(self) -> Tensor:
        return torch.ones(self.dim, dtype=torch.float64)


@dataclass(frozen=True)
class Sphere(Benchmark):
    """f = Σ_i x_i²"""

    dim: int = 30
    box: ClassVar[tuple[float, float]] = (-5.12, 5.12)

    def energy(self, x: Tensor) -> Tensor:
        return x.square().sum(-1)


@dataclass(frozen=True)
class Ackley(Benchmark):
    """f = 20 + e - 20 exp(-r / 5) - exp(Σ_i cos 2πx_i / d),    r² = Σ_i x_i² / d

    f is not differentiable at 0; its gradient is 0 there. `Ackley(2)` is the surface of Liang 2024.
    """

    dim: int = 30
    box: ClassVar[tuple[float, float]] = (-32.768, 32.768)

    def energy(self, x: Tensor) -> Tensor:
        square = x.square().mean(-1)
        r = square.clamp_min(torch.finfo(x.dtype).tiny).sqrt()  # the clamp has no slope, so 0 has gradient 0
        return 20 + math.e - 20 * (-0.2 * r).exp() - (2 * PI * x).cos().mean(-1).exp()


FUNCTIONS: dict[str, type[Benchmark]] = {
    "rastrigin": Rastrigin, "griewank": Griewank, "sum_squares": SumSquares, "rosenbrock": Rosenbrock,
    "zakharov": Zakharov, "powell": Powell, "dixon_price": DixonPrice, "levy": Levy, "sphere": Sphere,
    "ackley": Ackley,
}  # fmt: skip


def benchmark(name: str, as_published: bool = False) -> Benchmark:
    """One of the ten functions at its published dimension. Only four of them have a form `as_published`."""
    function = FUNCTIONS[name]
    deviates = as_published and "as_published" in function.__dataclass_fields__
    return function(as_published=True) if deviates else function()  # type: ignore[call-arg]
