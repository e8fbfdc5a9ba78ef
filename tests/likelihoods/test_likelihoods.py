"""Tests of `bdl.likelihoods.base`, `.categorical`, `.values`, `.contaminated`, `.per_target`, `.heads` and `.losses`.

Likelihoods against torch.distributions and scipy, their gradients against autograd, and the targets they refuse.
"""

import json
import math

import pytest
import scipy.stats as st
import torch
import torch.nn.functional as F
from contaminated import Contaminated
from torch import nn

import bdl
from bdl.engine.choose import choose_gradient
from bdl.engine.forward import Forward
from bdl.engine.mlp_gradient import MLPGradient
from bdl.errors import ConfigError
from bdl.identity import identity
from bdl.likelihoods import as_columns, law_note, likelihood_of, mean_loss, outputs_of
from bdl.likelihoods.base import by_autograd
from bdl.likelihoods.contaminated import ContaminatedNormal
from bdl.models import MLP

D64 = torch.float64
C, B, TARGETS = 3, 20, 2
D64_MIN = torch.tensor([0.0, 0.49], dtype=D64)  # the squares of the least standard deviations of two targets
LAWS = {  # likelihood -> the frozen law of scipy for its parameters (..., k), each an array
    bdl.BernoulliNLL(): lambda a: st.bernoulli(1 / (1 + (-a).exp())),
    bdl.GaussianNLL(0.3): lambda a: st.norm(a, 0.3),
    bdl.GaussianNLL(torch.tensor([0.5, 2.0])): lambda a: st.norm(a, [0.5, 2.0]),
    bdl.HeteroscedasticNLL(): lambda a, b: st.norm(a, (b / 2).exp()),
    bdl.HeteroscedasticNLL("softplus"): lambda a, b: st.norm(a, b.exp().log1p()),
    bdl.HeteroscedasticNLL(min_std=0.7): lambda a, b: st.norm(a, (b.exp() + 0.49).sqrt()),
    bdl.HeteroscedasticNLL(min_std=[0.0, 0.7]): lambda a, b: st.norm(a, (b.exp() + D64_MIN).sqrt()),
    bdl.HeteroscedasticNLL("softplus", 0.7): lambda a, b: st.norm(a, (b.exp().log1p().square() + 0.49).sqrt()),
    bdl.HeteroscedasticNLL(outliers=0.1): lambda a, b: Contaminated(a, (b / 2).exp(), 0.1),
    bdl.HeteroscedasticNLL("softplus", 0.7, 0.01): lambda a, b: Contaminated(
        a, (b.exp().log1p().square() + 0.49).sqrt(), 0.01
    ),
    bdl.StudentTNLL(5.0, scale=0.7): lambda a: st.t(5, a, 0.7),
    bdl.StudentTNLL(3.0): lambda a, b: st.t(3, a, b.exp()),
    bdl.PoissonNLL(): lambda a: st.poisson(a.exp()),
    bdl.NegativeBinomialNLL(0.4): lambda a: st.nbinom(1 / 0.4, 1 / (1 + 0.4 * a.exp())),
    bdl.NegativeBinomialNLL(): lambda a, b: st.nbinom((-b).exp(), 1 / (1 + (a + b).exp())),
}
DISCRETE = (bdl.BernoulliNLL, bdl.PoissonNLL, bdl.NegativeBinomialNLL)


