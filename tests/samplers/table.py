"""The one table of samplers that all parametrised tests read: a new sampler is one row."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

import bdl


@dataclass(frozen=True)
class Row:
    """A dynamics and what is known about it. `Row(name, build)` suffices for a first-order one without preconditioner.

    On U = h x²/2 in one dimension a linear dynamics has the stationary variance (T/h) / (1 - e p h / (2 (2 - a))), with
    e = lr/N, a = friction, p = scale. A linear dynamics of order 2 has the variance T/h.
    """

    name: str
    build: Callable[[int, torch.dtype], Any]  # (d, dtype) -> dynamics; with a preconditioner d <= 2
    law: Literal["linear", "curved", "elsewhere"] = "linear"  # form of its step; or tested elsewhere
    friction: float = 1.0
    scale: float = 1.0  # p: the largest factor of lr in one dimension
    diagonal: tuple[float, float] = (1.0, 1.0)  # diagonal of the preconditioner in two dimensions
    order: int = 1  # order in lr of the law's error; a method of order 2 has none on a Gaussian
    noisy: bool = True
    sgd: bool = True  # is it SGD with momentum 1 - a at T = 0?
    thermostat: bool = False
    memory: Callable[[int], dict[str, Any]] = lambda d: {}  # d -> fields besides θ and m, long after the start
    steps: int = 4000  # with these, 4,096 chains see +2% of variance

    def __str__(self) -> str:
        return self.name


def sgld(p):
    """SGLD with the leading (d, d) or (d,) part of p as its preconditioner."""
    p = torch.tensor(p)
    return lambda d, dtype: bdl.SGLD(p[:d, :d].to(dtype) if p.ndim == 2 else p[:d].to(dtype))


def diagonal_metric(x):
    """(d,) a metric in which every entry depends on all of x."""
    return 1 + 0.5 * torch.sin(x.sum() + torch.arange(len(x), dtype=x.dtype))


def full_metric(x):
    """(d, d) a metric whose off-diagonal entries depend on all of x."""
    v = torch.sin(x.flip(0) + 1)
    return torch.eye(len(x), dtype=x.dtype) + torch.outer(v, v)


def frozen(d):
    """The memory of PSGLD where its preconditioner 1 / (.1 + sqrt V) is (1.5, .5)."""
    return {"mean": torch.tensor([1 / 1.5 - 0.1, 1 / 0.5 - 0.1], dtype=torch.float64)[:d].square(), "count": 10}


def weighed(d):
    """The memory of SGHMC where its inverse masses are (1.5, .5)."""
    return {"inverse_mass": torch.tensor([1.5, 0.5], dtype=torch.float64)[:d], "steps": 250}


def recipe_of(constant):
    """The recipe whose D is the leading part of a constant."""
    p = torch.tensor(constant)
    return lambda d, dtype: bdl.Recipe(p[:d, :d] if p.ndim == 2 else p[:d])


def recipe_of_momentum(d, dtype):
    """SGHMC with C = 1, whose friction is lr."""
    return bdl.Recipe(D=[[0, 0], [0, 1.0]], Q=[[0, -1], [1, 0]], vectors=["m"])


def recipe_of_riemannian_momentum(d, dtype):
    """A momentum along curves whose speed depends on θ, with a column that couples it to a thermostat."""
    return bdl.Recipe(
        D=[[0, 0, 0], [0, lambda z: 1 + z.theta.square(), 0], [0, 0, 0.1]],
        Q=[[0, lambda z: -(1 + 0.5 * z.theta.sin()), 0], [None, 0, lambda z: z.m / len(z.m)], [0, None, 0]],
        vectors=["m"],
        scalars={"xi": 0.1},
    )


TABLE = [
    Row("sgd", lambda d, dtype: bdl.SGD(momentum=0.0), noisy=False),
    Row("sgd-momentum", lambda d, dtype: bdl.SGD(momentum=0.9), friction=0.1, noisy=False),
    Row("sgld", lambda d, dtype: bdl.SGLD()),
    Row("sgld-diagonal", sgld([1.5, 0.5]), scale=1.5, diagonal=(1.5, 0.5), sgd=False),
    Row("sgld-dense", sgld([[1.5, 0.4], [0.4, 0.5]]), scale=1.5, diagonal=(1.5, 0.5), sgd=False),
    Row("sghmc-0.01", lambda d, dtype: bdl.SGHMC(friction=0.01), friction=0.01, steps=10000),
    Row("sghmc-0.1", lambda d, dtype: bdl.SGHMC(friction=0.1), friction=0.1),
    Row("sghmc-0.5", lambda d, dtype: bdl.SGHMC(friction=0.5), friction=0.5),
    Row("sghmc-1", lambda d, dtype: bdl.SGHMC(friction=1.0)),
    Row("baoab-0.01", lambda d, dtype: bdl.BAOAB(friction=0.01), friction=0.01, order=2, steps=10000),
    Row("baoab-0.1", lambda d, dtype: bdl.BAOAB(friction=0.1), friction=0.1, order=2),
    Row("baoab-0.5", lambda d, dtype: bdl.BAOAB(friction=0.5), friction=0.5, order=2),
    Row("baoab-1", lambda d, dtype: bdl.BAOAB(friction=1.0), order=2),
    Row("cchmc", lambda d, dtype: bdl.CCHMC(friction=0.1, adapt_steps=0), friction=0.1),  # SGHMC before it learns
    Row("sgnht-0.1", lambda d, dtype: bdl.SGNHT(friction=0.1, rate=None), friction=0.1, thermostat=True),
    Row("sgnht-0.5", lambda d, dtype: bdl.SGNHT(friction=0.5, rate=None), friction=0.5, thermostat=True),
    Row(
        "sghmc-mass", lambda d, dtype: bdl.SGHMC(friction=0.1, mass="diagonal", mass_steps=250),
        friction=0.1, scale=1.5, diagonal=(1.5, 0.5), sgd=False, memory=weighed,
    ),
    Row(
        "psgld-frozen", lambda d, dtype: bdl.PSGLD(damping=0.1, adapt_steps=10),
        scale=1.5, diagonal=(1.5, 0.5), sgd=False, memory=frozen,
    ),
    # tested in test_isokinetic.py; SGD without momentum at T = 0; u has unit length over all parameters
    Row("smile", lambda d, dtype: bdl.SMILE(friction=0.1), law="elsewhere", thermostat=True),
    Row("smile-adapting", lambda d, dtype: bdl.SMILE(adapt_steps=30), law="elsewhere", sgd=False, thermostat=True),
    # tested in test_covariance_controlled.py
    Row("cchmc-adapting", lambda d, dtype: bdl.CCHMC(rank=2, adapt_steps=30), law="elsewhere", friction=0.1),
    Row("sglrw", lambda d, dtype: bdl.SGLRW(), law="elsewhere"),  # test_lattice.py
    Row("psgld-a0", lambda d, dtype: bdl.PSGLD(a=0.0, damping=0.1), law="curved", scale=10.0, sgd=False),
    Row("sgrld-diagonal", lambda d, dtype: bdl.SGRLD(diagonal_metric), law="curved", scale=2.0, sgd=False),
    Row("sgrld-full", lambda d, dtype: bdl.SGRLD(full_metric), law="curved", sgd=False),
    Row("recipe-sgld", lambda d, dtype: bdl.Recipe(1.0)),
    Row("recipe-diagonal", recipe_of([1.5, 0.5]), scale=1.5, diagonal=(1.5, 0.5), sgd=False),
    Row("recipe-dense", recipe_of([[1.5, 0.4], [0.4, 0.5]]), scale=1.5, diagonal=(1.5, 0.5), sgd=False),
    Row(
        "recipe-sgrld-diagonal", lambda d, dtype: bdl.Recipe(lambda z: 1 / diagonal_metric(z.theta)), law="curved",
        scale=2.0, sgd=False,
    ),
    Row(
        "recipe-sgrld-full", lambda d, dtype: bdl.Recipe(lambda z: torch.linalg.inv(full_metric(z.theta))),
        law="curved", sgd=False,
    ),
    # tested in test_complete_recipe.py; lr is the root of that of SGHMC
    Row("recipe-sghmc", recipe_of_momentum, law="elsewhere", sgd=False),
    Row("recipe-riemannian", recipe_of_riemannian_momentum, law="elsewhere", sgd=False, thermostat=True),
    Row("sgld-given", lambda d, dtype: bdl.SGLD(grad_var=0.01), law="elsewhere"),
    Row("sghmc-given", lambda d, dtype: bdl.SGHMC(grad_var=0.01), law="elsewhere", friction=0.1),
    Row("sghmc-estimated", lambda d, dtype: bdl.SGHMC(grad_var="estimated"), law="elsewhere", friction=0.1),
    Row("psgld", lambda d, dtype: bdl.PSGLD(damping=0.1), law="elsewhere", sgd=False),
    Row("sgrld-fisher", lambda d, dtype: bdl.SGRLD(adapt_steps=30), law="elsewhere", sgd=False),
    Row("sgfs", lambda d, dtype: bdl.SGFS(), law="elsewhere", sgd=False),
    Row("sgfs-full", lambda d, dtype: bdl.SGFS(form="full"), law="elsewhere", sgd=False),
    Row("mean-field", lambda d, dtype: bdl.MeanField(), law="elsewhere", sgd=False),
]  # fmt: skip
NOISY = [row for row in TABLE if row.noisy]
NARROW = ("sgld-diagonal", "sgld-dense", "sgrld-full", "recipe-diagonal", "recipe-dense", "recipe-sgrld-full")
WIDE = [row for row in TABLE if row.name not in NARROW]  # these take any d
LINEAR = [row for row in NOISY if row.law == "linear"]
MIXING = [row for row in NOISY if row.law != "elsewhere" and row.friction >= 0.1]  # these cross a barrier fast enough

REPEATS = {
    "sgd", "sgld-diagonal", "sgld-dense", "sghmc-0.01", "sghmc-0.5", "sghmc-1", "baoab-0.01", "baoab-0.5", "baoab-1",
    "sgnht-0.5", "psgld-a0", "sgrld-diagonal", "recipe-sgld", "recipe-diagonal", "recipe-dense",
    "recipe-sgrld-diagonal", "recipe-sgrld-full", "recipe-sghmc", "sgld-given", "sgfs-full",
}  # fmt: skip


def repeats(row: Row) -> bool:
    """Whether another row of the same class stands for this one in long runs, which are then marked slow."""
    return row.name in REPEATS


def equip(sampler: bdl.Sampler) -> bdl.Sampler:
    """The sampler, with constants for all extras that any row may need."""
    theta = sampler.chain.theta
    each = torch.tensor([0.5, -0.5, 1.5], dtype=theta.dtype).unsqueeze(-1)  # three examples per chain
    sampler.extras |= {
        "curvature": lambda: torch.ones_like(sampler.chain.theta),
        "noise_draws": lambda: each.to(sampler.chain.theta) * torch.ones_like(sampler.chain.theta).unsqueeze(-2),
        "per_example": lambda: each.to(sampler.chain.theta) * torch.ones_like(sampler.chain.theta).unsqueeze(-2),
    }
    return sampler


KERNELS = [
    Row("metropolis", lambda d, dtype: bdl.Metropolis()),
    Row("mala", lambda d, dtype: bdl.MALA()),
    Row("hmc", lambda d, dtype: bdl.HMC(leapfrog=5)),
    Row("hmc-mass", lambda d, dtype: bdl.HMC(leapfrog=5, mass="diagonal", adapt_steps=60)),
    Row("mclmc", lambda d, dtype: bdl.MCLMC(length=2.0), law="elsewhere"),  # unadjusted: test_microcanonical.py
    Row("mclmc-leapfrog", lambda d, dtype: bdl.MCLMC("leapfrog", length=2.0), law="elsewhere"),
    Row("mclmc-adjusted", lambda d, dtype: bdl.MCLMC(length=2.0, adjusted=True), law="elsewhere"),
]
