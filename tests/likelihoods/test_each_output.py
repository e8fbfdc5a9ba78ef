"""Tests of `bdl.likelihoods.counts` and `.per_target`: settings for each output, and means over outputs."""

import re

import numpy as np
import pytest
import torch

import bdl
from bdl.errors import ConfigError
from bdl.likelihoods import mean_note

EACH = [
    (bdl.GaussianNLL, lambda value: {"std": value}),
    (bdl.StudentTNLL, lambda value: {"scale": value}),
    (bdl.NegativeBinomialNLL, lambda value: {"dispersion": value}),
]


@pytest.mark.parametrize("law, settings", EACH)
@pytest.mark.parametrize("given", [[0.5, 2.0], (0.5, 2.0), torch.tensor([0.5, 2.0]), np.array([0.5, 2.0])])
def test_a_setting_per_output_is_that_of_each_output_by_itself(law, settings, given):
    torch.manual_seed(0)
    outputs, y = torch.randn(7, 2), torch.poisson(torch.ones(7, 2))
    each = [law(**settings(value))(outputs[:, j : j + 1], y[:, j : j + 1]) for j, value in enumerate((0.5, 2.0))]
    together = law(**settings(given))
    torch.testing.assert_close(together(outputs, y), sum(each))
    assert together == law(**settings((0.5, 2.0)))
    with pytest.raises(ConfigError, match="has 2 numbers for 3 targets"):
        together(torch.zeros(7, 3), torch.zeros(7, 3))


@pytest.mark.parametrize("law, settings", EACH)
@pytest.mark.parametrize("given", ["a", [[0.5, 2.0]], [], {"a": 1.0}, -1.0, [0.5, -2.0], torch.zeros(2)])
def test_settings_that_are_no_positive_numbers_are_refused(law, settings, given):
    with pytest.raises(ConfigError, match="must be"):
        law(**settings(given))


@pytest.mark.parametrize(
    "loss, use",
    [
        (torch.nn.BCEWithLogitsLoss(), r"use bdl.BernoulliNLL\(\)"),
        (torch.nn.functional.binary_cross_entropy_with_logits, r"use bdl.BernoulliNLL\(\)"),
        (torch.nn.PoissonNLLLoss(), r"use bdl.PoissonNLL\(\)"),
        (torch.nn.HuberLoss(), "adds up the outputs"),
        (lambda outputs, y: (outputs - y).abs().mean(), "adds up the outputs"),
    ],
)
def test_a_mean_over_outputs_is_told(loss, use):
    outputs, y = torch.randn(20, 4), torch.ones(20, 4)
    assert re.search(f"mean over the 4 outputs of an item, .* 1/4 of the data.*{use}", mean_note(loss, outputs, y))
    assert mean_note(loss, outputs[:, :1], y[:, :1]) is None


@pytest.mark.parametrize(
    "loss",
    [torch.nn.MSELoss(), bdl.BernoulliNLL(), lambda o, y: (o - y).abs().sum(-1).mean(), torch.nn.CrossEntropyLoss()],
)
def test_a_sum_over_outputs_and_what_is_told_already_is_not(loss):
    assert mean_note(loss, torch.randn(20, 4), torch.ones(20, 4) / 4) is None


def gaussian(outputs: torch.Tensor, y: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
    mean, log_var = outputs.chunk(2, -1)
    return torch.nn.functional.gaussian_nll_loss(mean, y, log_var.exp(), reduction=reduction)


@pytest.mark.parametrize("loss", [gaussian, lambda o, y: gaussian(o, y, "none").mean()])
def test_a_mean_over_targets_with_several_outputs_each_is_told(loss):
    y = torch.randn(20, 3)
    assert "mean over the 3 targets of an item" in str(mean_note(loss, torch.randn(20, 6), y))
    assert "1/3 of the data" in str(mean_note(loss, torch.randn(20, 6), y))
    assert mean_note(loss, torch.randn(20, 2), y[:, :1]) is None


@pytest.mark.parametrize(
    "loss",
    [
        lambda o, y: 3 * gaussian(o, y),
        lambda o, y: gaussian(o, y) * torch.tensor(3.0),
        lambda o, y: gaussian(o, y, "none").sum(-1).mean(),
        lambda o, y: gaussian(o, y, "sum") / len(y),
        lambda o, y: gaussian(o, y, "none").mean(0).sum(),
        lambda o, y: torch.nn.functional.gaussian_nll_loss(o[:, 0], y[:, 0], o[:, 1].exp()),
    ],
)
def test_a_sum_over_targets_with_several_outputs_each_is_not(loss):
    assert mean_note(loss, torch.randn(20, 6), torch.randn(20, 3)) is None


@pytest.mark.parametrize(
    ("loss", "left_out", "use"),
    [(torch.nn.CrossEntropyLoss(), -100, r"CategoricalNLL\(\), which"),
     (torch.nn.functional.cross_entropy, -100, "which"),
     (torch.nn.CrossEntropyLoss(ignore_index=2), 2, "with -100 for 2")],
)  # fmt: skip
def test_a_mean_over_the_items_with_a_label_is_told(loss, left_out, use):
    """Under N times this mean, each item that has a label would count 4/3 times."""
    outputs, y = torch.randn(8, 3), torch.tensor([0, 1, left_out, 0, 1, 1, left_out, 0])
    note = mean_note(loss, outputs, y)
    assert note is not None and "25%" in note and "count 1.33 times" in note and re.search(use, note)
    exact = bdl.CategoricalNLL()(outputs, y.masked_fill(y == left_out, -100)).mean()
    assert float(loss(outputs, y)) * 3 / 4 == pytest.approx(float(exact), rel=1e-5)
    assert mean_note(loss, outputs, y.masked_fill(y == left_out, 0)) is None


TWO = [bdl.HeteroscedasticNLL(), bdl.StudentTNLL(), bdl.LogNormalNLL(), bdl.GammaNLL(), bdl.NegativeBinomialNLL()]


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("law", TWO)
def test_an_odd_number_of_outputs_is_refused_where_each_target_has_two(law, width):
    """Halves of 3 outputs are of 2 and 1, which broadcast in silence."""
    outputs, y = torch.randn(6, width), torch.ones(6, 1)
    for call in (law, law.mean_and_gradient, lambda outputs, _: law.distribution(outputs)):
        with pytest.raises(ConfigError, match=f"takes 2 outputs for each target, and the network has {width}: give"):
            call(outputs, y)
