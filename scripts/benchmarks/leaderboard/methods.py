"""The methods of the leaderboard: samplers of bdl that need no more than a gradient, NUTS, and approximations."""

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import bdl
from bdl.contrib.baselines.swag import Moments
from bdl.engine.choose import choose_gradient
from bdl.samplers.potential import BoundGradient
from bdl.seeding import generator
from benchmarks.leaderboard.chains import Clock, Recipe, batches_of, outputs_of, sample, train
from benchmarks.leaderboard.problems import Average, Problem

DRAWS = 30  # draws of a fitted approximation, per network
Run = Callable[[Problem, float, int], tuple[Average, float]]  # (problem, passes, seed) -> average, core-seconds


@dataclass(frozen=True)
class Method:
    """A way to predictions.

    Args:
        title: what people read.
        kind: EXACT, GRADIENT or NONE.
        run: runs it on a problem, with so many passes over its data.
        fits: whether it knows the problem's network and likelihood.
        fewest: passes below which it is not tried.
    """

    title: str
    kind: str
    run: Run
    fits: Callable[[Problem], bool] = lambda problem: True
    fewest: int = 0


def chains(title: str, kind: str, dynamics: Callable[[int], Any], **options: Any) -> Method:
    recipe = Recipe(dynamics, **options)
    return Method(title, kind, lambda problem, passes, seed: sample(recipe, problem, passes, seed))


def ensemble(members: int) -> Run:
    """Networks trained by AdamW, each with its start and batches, until their validation loss stops to fall."""

    def run(problem: Problem, passes: float, seed: int) -> tuple[Average, float]:
        clock, average = Clock(), Average(problem)
        stack = problem.stack(members, seed)
        train(stack, problem, round(passes), seed)
        with clock.paused():
            average.add(outputs_of(stack, problem))
        return average, clock.seconds

    return run


def dropout(problem: Problem, passes: float, seed: int) -> tuple[Average, float]:
    """Monte Carlo dropout (Gal & Ghahramani 2016) with p = 0.1, one network."""
    clock, average = Clock(), Average(problem)
    stack = problem.stack(1, seed, dropout=0.1)
    train(stack, problem, round(passes), seed)
    with clock.paused(), torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        stack.train()
        for _ in range(DRAWS):
            average.add(stack.broadcast(problem.test[0]).clone())
    return average, clock.seconds


