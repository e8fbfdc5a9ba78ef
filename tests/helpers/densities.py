"""Three models of the textbooks as functions of named parameters, and as models of Pyro."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.distributions import (
    Bernoulli,
    Categorical,
    Dirichlet,
    HalfCauchy,
    HalfNormal,
    MixtureSameFamily,
    Normal,
    constraints,
)

from bdl.contrib.density.ordered import ordered

ROWS, GROUPS, SLOPES = 10_000, 10, 3
CENTRES, SHARES, WIDTH, POINTS = (-2.0, 0.0, 3.0), (0.3, 0.3, 0.4), 0.6, 2000


@dataclass(frozen=True)
class Model:
    """What `bdl.sample_density` takes."""

    log_prior: Callable[[dict[str, Tensor]], Tensor]
    log_likelihood: Callable[[dict[str, Tensor], Any], Tensor]
    init: Any
    data: Any
    constraints: Mapping[str, Any] = field(default_factory=dict)

    def arguments(self) -> dict[str, Any]:
        return dict(vars(self))


@functools.cache
def eight_schools() -> Model:
    """Rubin (1981), not centred: θ_j = mu + tau eta_j."""
    data = {
        "school": torch.arange(8),
        "y": torch.tensor([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0]),
        "std": torch.tensor([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0]),
    }

    def log_prior(p: dict[str, Tensor]) -> Tensor:
        of_schools = Normal(0.0, 1.0).log_prob(p["eta"]).sum()
        return Normal(0.0, 5.0).log_prob(p["mu"]) + HalfCauchy(5.0).log_prob(p["tau"]) + of_schools

    def log_likelihood(p: dict[str, Tensor], rows: Any) -> Tensor:
        return Normal(p["mu"] + p["tau"] * p["eta"][rows["school"]], rows["std"]).log_prob(rows["y"])

    init = {"mu": 0.0, "tau": 1.0, "eta": torch.zeros(8)}
    return Model(log_prior, log_likelihood, init, data, {"tau": constraints.positive})


@functools.cache
def logistic() -> Model:
    """A hierarchical logistic regression: an intercept of each group, and common slopes."""
    random = torch.Generator().manual_seed(1)
    x = torch.randn(ROWS, SLOPES, generator=random)
    group = torch.randint(GROUPS, (ROWS,), generator=random)
    alpha = 0.5 + 0.8 * torch.randn(GROUPS, generator=random)
    logits = alpha[group] + x @ torch.tensor([1.0, -0.5, 0.0])
    y = (torch.rand(ROWS, generator=random) < logits.sigmoid()).float()

    def log_prior(p: dict[str, Tensor]) -> Tensor:
        of_groups = Normal(p["mu"], p["tau"]).log_prob(p["alpha"]).sum()
        of_slopes = Normal(0.0, 1.0).log_prob(p["beta"]).sum()
        return Normal(0.0, 2.0).log_prob(p["mu"]) + HalfNormal(1.0).log_prob(p["tau"]) + of_groups + of_slopes

    def log_likelihood(p: dict[str, Tensor], rows: Any) -> Tensor:
        return Bernoulli(logits=p["alpha"][rows["group"]] + rows["x"] @ p["beta"]).log_prob(rows["y"])

    init = {"mu": 0.0, "tau": 1.0, "alpha": torch.zeros(GROUPS), "beta": torch.zeros(SLOPES)}
    return Model(log_prior, log_likelihood, init, {"x": x, "group": group, "y": y}, {"tau": constraints.positive})


@functools.cache
def mixture() -> Model:
    """Three normal components of one width, whose means are ordered."""
    random = torch.Generator().manual_seed(2)
    k = torch.multinomial(torch.tensor(SHARES), POINTS, replacement=True, generator=random)
    y = torch.tensor(CENTRES)[k] + WIDTH * torch.randn(POINTS, generator=random)

    def log_prior(p: dict[str, Tensor]) -> Tensor:
        of_shares = Dirichlet(torch.full((3,), 2.0)).log_prob(p["shares"])
        return Normal(0.0, 5.0).log_prob(p["means"]).sum() + HalfNormal(1.0).log_prob(p["std"]) + of_shares

    def log_likelihood(p: dict[str, Tensor], rows: Tensor) -> Tensor:
        parts = Normal(p["means"], p["std"].expand(3))
        return MixtureSameFamily(Categorical(p["shares"]), parts).log_prob(rows)

    kinds: dict[str, Any] = {
        "means": ordered, "shares": constraints.simplex, "std": constraints.positive
    }  # fmt: skip
    init = {"means": torch.tensor([-1.9, 0.1, 2.9]), "shares": torch.full((3,), 1 / 3), "std": 0.7}
    return Model(log_prior, log_likelihood, init, y, kinds)


MODELS = {"eight_schools": eight_schools, "logistic": logistic, "mixture": mixture}


def in_pyro(name: str, batch_size: int | None = None) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    import pyro
    import pyro.distributions as dist

    data = MODELS[name]().data

    def of_schools(std: Tensor, y: Tensor) -> None:
        mu, tau = pyro.sample("mu", dist.Normal(0.0, 5.0)), pyro.sample("tau", dist.HalfCauchy(5.0))
        with pyro.plate("school", 8):
            eta = pyro.sample("eta", dist.Normal(0.0, 1.0))
            pyro.sample("obs", dist.Normal(mu + tau * eta, std), obs=y)

    def of_groups(x: Tensor, group: Tensor, y: Tensor) -> None:
        mu, tau = pyro.sample("mu", dist.Normal(0.0, 2.0)), pyro.sample("tau", dist.HalfNormal(1.0))
        beta = pyro.sample("beta", dist.Normal(0.0, 1.0).expand([SLOPES]).to_event(1))
        with pyro.plate("groups", GROUPS):
            alpha = pyro.sample("alpha", dist.Normal(mu, tau))
        with pyro.plate("rows", len(y), subsample_size=batch_size) as rows:
            pyro.sample("obs", dist.Bernoulli(logits=alpha[group[rows]] + x[rows] @ beta), obs=y[rows])

    def of_points(y: Tensor) -> None:
        law = dist.TransformedDistribution(
            dist.Normal(0.0, 1.0).expand([3]).to_event(1), dist.transforms.OrderedTransform()
        )
        means = pyro.sample("means", law)
        pyro.factor(
            "ordered", dist.Normal(0.0, 5.0).log_prob(means).sum() - law.log_prob(means)
        )  # that of normal means
        shares = pyro.sample("shares", dist.Dirichlet(torch.full((3,), 2.0)))
        std = pyro.sample("std", dist.HalfNormal(1.0))
        with pyro.plate("points", len(y), subsample_size=batch_size) as rows:
            parts = dist.Normal(means, std.unsqueeze(-1).expand(3))
            pyro.sample("obs", dist.MixtureSameFamily(dist.Categorical(shares), parts), obs=y[rows])

    if name == "mixture":
        return of_points, (data,)
    if name == "logistic":
        return of_groups, (data["x"], data["group"], data["y"])
    return of_schools, (data["std"], data["y"])
