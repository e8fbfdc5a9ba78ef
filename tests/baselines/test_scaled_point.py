"""Tests of `bdl.contrib.baselines.last_layer`.

The temperature-scaled point estimate: probabilities of scaled logits, with the temperature that a grid finds.
"""

import pytest
import torch
import toys
from test_swag import written
from torch import nn

import bdl
from bdl.data import TensorSlices
from bdl.errors import ConfigError
from bdl.posterior.store import SampleStore


def two_networks() -> tuple[nn.Module, list[dict[str, torch.Tensor]]]:
    """An MLP, and tensors of two networks that are far too sure."""
    net, random = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)), torch.Generator().manual_seed(5)
    return net, [{name: 4 * torch.randn(2, *p.shape, generator=random) for name, p in net.named_parameters()}]


def test_each_network_predicts_with_its_own_best_temperature(tmp_path):
    net, states = two_networks()
    trained, (x, y) = written(tmp_path / "sgd", net, states), toys.tensors(200)
    posterior = bdl.ScaledPoint().fit(trained, tmp_path / "scaled", val=TensorSlices(x, y, batch_size=60))
    temperatures = torch.linspace(-2, 4, 6001).exp()
    for before, after in zip(trained.stream(), posterior.stream(), strict=True):
        logits, scaled = (torch.func.functional_call(net, s.tensors, (x,)).detach() for s in (before, after))
        each = (logits.double() / temperatures.view(-1, 1, 1)).log_softmax(-1)
        best = temperatures[each[:, torch.arange(200), y].mean(1).argmax()]
        assert best > 1.5  # the networks were too sure
        torch.testing.assert_close(scaled, logits / best, rtol=2e-3, atol=1e-3)  # the grid's step is .001
    assert posterior.records[0].temperature == 0 and posterior.samples == 2


def test_validation_items_last_layer_and_probabilities_needed(tmp_path):
    net, states = two_networks()
    trained, (x, y) = written(tmp_path / "sgd", net, states), toys.tensors()
    with pytest.raises(ConfigError, match="ScaledPoint needs val data: hold some items out, data.val_fraction=0.1"):
        bdl.ScaledPoint().fit(trained, tmp_path / "scaled", train=TensorSlices(x, y))
    ends = nn.Sequential(net, nn.Softplus())
    named = [{f"0.{name}": value for name, value in states[0].items()}]
    with pytest.raises(ConfigError, match="ends with a Linear layer"):
        bdl.ScaledPoint().fit(written(tmp_path / "b", ends, named), tmp_path / "scaled", val=TensorSlices(x, y))
    SampleStore(tmp_path / "sgd").write_target({"num_data": 40, "loss": {"type": "bdl.GaussianNLL", "std": 1.0}})
    numbers = bdl.Posterior.load(tmp_path / "sgd", net)
    with pytest.raises(ConfigError, match="scales probabilities, and this run predicts numbers"):
        bdl.ScaledPoint().fit(numbers, tmp_path / "scaled", val=TensorSlices(x, torch.zeros(40, 3)))
    assert not (tmp_path / "scaled").exists()
