"""Tests of `bdl.posterior.recorded`: another network of the same shapes, or another likelihood, is told at `load`."""

import warnings

import pytest
import torch
from torch import nn

import bdl
from bdl.data import TensorBatches
from bdl.identity import architecture, identity
from bdl.posterior.recorded import of_likelihood, of_network

TANH = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2))
MLP = {"_target_": "bdl.models.MLP", "sizes": [2, 4, 2], "activation": "tanh", "dropout": 0.0}


def net(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers)


@pytest.mark.parametrize("recorded", [architecture(TANH), MLP])
@pytest.mark.parametrize(
    ("given", "words"),
    [
        (TANH, None),
        (net(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2)), "with Tanh at 1, and this one has ReLU"),
        (net(nn.Linear(2, 4), nn.LeakyReLU(0.3), nn.Linear(4, 2)), "this one has LeakyReLU: pass"),
        (net(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2), nn.Softmax(1)), "no layer at 3, and this one has Softmax"),
    ],
)
def test_layers_are_compared(recorded, given, words):
    difference = of_network(recorded, given)
    assert difference is None if words is None else words in difference


@pytest.mark.parametrize(
    "model",
    [None, 3, {"_target_": "os.system", "command": "false"}, {"_target_": "bdl.models.nothing"}, MLP | {"new": 1},
     MLP | {"sizes": {"_target_": "os.system"}}, {"0": "x"}, {"_target_": "mine.Net"}],
)  # fmt: skip
def test_what_is_not_known_is_not_compared(model):
    assert of_network(model, net(nn.Linear(2, 2))) is None


def test_a_stranger_cannot_ask_for_memory():
    assert "Linear" in str(of_network(MLP | {"sizes": [2, 10**6, 10**6, 2]}, TANH))


def test_settings_of_a_layer_are_compared():
    words = str(of_network(architecture(net(nn.ELU(1.0))), net(nn.ELU(2.0))))
    assert "ELU(alpha=1.0, inplace=false) at 0, and this one has ELU(alpha=2.0" in words


class Own(nn.Module):
    def __init__(self, activation, calls: int = 0):
        super().__init__()
        self.layer, self.activation, self.calls = nn.Linear(2, 2), activation, calls


def test_functions_of_a_module_of_ones_own_are_compared():
    """Not its numbers, which it may count itself, and not modules of other types that hold the same layers."""
    words = str(of_network(architecture(Own(torch.tanh)), Own(torch.relu)))
    assert "Own(activation=" in words and "tanh" in words and "relu" in words and "at its top" in words
    assert of_network(architecture(Own(torch.tanh)), Own(torch.tanh, calls=3)) is None
    assert of_network({"": {"type": "mine.Net", "activation": "mine.f"}, **_layer()}, Own(torch.tanh)) is None


def _layer() -> dict:
    return {path: module for path, module in architecture(Own(torch.tanh)).items() if path}


def test_kinds_of_likelihoods_are_compared():
    gaussian, classes = bdl.GaussianNLL(0.1), bdl.CategoricalNLL()
    assert of_likelihood(gaussian, bdl.GaussianNLL(0.1)) is None and of_likelihood(None, classes) is None
    assert of_likelihood(nn.CrossEntropyLoss(), classes) is None and of_likelihood(gaussian, None) is None
    assert "GaussianNLL" in str(of_likelihood(gaussian, bdl.StudentTNLL(4.0)))


def test_settings_of_likelihoods_are_compared_where_the_run_has_some():
    recorded = identity(bdl.GaussianNLL([0.1, 0.2]))
    assert of_likelihood(recorded, bdl.GaussianNLL((0.1, 0.2))) is None
    line = str(of_likelihood(recorded, bdl.GaussianNLL(0.5)))
    assert "sampled with GaussianNLL(std=(0.1, 0.2)), and GaussianNLL(std=0.5) is given" in line
    assert of_likelihood(identity(nn.MSELoss()), bdl.GaussianNLL(0.5)) is None  # the scale that the loss lacks


def test_load_says_so(tmp_path):
    x, y = torch.randn(40, 2), torch.arange(40) % 2
    bdl.sample(TANH, bdl.CategoricalNLL(), TensorBatches(x, y, 10), tmp_path, steps=6, lr=0.01, accelerator="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bdl.Posterior.load(tmp_path, TANH)
        bdl.Posterior.load(tmp_path, bdl.BayesianModule(TANH, bdl.Sampler))
        bdl.Posterior.load(tmp_path, bdl.ChainStack(TANH, 2))
    relu = net(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2))
    with pytest.warns(bdl.BdlWarning, match="Tanh at 1, and this one has ReLU: pass the net") as said:
        bdl.Posterior.load(tmp_path, relu)
    assert [w.filename for w in said] == [__file__]
    with pytest.warns(
        bdl.BdlWarning, match="the run sampled 0 of Sequential, a Sequential, and predictions are those of"
    ):
        bdl.Posterior.load(tmp_path, net(TANH, nn.ReLU()))
    with pytest.warns(bdl.BdlWarning, match="leave likelihood= out"):
        bdl.Posterior.load(tmp_path, TANH, likelihood=bdl.GaussianNLL(0.1))
