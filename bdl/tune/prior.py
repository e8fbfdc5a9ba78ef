"""The scale of the prior: a few candidates, compared by the validation NLL of short trials."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bdl.engine.functional import evaluating
from bdl.likelihoods import Likelihood
from bdl.samplers.priors import Gaussian
from bdl.seeding import generator
from bdl.tune.choice import Choice
from bdl.tune.trial import Items, Problem, Trial

CANDIDATES = (1.0, 0.1, "he", "fan_in")  # Gaussian's precision; the first stays unless another is better
ERRORS = 2.0  # standard errors of the difference that make another clearly better
SHORTEST = 100  # steps of a trial; in fewer, no prior has moved the chains
DRAWS = 100  # networks from a prior


@dataclass
class Score:
    """The log density of validation items under the average of what a trial's chains predict.

    Args:
        total: (n,) log of the summed densities of all networks so far.
        networks: how many.
    """

    items: Items
    total: Tensor | None = None
    networks: int = 0

    @torch.no_grad()
    def __call__(self, trial: Trial) -> None:
        """Add the networks at which the chains stand."""
        (x, y), loss = self.items, trial.problem.loss
        outputs = trial.outputs(x)
        if isinstance(loss, Likelihood):
            losses = loss(outputs, y.expand(len(outputs), *y.shape)).double()
            log_density = (-losses).logsumexp(0)
        else:  # only the mean over items is known
            log_density = -torch.stack([loss(o, y) for o in outputs]).double().mean().reshape(1)
        log_density = log_density.nan_to_num(nan=-math.inf)
        self.total = log_density if self.total is None else torch.logaddexp(self.total, log_density)
        self.networks += len(outputs) if isinstance(loss, Likelihood) else 1

    @property
    def nll(self) -> Tensor:
        """(n,) negative log density of every item, nats."""
        assert self.total is not None
        return math.log(self.networks) - self.total


@torch.no_grad()
def prior_predictive(problem: Problem, prior: Gaussian, x: Tensor) -> str:
    """What networks drawn from a prior predict before they have seen data, in a few words (Gabry et al. 2019).

    Classes: the mean probability of the class that a network prefers; near 1, the prior believes in certain networks.
    Numbers: the standard deviation of their means over networks, in units of the standardised target; it should not be
    far below 1, which is the spread that the posterior must reach.
    """
    stack, loss = copy.deepcopy(problem.stack), problem.loss
    bound = prior.bind(problem.shapes, x)
    scale = torch.as_tensor(bound.precision).double().rsqrt()
    sizes = [math.prod(shape) for shape in problem.shapes]
    scales = scale.expand(sum(sizes)).split(sizes)
    stream = generator("cpu", "prior", problem.seed)
    params = [p for p in stack.parameters() if p.requires_grad]
    outputs = []
    with evaluating(stack):
        for _ in range(-(-DRAWS // stack.chains)):
            for p, s in zip(params, scales, strict=True):
                z = torch.randn(p.shape, generator=stream, dtype=torch.float64).flatten(1) * s.cpu()
                p.copy_(z.view(p.shape))
            outputs.append(stack.broadcast(x))
    drawn = torch.cat(outputs)  # (networks, n, K)
    if isinstance(loss, Likelihood) and loss.outputs == "logits":
        return f"networks of the prior give their class {float(drawn.softmax(-1).amax(-1).mean()):.2f}"
    if isinstance(loss, Likelihood) and loss.outputs == "values":
        return f"means of the prior spread by {float(loss.mean(drawn).std(0).median()):.2g} target deviations"
    return f"outputs of the prior spread by {float(drawn.std(0).median()):.2g}"


def choose_prior(scores: dict[float | str, Tensor], about: dict[float | str, str]) -> Choice:
    """The candidate with the lowest validation NLL, if it is better than the first by more than two standard errors.

    scores: (n,) negative log densities of the validation items by precision. A prior that is too tight makes chains
    agree and predict worse, so agreement between chains has no say.
    """
    first = next(iter(scores))
    best = min(scores, key=lambda name: float(scores[name].mean()))
    gain = scores[first] - scores[best]
    error = float(gain.std() / math.sqrt(len(gain))) if len(gain) > 1 else 0.0
    chosen = best if float(gain.mean()) > ERRORS * error else first
    listed = ", ".join(str(name) for name in scores)
    values = ", ".join(f"{float(nll.mean()):.3f}" for nll in scores.values())
    return Choice("prior", chosen, f"validation NLL {values} for precision {listed}; {about[chosen]}")