def swag(members: int) -> Run:
    """SWAG (Maddox et al. 2019): half of the passes train, then SGD moves at a constant lr and every epoch counts."""

    def run(problem: Problem, passes: float, seed: int) -> tuple[Average, float]:
        clock, average = Clock(), Average(problem)
        stack = problem.stack(members, seed)
        train(stack, problem, round(passes / 2), seed)
        dynamics, epoch = bdl.SGD(), max(1, problem.num_data // problem.batch)
        sampler = bdl.Sampler(
            stack.named_parameters(), dynamics, num_data=problem.num_data, lr=0.05, temperature=0.0,
            prior=problem.prior, chains=members, seed=seed,
        )  # fmt: skip
        moments, batches = [Moments(20) for _ in range(members)], batches_of(problem, dynamics, members, seed)
        gradient = choose_gradient(stack, problem.loss)
        for step in range(1, max(20, round(passes / 2)) * epoch + 1):
            x, y = next(batches)
            sampler.advance(BoundGradient.of(gradient, x, y))
            if step % epoch == 0:
                for m, theta in zip(moments, sampler.chain.theta.clone(), strict=True):
                    m.add(theta)
        random = generator("cpu", "swag", seed)
        with clock.paused():
            for _ in range(DRAWS):
                sampler.chain.theta.copy_(torch.stack([m.draw(random) for m in moments]))
                average.add(outputs_of(stack, problem))
        return average, clock.seconds

    return run


def laplace(problem: Problem, passes: float, seed: int) -> tuple[Average, float]:
    """Laplace's approximation of the last layer (Daxberger et al. 2021) by laplace-torch, one network."""
    clock, average = Clock(), Average(problem)
    stack = problem.stack(1, seed)
    train(stack, problem, round(passes), seed)
    layers = [copy.deepcopy(layer).double() for layer in stack.net.children()]
    for layer in layers:
        for p in layer.parameters():
            p.data = p.data[0]
    with warnings.catch_warnings(), torch.random.fork_rng():
        warnings.simplefilter("ignore")  # laplace-torch's own, about torch's
        thetas = fitted_laplace(torch.nn.Sequential(*layers), problem, seed)
    seconds, weight = clock.seconds, next(layers[-1].parameters())
    with torch.no_grad():
        features = torch.nn.Sequential(*layers[:-1])(problem.test[0].double())
        for theta in thetas:
            w, b = theta[: weight.numel()].view_as(weight), theta[weight.numel() :]
            average.add((features @ w.T + b).unsqueeze(0).float())
    return average, seconds


def fitted_laplace(net: torch.nn.Sequential, problem: Problem, seed: int) -> Tensor:
    """(DRAWS, d) draws of the last layer's weights and biases."""
    from laplace import Laplace

    noise: dict[str, Any] = {"sigma_noise": problem.loss.std} if isinstance(problem.loss, bdl.GaussianNLL) else {}
    fitted: Any = Laplace(
        net, "regression" if noise else "classification", subset_of_weights="last_layer", hessian_structure="full",
        last_layer_name=str(len(net) - 1), prior_precision=last_precision(problem), **noise,
    )  # fmt: skip
    x, y = problem.train
    fitted.fit(DataLoader(TensorDataset(x.double(), y if problem.classes else y.double()), batch_size=500))
    return fitted.sample(DRAWS, generator=generator("cpu", "laplace", seed)).detach()


def last_precision(problem: Problem) -> float:
    """The prior's precision of the last layer's weights; under "fan_in" that of its biases is 1, and is not told."""
    return float(problem.sizes[-2]) if problem.precision == "fan_in" else float(problem.precision)


def nuts(problem: Problem, passes: float, seed: int) -> tuple[Average, float]:
    from benchmarks.leaderboard.nuts import sample_nuts

    return sample_nuts(problem, passes, seed)


def has_known_noise(problem: Problem) -> bool:
    """Whether laplace-torch knows the likelihood."""
    return problem.classes or isinstance(problem.loss, bdl.GaussianNLL)


EXACT, GRADIENT, NONE = "all the data", "batches", "no posterior"
LADDER = bdl.Exchange(ladder=[1.0, 1.2, 1.44, 1.73], every=50, energy_var="estimated", energy="full")
# Settings are those of conf/sampler, but for T = 1 and lr = None, which is found
METHODS: dict[str, Method] = {
    "hmc": chains("HMC", EXACT, lambda n: bdl.HMC(adapt_steps=int(0.3 * n)), lr=0.05, gradients=10),
    "hmc-mass": chains(
        "HMC, diagonal mass", EXACT, lambda n: bdl.HMC(adapt_steps=max(50, int(0.3 * n)), mass="diagonal"),
        lr=0.05, gradients=10,
    ),
    "mala": chains("MALA", EXACT, lambda n: bdl.MALA(adapt_steps=int(0.3 * n)), lr=0.05),
    "metropolis": chains("Metropolis", EXACT, lambda n: bdl.Metropolis(adapt_steps=int(0.3 * n)), lr=0.05),
    "mclmc": chains(
        "MCLMC", EXACT, lambda n: bdl.MCLMC(energy_var=0.1, energy_var_start=0.5, adapt_steps=int(0.4 * n)),
        lr=1e-3, gradients=2,
    ),
    "mclmc-fine": chains(
        "MCLMC, energy_var 0.0005", EXACT, lambda n: bdl.MCLMC(adapt_steps=int(0.4 * n)), lr=1e-3, gradients=2
    ),
    "mile": chains(
        "MCLMC from an ensemble (MILE)", EXACT,
        lambda n: bdl.MCLMC(energy_var=0.1, energy_var_start=0.5, adapt_steps=int(0.4 * n)),
        lr=1e-3, gradients=2, train=0.3,
    ),
    "nuts": Method("NUTS (blackjax)", EXACT, nuts, fewest=1000),
    "sgld": chains("SGLD", GRADIENT, lambda n: bdl.SGLD()),
    "sghmc": chains("SGHMC", GRADIENT, lambda n: bdl.SGHMC()),
    "baoab": chains("BAOAB", GRADIENT, lambda n: bdl.BAOAB()),
    "sgnht": chains("SGNHT", GRADIENT, lambda n: bdl.SGNHT(rate=1e-3)),
    "sglrw": chains("SGLRW", GRADIENT, lambda n: bdl.SGLRW()),
    "psgld": chains("pSGLD", GRADIENT, lambda n: bdl.PSGLD(damping=1e-3, adapt_steps=max(1, n // 5)), lr=0.002),
    "cyclical": chains("cyclical SGHMC", GRADIENT, lambda n: bdl.SGHMC(), cycles=4),
    "awsghmc": chains(
        "AWSGHMC, zeta 1", GRADIENT, lambda n: bdl.SGHMC(),
        weighting=lambda n: bdl.AdaptiveWeight(zeta=1.0, pilot=max(100, n // 10)),
    ),
    "csgld": chains(
        "contour SGLD", GRADIENT, lambda n: bdl.SGLD(),
        weighting=lambda n: bdl.Contour(zeta=1.0, pilot=max(100, n // 10)),
    ),
    "resghmc": chains("replica exchange SGHMC", GRADIENT, lambda n: bdl.SGHMC(), exchange=LADDER),
    "bbb": chains("Bayes by Backprop", NONE, lambda n: bdl.MeanField(), lr=0.002),
    "network": Method("one network", NONE, ensemble(1)),
    "ensemble": Method("deep ensemble of 8", NONE, ensemble(8)),
    "dropout": Method("MC dropout", NONE, dropout, lambda problem: bool(problem.hidden)),
    "swag": Method("SWAG", NONE, swag(1)),
    "multiswag": Method("MultiSWAG of 8", NONE, swag(8)),
    "laplace": Method("last-layer Laplace", NONE, laplace, has_known_noise),
}  # fmt: skip
