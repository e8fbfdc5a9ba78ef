"""The scale of the prior: a few candidates, compared by the validation NLL of short trials."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bdl.engine.functional import evaluating
from bdl.likelihoods import Likelihood, Loss
from bdl.samplers.priors.base import Prior
from bdl.samplers.priors.independent import Gaussian
from bdl.samplers.priors.scales import Shapes, of_tensors
from bdl.seeding import generator
from bdl.tune.choice import Choice
from bdl.tune.score import clear_winner
from bdl.tune.trial import Problem

# Of Gaussian's precision; the first stays unless another is clearly better
OF_NUMBERS: tuple[Any, ...] = (1.0, "fan_in", "smooth", "steep")
# Of numbers, by one hidden layer: under precision 1 its 50 units let the predicted std vary by powers of ten
OF_ONE_LAYER: tuple[Any, ...] = ("smooth", 1.0, "fan_in", "steep")
OF_COUNTS: tuple[Any, ...] = (1.0, "fan_in")  # whose logarithms are outputs: under a wide prior means have no bounds
OF_CLASSES: tuple[Any, ...] = (1.0, "fan_in", "steep")
# Of classes, by hidden layers of units and a sampler of all items (scripts/results/tables/priors.md)
OF_CLASSES_IN_TABLES: tuple[Any, ...] = ("steep", "rough")
# Of OF_NUMBERS: `steep` wins a tie where the chains under precision 1 agree as far in a trial; noise then decides more
# than modes do, and chains mix better under it (scripts/results/tables/ties.md)
AGREE = 1.3  # R-hat
TIE = 0.01  # nats
ACTED = 3.0  # times 1/e
PRIOR_DRAWS = 100  # networks from a prior


def is_around_zero(prior: Prior) -> bool:
    """Whether it is of the kind that is compared, a Gaussian of mean 0 and given precision. Others are meant."""
    return isinstance(prior, Gaussian) and not prior.learns and isinstance(prior.mean, int | float) and prior.mean == 0


def candidates(loss: Loss, shapes: Shapes = (), full_batch: bool = True) -> tuple[Any, ...]:
    """The precisions that are compared; what the outputs mean decides which functions are likely.

    shapes: of one chain's parameter tensors. full_batch: whether a step of the sampler takes all items.
    """
    matrices, is_flat = sum(len(shape) > 1 for shape in shapes), all(len(shape) < 3 for shape in shapes)
    of_numbers = OF_ONE_LAYER if matrices == 2 else OF_NUMBERS
    if not isinstance(loss, Likelihood):
        return of_numbers
    if loss.outputs in ("logits", "labels"):
        return OF_CLASSES_IN_TABLES if full_batch and is_flat and matrices > 1 else OF_CLASSES
    return OF_COUNTS if loss.counts else of_numbers


def at_share(prior: Prior, share: float, problem: Problem) -> Prior:
    """The prior whose weights without data do not notice that T falls to such a share: its precision falls too.

    exp(-U/T) is then the posterior in which each item counts 1/share times, as if as many people had given it the same
    label (Aitchison 2021). Under an unchanged precision T would sharpen the prior as well.
    """
    if share == 1 or not isinstance(prior, Gaussian) or prior.learns:
        return prior
    of_tensors_at_1 = of_tensors(prior.precision, problem.shapes, lambda variance: 1 / variance)
    return Gaussian([float(f"{share * precision:.4g}") for precision in of_tensors_at_1], prior.mean)


def at_temperature(choice: Choice, prior: Prior, temperature: float) -> Choice:
    """The choice of a prior, with the precision that `at_share` has left at T, and what that is of the one chosen."""
    if not isinstance(prior, Gaussian) or choice.value is None or prior.precision == choice.value:
        return choice
    return replace(choice, value=prior.precision, reason=f"{choice.value} times T = {temperature:g}; {choice.reason}")


@torch.no_grad()
def prior_predictive(problem: Problem, prior: Gaussian, x: Tensor) -> str:
    """What networks drawn from a prior predict before they have seen data, in a few words (Gabry et al. 2019).

    Classes: the mean probability of the class that a network prefers; near 1, the prior believes in certain networks.
    Numbers: the standard deviation of their means over networks, in units of the standardised target; it should not be
    far below 1, which is the spread that the posterior must reach.
    """
    drawn, loss = _outputs_of_prior(problem, prior, x), problem.loss
    if isinstance(loss, Likelihood) and loss.outputs == "logits":
        sure = float(drawn.softmax(-1).amax(-1).mean())
        return f"networks drawn from it give the class that they predict a probability of {sure:.2f}"
    if isinstance(loss, Likelihood) and loss.outputs == "values":
        spread = float(loss.mean(drawn).std(0).median())
        return f"networks drawn from it predict means that spread by {spread:.2g} standard deviations of the target"
    return f"outputs of networks drawn from it spread by {float(drawn.std(0).median()):.2g}"


def _outputs_of_prior(problem: Problem, prior: Gaussian, x: Tensor) -> Tensor:
    """(networks, n, K) outputs of networks drawn from a prior."""
    stack = copy.deepcopy(problem.stack)
    bound = prior.bind(problem.shapes, x)
    scale = torch.as_tensor(bound.precision).double().rsqrt()
    sizes = [math.prod(shape) for shape in problem.shapes]
    scales = scale.expand(sum(sizes)).split(sizes)
    stream = generator("cpu", "prior", problem.seed)
    params = [p for p in stack.parameters() if p.requires_grad]
    outputs = []
    with evaluating(stack):
        for _ in range(-(-PRIOR_DRAWS // stack.chains)):
            for p, s in zip(params, scales, strict=True):
                z = torch.randn(p.shape, generator=stream, dtype=torch.float64).flatten(1) * s.cpu()
                p.copy_(z.view(p.shape))
            outputs.append(stack.broadcast(x))
    return torch.cat(outputs)


def steps_to_act(prior: Prior, problem: Problem, lr: float, friction: float) -> float:
    """The steps in which a Gaussian prior moves weights on which the data say nothing to where it wants them.

    Such a direction has the curvature p/N of U/N for the precision p, so that its mean falls by e in aN/(lr p) steps.
    ACTED times as many leave 5 % of it. 0 for a prior that is not Gaussian.
    """
    if not isinstance(prior, Gaussian):
        return 0.0
    precision = prior.bind(problem.shapes, problem.items[0]).precision
    smallest = float(torch.as_tensor(precision).min())
    return ACTED * friction * problem.num_data / (lr * smallest) if smallest > 0 else math.inf


def choose_prior(
    scores: dict[Any, Tensor],
    about: dict[Any, str],
    left_out: dict[Any, str],
    errors: float = 1.0,
    rhat: float = math.nan,
) -> Choice:
    """The precision that `clear_winner` finds, by so many standard errors.

    scores: (n,) negative log densities of the validation items by precision. about: what each prior predicts. left_out:
    what became of other precisions, such as "is left out, because ...". A prior that is too tight makes chains agree
    and predict worse, so agreement between chains does not tell priors apart. rhat: of the chains under the first prior
    where `steep` may win a tie with it; NaN where the first does.
    """
    chosen, first = clear_winner(scores, errors), next(iter(scores))
    if chosen == first and rhat < AGREE and "steep" in scores and scores["steep"].mean() < scores[first].mean() + TIE:
        chosen = "steep"
    values = ", ".join(f"{float(nll.mean()):.3f}" for nll in scores.values())
    reason = f"validation NLL {values} for precision {', '.join(map(str, scores))}; {about[chosen]}"
    return Choice("prior", chosen, "; ".join([reason, *(f"precision {name} {why}" for name, why in left_out.items())]))