def problem(likelihood) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs (C, B, K) and targets (C, B, k)."""
    generator = torch.Generator().manual_seed(1)
    outputs = torch.randn(C, B, likelihood.num_outputs(TARGETS), generator=generator, dtype=D64)
    if isinstance(likelihood, bdl.BernoulliNLL):
        return outputs, torch.randint(2, (C, B, TARGETS), generator=generator)
    if likelihood.counts:
        return outputs, torch.randint(6, (C, B, TARGETS), generator=generator)
    return outputs, torch.randn(C, B, TARGETS, generator=generator, dtype=D64)


@pytest.mark.parametrize("likelihood", LAWS, ids=repr)
def test_losses_moments_and_distributions_are_those_of_scipy(likelihood):
    outputs, y = problem(likelihood)
    assert likelihood.num_targets(outputs.shape[-1]) == TARGETS
    law = LAWS[likelihood](*outputs.split(TARGETS, -1))
    log_p = torch.as_tensor((law.logpmf if isinstance(likelihood, DISCRETE) else law.logpdf)(y))
    torch.testing.assert_close(likelihood(outputs, y), -log_p.sum(-1), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(likelihood.log_density(outputs, y.double()), log_p, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(likelihood.distribution(outputs).log_prob(y.double()), log_p.sum(-1))
    torch.testing.assert_close(likelihood.mean(outputs), torch.as_tensor(law.mean()))
    torch.testing.assert_close(likelihood.variance(outputs), torch.as_tensor(law.var()))
    if not isinstance(likelihood, bdl.BernoulliNLL):
        for shift in (-1.5, 0.0, 0.5):  # counts: below 0, at a jump, between two
            expected = torch.as_tensor(law.cdf(y + shift))
            torch.testing.assert_close(likelihood.cdf(outputs, y + shift), expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("columns_last", [True, False])
@pytest.mark.parametrize("likelihood", [bdl.CategoricalNLL(), *LAWS], ids=repr)
def test_means_and_gradients_are_those_of_autograd(likelihood, columns_last):
    outputs, y = (
        (torch.randn(C, B, 4, dtype=D64), torch.randint(4, (C, B)))
        if isinstance(likelihood, bdl.CategoricalNLL)
        else problem(likelihood)
    )
    if not columns_last:
        outputs = outputs.mT.contiguous().mT
    loss, gradient = likelihood.mean_and_gradient(outputs, y)
    expected_loss, expected = by_autograd(lambda o: likelihood(o, y).mean(-1), outputs)
    torch.testing.assert_close(loss, expected_loss, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient, expected, rtol=1e-10, atol=1e-12)


def test_an_outlier_costs_and_pulls_finitely_in_float32():
    """At z = 1e6 half of z² is 5e11, which float32 resolves to 3e4; gradients are those of an item 5 times as wide."""
    outputs, z = torch.zeros(1, 2), torch.tensor([[1e6]])
    loss, gradient = bdl.HeteroscedasticNLL(outliers=0.01).mean_and_gradient(outputs, z)
    assert float(loss) == pytest.approx(-st.norm(0, 5).logpdf(1e6) - math.log(0.01), rel=1e-6)
    torch.testing.assert_close(gradient, torch.tensor([[-1e6 / 25, 0.5 * (1 - 1e12 / 25)]]))


def test_draws_of_a_contaminated_law_have_its_moments():
    law = ContaminatedNormal(torch.tensor(2.0, dtype=D64), torch.tensor(3.0, dtype=D64), 0.2)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        draws = law.sample(torch.Size((200_000,)))
    assert float(draws.mean()) == pytest.approx(2.0, abs=0.06)
    assert float(draws.var()) == pytest.approx(float(law.variance), rel=0.03)


@pytest.mark.parametrize("share", [-0.01, 0.5, math.nan])
def test_the_share_of_outliers_is_below_a_half(share):
    with pytest.raises(ConfigError, match="outliers must be a share from 0 to below 1/2"):
        bdl.HeteroscedasticNLL(outliers=share)


def test_labels_may_be_of_type_bool():
    outputs, y = torch.randn(4, 2), torch.tensor([[True, False]] * 4)
    for found, expected in zip(*(bdl.BernoulliNLL().mean_and_gradient(outputs, t) for t in (y, y.long())), strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", [torch.float32, D64])
@pytest.mark.parametrize("z", [1e12, -1e12, math.inf, math.nan])
def test_student_distribution_function_beyond_its_table(dtype, z):
    found = bdl.StudentTNLL(4.0, scale=1.0).cdf(torch.zeros(1, 1, dtype=dtype), torch.tensor([[z]], dtype=dtype))
    assert float(found) == pytest.approx(math.nan if math.isnan(z) else float(z > 0), abs=1e-12, nan_ok=True)


def test_a_small_dispersion_keeps_its_digits_in_float32():
    """At a = exp(-12) the law is nearly that of Poisson: lgamma(1/a) is 1.8e6, of which float32 resolves 0.1."""
    outputs, y = torch.tensor([[3.0, -12.0]]), torch.tensor([[25]])
    loss, gradient = bdl.NegativeBinomialNLL().mean_and_gradient(outputs, y)
    poisson, by_rate = bdl.PoissonNLL().mean_and_gradient(outputs[:, :1], y)
    assert loss.dtype == gradient.dtype == torch.float32
    torch.testing.assert_close(loss, poisson, rtol=1e-5, atol=0)
    torch.testing.assert_close(gradient[:, :1], by_rate, rtol=1e-3, atol=0)
    assert abs(float(gradient[0, 1])) < 1e-4


@pytest.mark.parametrize("likelihood", [law for law in LAWS if law != bdl.GaussianNLL([0.5, 2.0])], ids=repr)
def test_one_target_may_be_a_plain_column(likelihood):
    """(B,) against outputs (B, 1) would broadcast to B x B pairs."""
    outputs, y = (t[..., : t.shape[-1] // TARGETS] for t in problem(likelihood))
    torch.testing.assert_close(likelihood(outputs, y.squeeze(-1)), likelihood(outputs, y))
    for shape in ((B, 1), (C, B, 1)):
        assert as_columns(torch.zeros(shape), torch.Size((C, B, 1))).shape == shape
    with pytest.raises(ConfigError, match=r"targets of shape \(3, 7\) do not fit"):
        likelihood(outputs, y.squeeze(-1)[:, :7])


@pytest.mark.parametrize("likelihood", [bdl.GaussianNLL([0.1, 2.0]), bdl.HeteroscedasticNLL(min_std=[0.1, 2.0])])
def test_numbers_for_another_count_of_targets_are_refused(likelihood):
    with pytest.raises(ConfigError, match="std has 2 numbers for 3 targets: give one for each, or one for all"):
        likelihood.check(torch.zeros(4, 3), likelihood.num_outputs(3))


def test_a_constant_scale_is_a_parameter_of_the_network():
    """The stack's gradient by the chain rule, with the constants behind the network."""
    net = bdl.with_constant_scale(MLP((3, 5, TARGETS)), TARGETS, start=-1.0)
    stack = bdl.ChainStack(net, C, seed=3).double()
    x, y, loss = torch.randn(C, B, 3, dtype=D64), torch.randn(C, B, TARGETS, dtype=D64), bdl.HeteroscedasticNLL()
    outputs = stack(x)
    assert outputs.shape == (C, B, 2 * TARGETS) and bool((outputs[..., TARGETS:] == -1.0).all())
    expected = mean_loss(loss, outputs, y, C)
    expected.sum().backward()
    gradient = choose_gradient(stack, loss, compiled=False)
    assert isinstance(gradient, MLPGradient)
    gradients = [torch.empty_like(p) for p in gradient.params]
    losses = gradient.write(x, y, gradients)
    torch.testing.assert_close(losses, expected.detach())
    for p, g in zip(gradient.params, gradients, strict=True):
        torch.testing.assert_close(g, p.grad, rtol=1e-10, atol=1e-12)


