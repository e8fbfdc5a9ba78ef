"""Ten functions on which global optimisers are compared, as the SFU library defines them; each has minimum 0."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from literature.targets.base import Target

PI = math.pi


@dataclass(frozen=True)
class Benchmark(Target):
    """f(x) as an energy. Abstract: each of the ten functions defines `energy_and_grad`, its box and its minimiser.

    `box` is the usual search box of every coordinate, and f is 0 at `minimiser()`. The code behind
    Liang 2024 changes the definition of the functions that have a field `as_published`; their docstrings say how.
    """

    dim: int
    box: ClassVar[tuple[float, float]]

    def minimiser(self) -> Tensor:
        """(d,) the point where f = 0."""
        return torch.zeros(self.dim, dtype=torch.float64)


@dataclass(frozen=True)
class Rastrigin(Benchmark):
    """f = 10 d + Σ_i (x_i² - 10 cos 2πx_i)"""

    dim: int = 20
    box: ClassVar[tuple[float, float]] = (-5.12, 5.12)

    def energy_and_grad(self, x: Tensor) -> tuple[Tensor, Tensor]:
        angle = 2 * PI * x
        f = 10 * self.dim + (x * x - 10 * angle.cos()).sum(-1)
        return f, 2 * x + 20 * PI * angle.sin()


@dataclass(frozen=True)
class Griewank(Benchmark):
    """f = 1 + Σ_i x_i² / 4000 - Π_i cos(x_i / √i)"""

    dim: int = 20
    box: ClassVar[tuple[float, float]] = (-600.0, 600.0)

    def energy_and_grad(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scale = torch.arange(1, self.dim + 1).to(x).rsqrt()
        c, one = (x * scale).cos(), torch.ones_like(x[..., :1])
        # Products of the cosines before and after i, without a division: a cosine may be 0
        before = torch.cat([one, c[..., :-1]], -1).cumprod(-1)
        after = torch.cat([one, c.flip(-1)[..., :-1]], -1).cumprod(-1).flip(-1)
        f = 1 + x.square().sum(-1) / 4000 - before[..., -1] * c[..., -1]
        return f, x / 2000 + before * after * (x * scale).sin() * scale


@dataclass(frozen=True)
class SumSquares(Benchmark):
    """f = Σ_i i x_i²"""

    dim: int = 20
    box: ClassVar[tuple[float, float]] = (-10.0, 10.0)

    def energy_and_grad(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scaled = x * torch.arange(1, self.dim + 1).to(x)
        return torch.linalg.vecdot(scaled, x), 2 * scaled


@dataclass(frozen=True)
class Rosenbrock(Benchmark):
    """f = Σ_{i<d} 100 (x_{i+1} - x_i²)² + (x_i - 1)²"""

    dim: int = 20
    box: ClassVar[tuple[float, float]] = (-5.0, 10.0)

    def energy_and_grad(self, x: Tensor) -> tuple[Tensor, Tensor]:
        head = x[..., :-1]
        a, b = x[..., 1:] - head * head, head - 1
        g = torch.zeros_like(x)
        g[..., 1:] = 200 * a
        g[..., :-1] += 2 * b - 400 * a * head
        return (100 * a * a + b * b).sum(-1), g

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

    def energy_and_grad(self, x: Tensor) -> tuple[Tensor, Tensor]:
        weights = 0.5 * (torch.arange(self.dim) + (0 if self.as_published else 1)).to(x)
        s = x @ weights
        square = s * s
        return x.square().sum(-1) + square + square * square, 2 * x + (2 * s + 4 * s * square)[..., None] * weights


@dataclass(frozen=True)
class Powell(Benchmark):
    """f = Σ (a + 10 b)² + 5 (c - e)² + (b - 2 c)⁴ + 10 (a - e)⁴ over the d/4 consecutive groups (a, b, c, e)

    as_published: (b - c)⁴, and groups that begin three places earlier, so that the first one wraps around.
    """

    dim: int = 24
    as_published: bool = False
    box: ClassVar[tuple[float, float]] = (-4.0, 5.0)

    def energy_and_grad(self, x: Tensor) -> tuple[Tensor, Tensor]:
        k, shift = (1, 3) if self.as_published else (2, 0)
        a, b, c, e = x.roll(shift, -1).unflatten(-1, (-1, 4)).unbind(-1)
        t1, t2, t3, t4 = a + 10 * b, c - e, b - k * c, a - e
        square3, square4 = t3 * t3, t4 * t4
        f = (t1 * t1 + 5 * t2 * t2 + square3 * square3 + 10 * square4 * square4).sum(-1)
        u3, u4 = 4 * t3 * square3, 40 * t4 * square4
        g = torch.stack([2 * t1 + u4, 20 * t1 + u3, 10 * t2 - k * u3, -10 * t2 - u4], -1)
        return f, g.flatten(-2).roll(-shift, -1)


@dataclass(frozen=True)
class DixonPrice(Benchmark):
    """f = (x_1 - 1)² + Σ_{i>1} i (2 x_i² - x_{i-1})²

    as_published: weight i - 1 instead of i. Both forms have their minimum at x_i = 2^-(1 - 2^(1-i)).
    """

    dim: int = 25
    as_published: bool = False
    box: ClassVar[tuple[float, float]] = (-10.0, 10.0)

    def energy_and_grad(self, x: Tensor) -> tuple[Tensor, Tensor]:
        weights = (torch.arange(1, self.dim) + (0 if self.as_published else 1)).to(x)
        first, right = x[..., 0] - 1, x[..., 1:]
        r = 2 * right * right - x[..., :-1]
        scaled = weights * r
        g = torch.zeros_like(x)
        g[..., 1:] = 8 * scaled * right
        g[..., :-1] -= 2 * scaled
        g[..., 0] += 2 * first
        return first * first + torch.linalg.vecdot(scaled, r), g

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

    def energy_and_grad(self, x: Tensor) -> tuple[Tensor, Tensor]:
        slope, k = (1.0, 10.0) if self.as_published else (0.25, 1.0)  # dw/dx
        r = slope * (x - 1)  # w - 1
        inner, last = r[..., :-1], r[..., -1]
        angle, end = PI * (inner + 1) + 1, 2 * PI * last  # sin² 2πw = sin² 2π(w - 1)
        ripple, tail = 1 + 10 * angle.sin().square(), 1 + k * end.sin().square()
        f = (PI * r[..., 0]).sin().square() + (inner * inner * ripple).sum(-1) + last * last * tail
        g = torch.empty_like(x)
        g[..., :-1] = 2 * inner * ripple + 10 * PI * inner * inner * (2 * angle).sin()
        g[..., -1] = 2 * last * tail + 2 * PI * k * last * last * (2 * end).sin()
        g[..., 0] += PI * (2 * PI * r[..., 0]).sin()
        return f, slope * g

    def minimiser(self) -> Tensor:
        return torch.ones(self.dim, dtype=torch.float64)


@dataclass(frozen=True)
class Sphere(Benchmark):
    """f = Σ_i x_i²"""

    dim: int = 30
    box: ClassVar[tuple[float, float]] = (-5.12, 5.12)

    def energy_and_grad(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.linalg.vecdot(x, x), 2 * x


@dataclass(frozen=True)
class Ackley(Benchmark):
    """f = 20 + e - 20 exp(-r / 5) - exp(Σ_i cos 2πx_i / d),    r² = Σ_i x_i² / d

    f is not differentiable at 0; `grad` returns 0 there. `Ackley(2)` is the surface of Liang 2024.
    """

    dim: int = 30
    box: ClassVar[tuple[float, float]] = (-32.768, 32.768)

    def energy_and_grad(self, x: Tensor) -> tuple[Tensor, Tensor]:
        r = x.square().mean(-1, keepdim=True).sqrt()
        angle = 2 * PI * x
        far, near = 20 * (-0.2 * r).exp(), angle.cos().mean(-1, keepdim=True).exp()
        f = 20 + math.e - (far + near).squeeze(-1)
        tiny = torch.finfo(x.dtype).tiny
        return f, (0.2 * far * x / r.clamp_min(tiny) + 2 * PI * near * angle.sin()) / self.dim


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
