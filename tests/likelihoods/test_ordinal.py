"""Tests of `bdl.likelihoods.ordinal`: the cumulative logit against scipy's logistic law, its mixtures against sums."""

import numpy as np
import pytest
import scipy.stats as st
import torch
from by_hand import mixture_of

import bdl
from bdl.errors import ConfigError
from bdl.likelihoods.base import by_autograd
from bdl.posterior.prediction import of_mixture

D64 = torch.float64
LEVELS, THRESHOLDS = np.array([1.0, 2.0, 3.5, 6.0]), np.array([-1.2, 0.4, 0.9])
LAW = bdl.OrdinalNLL(tuple(LEVELS), tuple(THRESHOLDS))


def problem(items: int = 9) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
    """Outputs (3, items, 4) of three networks, levels y (3, items, 1), and the probabilities of all levels."""
    generator = torch.Generator().manual_seed(1)
    outputs = 0.8 * torch.randn(3, items, 4, generator=generator, dtype=D64)
    y = torch.from_numpy(LEVELS)[torch.randint(4, (3, items, 1), generator=generator)]
    eta, a = np.split(outputs.numpy(), [1], -1)
    widths = np.concatenate([THRESHOLDS[:1] + a[..., :1], np.diff(THRESHOLDS) * np.exp(a[..., 1:])], -1)
    below = st.logistic.cdf(np.cumsum(widths, -1) - eta)
    return outputs, y, np.diff(below, axis=-1, prepend=0.0, append=1.0)


def test_losses_and_moments_are_those_of_differences_of_a_logistic_law():
    outputs, y, p = problem()
    chosen = np.take_along_axis(p, np.searchsorted(LEVELS, y.numpy()), -1)
    torch.testing.assert_close(LAW(outputs, y), torch.from_numpy(-np.log(chosen[..., 0])))
    torch.testing.assert_close(LAW.mass(outputs, y), torch.from_numpy(chosen))
    mean = (p * LEVELS).sum(-1)
    torch.testing.assert_close(LAW.mean(outputs)[..., 0], torch.from_numpy(mean))
    torch.testing.assert_close(LAW.variance(outputs)[..., 0], torch.from_numpy((p * LEVELS**2).sum(-1) - mean**2))
    for value in (0.0, 1.0, 3.0, 3.5, 6.0):  # below all, at levels, and between two
        at_most = torch.from_numpy((p * (value >= LEVELS)).sum(-1))
        torch.testing.assert_close(LAW.cdf(outputs, torch.tensor([value], dtype=D64))[..., 0], at_most)


def test_far_outputs_lose_no_digits():
    """Where both ends of a level are far out, the difference of two probabilities near 1 would be 0."""
    outputs = torch.tensor([[60.0, 0.0, 0.0, 0.0]])
    expected = np.log(np.expm1(0.5)) - (60 - 0.4)  # (e^(c_2 - η) - e^(c_1 - η)): all there is so far below
    assert float(LAW(outputs, torch.tensor([[3.5]]))) == pytest.approx(-expected, rel=1e-5)


def test_mean_and_gradient_are_those_of_autograd():
    outputs, y, _ = problem()
    loss, gradient = LAW.mean_and_gradient(outputs, y)
    expected_loss, expected = by_autograd(lambda o: LAW(o, y).mean(-1), outputs)
    torch.testing.assert_close(loss, expected_loss)
    torch.testing.assert_close(gradient, expected, rtol=1e-10, atol=1e-12)


def test_quantiles_and_scores_of_a_mixture_are_those_of_its_probabilities():
    outputs, y, p = problem()
    weights = torch.tensor([0.2, 0.5, 0.3])
    mixture = mixture_of(outputs, LAW, weights)
    p, y = (weights.numpy()[:, None, None] * p).sum(0), y[0]
    below = p.cumsum(-1)
    frame = of_mixture(mixture).to_frame()
    np.testing.assert_allclose(frame[["p_1", "p_2", "p_3.5", "p_6"]], p, rtol=1e-5)
    for name, q in (("q05", 0.05), ("q50", 0.5), ("q95", 0.95)):
        assert frame[name].tolist() == LEVELS[(below < q).sum(-1)].tolist()
    distance = np.abs(LEVELS[:, None] - LEVELS)
    crps = (p * np.abs(LEVELS - y.numpy())).sum(-1) - 0.5 * np.einsum("nj,nk,jk->n", p, p, distance)
    torch.testing.assert_close(mixture.crps(y)[:, 0], torch.from_numpy(crps), rtol=1e-5, atol=1e-7)
    chosen = np.take_along_axis(p, np.searchsorted(LEVELS, y.numpy()), -1)[:, 0]
    torch.testing.assert_close(mixture.log_density(y), torch.from_numpy(np.log(chosen)), rtol=1e-5, atol=1e-7)


def test_a_constant_law_has_the_shares_and_one_more_of_each():
    y = torch.tensor([[1.0], [1.0], [6.0]])
    law = LAW.constant(y)
    assert law.log_prob(y).exp().flatten().tolist() == pytest.approx([3 / 7, 3 / 7, 2 / 7])


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda: bdl.OrdinalNLL((1.0, 1.0), (0.0,)), "levels must ascend"),
        (lambda: bdl.OrdinalNLL((1.0, 2.0), (0.0, 1.0)), "need one threshold between each and the next"),
        (lambda: LAW.check(torch.tensor([[1.0], [5.0]])), "none of the levels; the first is 5 in row 1"),
        (lambda: LAW.num_targets(5), "OrdinalNLL needs 4 outputs, and the network has 5"),
    ],
)
def test_what_does_not_fit_is_refused(call, line):
    with pytest.raises(ConfigError, match=line):
        call()