OTHERS = [
    bdl.MultiCategoricalNLL((3, 2, 4)), bdl.OrdinalNLL((1.0, 2.0, 3.5), (-1.2, 0.4)), bdl.LogNormalNLL(min_std=0.3),
    bdl.HurdleNLL((0.0, 1.0), (-1.0, 0.5), low=0.0, high=1.0, spread=1.2), bdl.HurdleNLL(high=1.0, tail="linear"),
    bdl.GammaNLL(center=0.5, spread=0.7), bdl.MultivariateNormalNLL("softplus"), bdl.MultivariateNormalNLL(min_std=0.3),
    bdl.ObservedNLL(bdl.HeteroscedasticNLL(min_std=[0.1, 0.0])),
]  # fmt: skip


@pytest.mark.parametrize("likelihood", [bdl.CategoricalNLL(), *LAWS, *OTHERS], ids=repr)
def test_a_likelihood_is_rebuilt_from_what_the_run_recorded(likelihood):
    assert likelihood_of(json.loads(json.dumps(identity(likelihood)))) == likelihood == likelihood_of(likelihood)


@pytest.mark.parametrize(
    ("loss", "likelihood"),
    [
        (nn.CrossEntropyLoss(), bdl.CategoricalNLL()),
        (F.cross_entropy, bdl.CategoricalNLL()),
        (nn.NLLLoss(), bdl.CategoricalNLL()),  # log-softmax leaves log-probabilities as they are
        (nn.BCEWithLogitsLoss(), bdl.BernoulliNLL()),
        (nn.PoissonNLLLoss(), bdl.PoissonNLL()),
        (nn.PoissonNLLLoss(log_input=False), None),
        (nn.GaussianNLLLoss(), None),
        (nn.L1Loss(), None),
        (None, None),
    ],
    ids=lambda of: getattr(of, "__name__", str(of)),
)
def test_losses_of_torch_are_understood_where_they_say_enough(loss, likelihood):
    assert likelihood_of(loss) == likelihood == likelihood_of(identity(loss))


