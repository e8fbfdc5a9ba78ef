"""The ten functions against slow transcriptions of their definitions, one coordinate at a time."""

import math
from math import cos, exp, pi, prod, sin, sqrt

import pytest
import torch
from literature.targets import FUNCTIONS, PUBLISHED, benchmark
from zoo import DEVIANT, points, stream

# x is a list, x[0] its first coordinate. From https://www.sfu.ca/~ssurjano/optimization.html


def levy(x):
    w = [1 + (v - 1) / 4 for v in x]
    middle = sum((v - 1) ** 2 * (1 + 10 * sin(pi * v + 1) ** 2) for v in w[:-1])
    return sin(pi * w[0]) ** 2 + middle + (w[-1] - 1) ** 2 * (1 + sin(2 * pi * w[-1]) ** 2)


def powell(x):
    groups = [x[i : i + 4] for i in range(0, len(x), 4)]
    return sum((a + 10 * b) ** 2 + 5 * (c - d) ** 2 + (b - 2 * c) ** 4 + 10 * (a - d) ** 4 for a, b, c, d in groups)


def zakharov(x, first=1):
    s = sum(0.5 * i * v for i, v in enumerate(x, first))
    return sum(v * v for v in x) + s**2 + s**4


def dixon_price(x, first=2):
    return (x[0] - 1) ** 2 + sum(
        i * (2 * b * b - a) ** 2 for i, (a, b) in enumerate(zip(x, x[1:], strict=False), first)
    )


def ackley(x):
    root, wave = sqrt(sum(v * v for v in x) / len(x)), sum(cos(2 * pi * v) for v in x) / len(x)
    return 20 + exp(1) - 20 * exp(-0.2 * root) - exp(wave)


TEXTBOOK = {
    "rastrigin": lambda x: 10 * len(x) + sum(v * v - 10 * cos(2 * pi * v) for v in x),
    "griewank": lambda x: sum(v * v for v in x) / 4000 - prod(cos(v / sqrt(i)) for i, v in enumerate(x, 1)) + 1,
    "sum_squares": lambda x: sum(i * v * v for i, v in enumerate(x, 1)),
    "rosenbrock": lambda x: sum(100 * (b - a * a) ** 2 + (a - 1) ** 2 for a, b in zip(x, x[1:], strict=False)),
    "zakharov": zakharov,
    "powell": powell,
    "dixon_price": dixon_price,
    "levy": levy,
    "sphere": lambda x: sum(v * v for v in x),
    "ackley": ackley,
}


def powell_as_published(x):
    """Group i holds the places 4i - 3 to 4i, counted from 0; the first group begins three places from the end."""
    groups = [[x[4 * i + k] for k in (-3, -2, -1, 0)] for i in range(len(x) // 4)]
    return sum((a + 10 * b) ** 2 + 5 * (c - d) ** 2 + (b - c) ** 4 + 10 * (a - d) ** 4 for a, b, c, d in groups)


def levy_as_published(x):
    middle = sum((v - 1) ** 2 * (1 + 10 * sin(pi * v + 1) ** 2) for v in x[:-1])
    return sin(pi * x[0]) ** 2 + middle + (x[-1] - 1) ** 2 * (1 + 10 * sin(2 * pi * x[-1]) ** 2)


DEVIANTS = {
    "zakharov": lambda x: zakharov(x, first=0),
    "powell": powell_as_published,
    "dixon_price": lambda x: dixon_price(x, first=1),
    "levy": levy_as_published,
}
BOTH = [(name, False) for name in FUNCTIONS] + [(name, True) for name in DEVIANT]


@pytest.mark.parametrize("name, as_published", BOTH)
def test_values(name, as_published):
    target = benchmark(name, as_published)
    slow = (DEVIANTS if as_published else TEXTBOOK)[name]
    x = 2 * points(target, 5)
    expected = torch.tensor([slow(row) for row in x.tolist()], dtype=torch.float64)
    torch.testing.assert_close(target.energy(x), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name, as_published", BOTH)
def test_minimum(name, as_published):
    target = benchmark(name, as_published)
    low, high = target.box
    at = target.minimiser()
    assert abs(target.energy(at).item()) < 1e-12
    assert target.grad(at).abs().max() < 1e-10
    around = at + 0.01 * points(target, 1000)
    anywhere = low + (high - low) * torch.rand(1000, target.dim, generator=stream(), dtype=torch.float64)
    assert target.energy(around).min() > 0 and target.energy(anywhere).min() > 0
    assert ((at > low) & (at < high)).all()


def test_only_four_deviate():
    assert {name for name in FUNCTIONS if benchmark(name, True) != benchmark(name)} == set(DEVIANT) == set(DEVIANTS)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_published_settings(name):
    settings, target = PUBLISHED[name], benchmark(name, as_published=True)
    x = settings.draw(1000, target.dim, stream())
    low, high = settings.start
    assert x.shape == (1000, target.dim) and low <= x.min() < x.max() <= high
    assert (target.energy(x) > settings.threshold).double().mean() > 0.99
    assert math.isclose(settings.gradient_noise, (high - low) / 1000)
    assert settings.energies == (0, 100 * settings.bin_width)


def test_published_table():
    """Spot checks against Liang 2024, table 1, and the command lines of the authors' code."""
    assert list(PUBLISHED) == list(FUNCTIONS)
    assert [benchmark(name).dim for name in PUBLISHED] == [20, 20, 20, 20, 20, 24, 25, 30, 30, 30]
    assert [name for name, s in PUBLISHED.items() if s.reject] == ["rastrigin", "ackley"]
    assert [s.threshold for s in PUBLISHED.values()] == [75, 25, 1.5, 20, 500, 1, 10, 400, 1e-3, 0.4]
    assert PUBLISHED["rastrigin"].gain == 200 and PUBLISHED["sum_squares"].thousands[0] == math.inf
