"""Four posteriors whose modes can be counted: three small networks, and a mixture."""

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from literature.targets import Chains, Target
from torch import Tensor
from torch.nn import functional

from bdl.samplers.dynamics.base import Transition
from bdl.seeding import generator
from experiments.explore.data import FOLDER, items
from experiments.explore.stacks import Likelihood, NetworkChains

STEEPEST, QUENCH = 0.05, 400  # lr and steps of Adam's descent


class Explored(Target):
    """A posterior exp(-U) with modes, on (..., d) arrays.

    title: what people read. gradients: over all the data, that a chain takes.
    """

    title: str
    gradients: int

    @abstractmethod
    def start(self, chains: int, seed: int) -> Tensor:
        """(C, d) where the chains begin."""

    @abstractmethod
    def chains(self, dynamics: Transition, start: Tensor, **options: Any) -> Any:
        """Chains of a sampler; options: lr in canonical units, temperature, weighting, exchange, seed."""

    @abstractmethod
    def function(self, theta: Tensor) -> Tensor:
        """(n, q) what a state predicts: q numbers by which states are compared."""

    @abstractmethod
    def predict(self, theta: Tensor) -> Tensor:
        """(n, items, parts) probabilities of classes, or of the cells of a grid of values."""

    @abstractmethod
    def densities(self, theta: Tensor) -> Tensor:
        """(n, items) p(y | x) of the test items."""

    def quench(self, theta: Tensor) -> Tensor:
        """(n, d) the minimum of U into which each state (n, d) falls by Adam's descent."""
        x, m, v = theta.clone(), torch.zeros_like(theta), torch.zeros_like(theta)
        for k in range(1, QUENCH + 1):
            g = self.energy_and_grad(x)[1]
            m.lerp_(g, 0.1)
            v.lerp_(g.square(), 0.01)
            lr = STEEPEST * 0.5 * (1 + math.cos(math.pi * k / QUENCH))
            x -= lr * (m / (1 - 0.9**k)) / ((v / (1 - 0.99**k)).sqrt() + 1e-9)
        return x