@pytest.mark.parametrize("outputs", [1, 4])
def test_a_mean_squared_error_is_a_normal_law(outputs):
    """Its differences of losses are those of the law with variance k/2, because it averages over the k outputs."""
    likelihood = likelihood_of(nn.MSELoss(), outputs)
    assert isinstance(likelihood, bdl.GaussianNLL) and likelihood.std == pytest.approx(math.sqrt(outputs / 2))
    a, b, y = torch.randn(3, B, outputs, dtype=D64)
    difference = likelihood(a, y).mean() - likelihood(b, y).mean()
    torch.testing.assert_close(difference, F.mse_loss(a, y) - F.mse_loss(b, y))
    assert outputs_of(nn.MSELoss()) == "values" and "sqrt(1/2)" in (law_note(nn.MSELoss()) or "")


NAN = math.nan


@pytest.mark.parametrize(
    ("likelihood", "y", "outputs", "words"),
    [
        (
            bdl.CategoricalNLL(),
            [0, 1, 3, -1],
            3,
            r"2 of 4 values that are none of the 3 classes; the first is 3 in row 2",
        ),
        (bdl.CategoricalNLL(), [0, -1], None, "none of the K classes"),
        (bdl.CategoricalNLL(), [0.0, 1.0], None, r"y.long\(\)"),
        (bdl.CategoricalNLL(), [0.0, NAN], None, "no class; the first is nan in row 1"),
        (bdl.CategoricalNLL(), [[0], [1]], 2, r"shape \(2, 1\), .*one class for each item"),
        (bdl.BernoulliNLL(), [0, 2], 1, "neither 0 nor 1; the first is 2 in row 1"),
        (bdl.GaussianNLL(1.0), [[0.0, 1.0], [NAN, math.inf]], 2, "2 of 4 values that are not finite.* in row 1"),
        (bdl.HeteroscedasticNLL(), [[0.0, 1.0]], 2, r"shape \(1, 2\), and a network with 2 outputs predicts 1 target "),
        (bdl.HeteroscedasticNLL(), [0.0], 3, "needs 2 outputs for each target, and the network has 3"),
        (bdl.PoissonNLL(), [0.0, 1.5], None, "no counts.* the first is 1.5 in row 1"),
        (bdl.NegativeBinomialNLL(), [0, -2], None, "no counts.* the first is -2 in row 1"),
    ],
    ids=lambda value: "" if isinstance(value, list | str | None) else str(value),
)
def test_targets_outside_the_domain_are_refused_in_one_line(likelihood, y, outputs, words):
    with pytest.raises(ConfigError, match=words) as caught:
        likelihood.check(torch.tensor(y), outputs)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("likelihood", [bdl.CategoricalNLL(), *LAWS], ids=repr)
def test_targets_inside_the_domain_are_taken(likelihood):
    good = torch.tensor([0, 1, 1])
    if isinstance(likelihood, bdl.CategoricalNLL):
        likelihood.check(good, 2)
    else:
        likelihood.check(torch.stack([good] * TARGETS, 1), likelihood.num_outputs(TARGETS))


@pytest.mark.parametrize("inner", [MLP((3, 5, 2)), nn.Flatten()], ids=["behind an MLP", "behind the inputs"])
def test_networks_with_constants_run_together_as_they_run_alone(inner):
    net = bdl.with_constant_scale(inner, 2)
    stack = bdl.ChainStack(net, 4)
    tensors = {name: p.detach() + torch.randn_like(p) for name, p in stack.net.named_parameters()}
    x = torch.randn(6, 3)
    together, alone = Forward(net).evaluate(tensors, x), Forward(net, "loop").evaluate(tensors, x)
    assert Forward(net).way(5) == "bmm"
    torch.testing.assert_close(together, alone)
    assert torch.equal(together[..., -2:], tensors["1.value"].unsqueeze(1).expand(4, 6, 2))
