"""Tests of `bdl.likelihoods.weighted` and `.wrapper`.

A row of weight 2 is the row twice, in every form of the gradient, and the law is that of the likelihood inside.
"""

import pytest
import torch
from torch import Tensor
from torch.distributions import Distribution

import bdl
from bdl.engine.choose import choose_gradient, of_stack
from bdl.engine.mlp_gradient import MLPGradient
from bdl.engine.mlp_kernel import MLPKernel
from bdl.engine.offset_gradient import OffsetLikelihood
from bdl.engine.stack import ChainStack
from bdl.errors import ConfigError
from bdl.identity import identity
from bdl.likelihoods import Likelihood, WeightedNLL, in_words, likelihood_of, outputs_of, with_weights
from bdl.models import MLP

LAWS = {
    "classes": (bdl.CategoricalNLL(), 3),
    "normal": (bdl.GaussianNLL(0.5), 1),
    "two targets": (bdl.HeteroscedasticNLL(), 4),
    "counts": (bdl.PoissonNLL(), 1),
    "student": (bdl.StudentTNLL(), 2),
}
C, B = 3, 7
W = torch.tensor([2.0, 1.0, 3.0, 1.0, 1.0, 2.0, 1.0])


def batch(likelihood: Likelihood, outputs: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    x = torch.randn(B, 4, generator=random)
    if likelihood.outputs == "logits":
        return x, torch.randint(outputs, (B,), generator=random)
    return x, torch.poisson(torch.full((B, likelihood.num_targets(outputs)), 2.0), random)


@pytest.mark.parametrize("compiled", [False, "auto", None])
@pytest.mark.parametrize(("likelihood", "outputs"), LAWS.values(), ids=LAWS)
def test_a_row_of_weight_2_is_the_row_twice(likelihood: Likelihood, outputs: int, compiled):
    """U and its gradient: N x the mean loss of the weighted rows, and N' x that of the repeated ones."""
    stack = ChainStack(MLP((4, 8, outputs)), C, shared=True)
    x, y = batch(likelihood, outputs)
    weighted = WeightedNLL(likelihood)
    ours = of_stack(stack, weighted) if compiled is None else choose_gradient(stack, weighted, compiled)
    assert compiled is None or isinstance(ours, MLPGradient | MLPKernel)
    plain, times = of_stack(stack, likelihood), W.long()
    g, expected = ([torch.empty_like(p) for p in plain.params] for _ in range(2))
    u = B * ours.write(x, with_weights(y, W), g)
    repeated = times.sum() * plain.write(x.repeat_interleave(times, 0), y.repeat_interleave(times, 0), expected)
    assert torch.allclose(u, repeated, rtol=1e-5)
    for a, b in zip(g, expected, strict=True):
        assert torch.allclose(B * a, times.sum() * b, rtol=1e-4, atol=1e-5)


def test_batches_of_weighted_rows_are_unbiased():
    """The mean over all batches of 2 of 6 rows is the gradient of all rows."""
    stack, (x, y) = ChainStack(MLP((4, 8, 1)), C, shared=True), batch(bdl.GaussianNLL(0.5), 1)
    gradient = choose_gradient(stack, WeightedNLL(bdl.GaussianNLL(0.5)))
    targets = with_weights(y, W)
    every, part = ([torch.empty_like(p) for p in gradient.params] for _ in range(2))
    gradient.write(x[:6], targets[:6], every)
    mean = [torch.zeros_like(p) for p in gradient.params]
    for rows in ([0, 3], [1, 5], [2, 4]):
        gradient.write(x[rows], targets[rows], part)
        for m, p in zip(mean, part, strict=True):
            m += p / 3
    for a, b in zip(mean, every, strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-6)


def test_weights_of_1_are_the_law_without_weights():
    for likelihood, outputs in LAWS.values():
        x, y = batch(likelihood, outputs)
        out = torch.randn(B, outputs)
        assert torch.equal(WeightedNLL(likelihood)(out, with_weights(y, torch.ones(B))), likelihood(out, y))


WRAPPERS = {"weighted": WeightedNLL, "observed": bdl.ObservedNLL, "offset": lambda law: OffsetLikelihood(law, 2)}
INSIDE = {
    "masses": bdl.HurdleNLL(low=0.0), "gamma": bdl.GammaNLL(limit=3.0), "counts": bdl.NegativeBinomialNLL(),
    "together": bdl.MultivariateNormalNLL(),
}  # fmt: skip


def plain(value):
    """Numbers or tensors, of a distribution its values at 1."""
    return value.log_prob(torch.ones(2)) if isinstance(value, Distribution) else value


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
@pytest.mark.parametrize("law", INSIDE.values(), ids=INSIDE)
def test_the_law_is_the_law_of_the_likelihood_inside(wrap, law: Likelihood):
    generator = torch.Generator().manual_seed(2)
    outputs = torch.randn(3, B, law.num_outputs(2), generator=generator)
    y = torch.poisson(torch.full((B, 2), 2.0), generator)
    wrapped = wrap(law)
    for name in ("outputs", "counts", "per_target", "has_masses", "bounds"):
        assert getattr(wrapped, name) == getattr(law, name)
    assert (wrapped.num_outputs(2), wrapped.num_targets(outputs.shape[-1])) == (outputs.shape[-1], 2)
    calls: dict[tuple, tuple[str, ...]] = {
        (outputs,): ("arranged", "distribution", "marginals", "mean", "variance"),
        (outputs, y): ("log_density", "cdf", "mass"),
        (y,): ("has_density", "constant"),
    }
    for given, names in calls.items():
        for name in names:
            ours, expected = (plain(getattr(each, name)(*given)) for each in (wrapped, law))
            assert torch.equal(ours, expected), name


def test_what_outputs_mean_is_that_of_the_law_inside():
    for likelihood, outputs in LAWS.values():
        weighted = WeightedNLL(likelihood)
        assert likelihood_of(identity(weighted)) == weighted and outputs_of(weighted) == likelihood.outputs
        assert weighted.counts == likelihood.counts and weighted.num_targets(outputs) == likelihood.num_targets(outputs)
        x, y = batch(likelihood, outputs)
        weighted.check(with_weights(y, W), outputs)
        values, w = weighted.split(with_weights(y, W))
        assert torch.equal(values, y) and w is not None and torch.equal(w, W)
    with pytest.raises(ConfigError, match="no counts"):
        WeightedNLL(bdl.PoissonNLL()).check(torch.tensor([[0.5, 1.0]]), 1)


@pytest.mark.parametrize("name", ["bdl.WeightedNLL", "bdl.ObservedNLL"])
def test_a_likelihood_of_the_users_own_inside_is_not_rebuilt(name):
    field = "of" if name == "bdl.ObservedNLL" else "likelihood"
    for own in ({"type": "mine.Law", "a": 1}, "mine.Law"):
        assert likelihood_of({"type": name, field: own}) is None
        assert in_words({"type": name, field: own}).startswith(name)