@dataclass(frozen=True, eq=False)
class Network(Explored):
    """A classifier with one hidden layer of tanh units under a N(0, 1/precision) prior. d = (p + 1) h + (h + 1) K.

    Args:
        x, y: training items (n, p) and (n,) classes.
        test: the items whose predictions are compared.
        hidden: h units.
    """

    title: str
    x: Tensor
    y: Tensor
    test: tuple[Tensor, Tensor]
    hidden: int = 2
    precision: float = 1.0
    gradients: int = 6000
    kernels: dict[int, Likelihood] = field(default_factory=dict)  # by the number of states

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.x.shape[1], self.hidden, self.classes

    @property
    def classes(self) -> int:
        return int(self.y.max()) + 1

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        return [(self.hidden, self.x.shape[1]), (self.hidden,), (self.classes, self.hidden), (self.classes,)]

    @property
    def dim(self) -> int:
        return sum(math.prod(s) for s in self.shapes)

    def parts(self, theta: Tensor) -> list[Tensor]:
        """W (n, h, p), b (n, h), V (n, K, h), c (n, K) of states (n, d)."""
        sizes = [math.prod(s) for s in self.shapes]
        return [t.reshape(-1, *s) for t, s in zip(theta.split(sizes, -1), self.shapes, strict=True)]

    def forward(self, theta: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """(n, items, h) hidden units, (n, items, K) logits."""
        w, b, v, c = self.parts(theta)
        h = torch.tanh(torch.baddbmm(b.unsqueeze(1), x.expand(len(theta), *x.shape), w.mT))
        return h, torch.baddbmm(c.unsqueeze(1), h, v.mT)

    def energy_and_grad(self, x: Tensor) -> tuple[Tensor, Tensor]:
        n = len(x)
        if n not in self.kernels:
            self.kernels[n] = Likelihood(self.sizes, (self.x, self.y), n)
        energy, grad = self.kernels[n](x)
        return energy + 0.5 * self.precision * x.square().sum(-1), grad.add_(x, alpha=self.precision)

    def chains(self, dynamics: Transition, start: Tensor, **options: Any) -> NetworkChains:
        return NetworkChains(self.sizes, (self.x, self.y), self.precision, dynamics, start, **options)

    def start(self, chains: int, seed: int) -> Tensor:
        """Normal weights of variance 1/fan-in, and biases of 0.01."""
        random = generator("cpu", "explore start", seed)
        scales = [math.sqrt(s[-1]) if len(s) > 1 else 10.0 for s in self.shapes]
        tensors = [torch.randn(chains, *s, generator=random) / a for s, a in zip(self.shapes, scales, strict=True)]
        return torch.cat([t.flatten(1) for t in tensors], 1)

    def function(self, theta: Tensor) -> Tensor:
        return self.forward(theta, self.test[0][:WATCHED])[1].softmax(-1).flatten(1)

    def predict(self, theta: Tensor) -> Tensor:
        return self.forward(theta, self.test[0])[1].softmax(-1)

    def densities(self, theta: Tensor) -> Tensor:
        y = self.test[1].expand(len(theta), -1).unsqueeze(-1)
        return self.predict(theta).gather(-1, y).squeeze(-1)


@dataclass(frozen=True, eq=False)
class Mixture(Explored):
    """The means of three normal components of variance 1, whose known shares differ: labels cannot switch freely.

        mean_k ~ N(0, 25),    x_i ~ 0.5 N(mean_1, 1) + 0.3 N(mean_2, 1) + 0.2 N(mean_3, 1)

    Each order of the means is a mode, with a probability of its own.
    """

    title: str
    x: Tensor  # (n,)
    test: Tensor  # (m,)
    gradients: int = 6000
    dim: int = 3

    def _log_parts(self, theta: Tensor, x: Tensor) -> Tensor:
        """(n, items, 3) log of share times density."""
        r = x[:, None] - theta[:, None, :]
        return SHARES.log().to(theta) - 0.5 * r.square() - 0.5 * math.log(2 * math.pi)

    def energy_and_grad(self, x: Tensor) -> tuple[Tensor, Tensor]:
        parts = self._log_parts(x, self.x)
        each = parts.logsumexp(-1)
        share = (parts - each.unsqueeze(-1)).exp()
        grad = x / SPREAD**2 - (share * (self.x[:, None] - x[:, None, :])).sum(1)
        return 0.5 * (x / SPREAD).square().sum(-1) - each.sum(-1), grad

    def chains(self, dynamics: Transition, start: Tensor, **options: Any) -> Chains:
        return Chains(self, dynamics, start, **options)

    def start(self, chains: int, seed: int) -> Tensor:
        """Draws of the prior."""
        return SPREAD * torch.randn(chains, 3, generator=generator("cpu", "explore start", seed))

    def function(self, theta: Tensor) -> Tensor:
        """The three means in units of the prior's spread: with known shares they are the prediction."""
        return theta / SPREAD

    def predict(self, theta: Tensor) -> Tensor:
        below = torch.special.ndtr(EDGES.to(theta)[:, None] - theta[:, None, :]) @ SHARES.to(theta)
        zero = torch.zeros_like(below[:, :1])
        return torch.diff(below, prepend=zero, append=zero + 1).unsqueeze(1)

    def densities(self, theta: Tensor) -> Tensor:
        return self._log_parts(theta, self.test).logsumexp(-1).exp()


SHARES, SPREAD = torch.tensor([0.5, 0.3, 0.2]), 5.0
EDGES = torch.linspace(-10, 10, 81)  # of the cells in which predictions of the mixture are compared
WATCHED = 20  # items whose predictions tell modes apart


def head() -> Network:
    (x, y), test = items("head")
    return Network("Head of a ResNet20 on CIFAR-10: 8 features, 2 units", x, y, test, precision=0.3)


def table() -> Network:
    (x, y), test = items("table")
    return Network("Table of digits: 64 pixels, 2 units", x, y, test)


def block() -> Network:
    """The upper block of a network 36-8-2-6; its first layer is frozen, and gives the inputs."""
    from safetensors.torch import load_file

    first = load_file(FOLDER / "block.safetensors")
    w, b = first["0.weight"], first["0.bias"]
    (x, y), (x_test, y_test) = items("block")
    below = partial(functional.linear, weight=w, bias=b)
    return Network("Upper block of a network on Landsat", below(x).tanh(), y, (below(x_test).tanh(), y_test))


def mixture() -> Mixture:
    random = torch.Generator().manual_seed(4)
    kinds = torch.multinomial(SHARES, 80, replacement=True, generator=random)
    x = torch.tensor(MEANS)[kinds] + torch.randn(80, generator=random)
    return Mixture("Mixture of three normals of known shares", x[:POINTS], x[POINTS:])


MEANS, POINTS = (-1.5, 1.0, 3.0), 30
PROBLEMS: dict[str, Callable[[], Explored]] = {"head": head, "table": table, "block": block, "mixture": mixture}
