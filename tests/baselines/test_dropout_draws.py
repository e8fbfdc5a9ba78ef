"""Tests of `bdl.contrib.baselines.dropout`.

MC dropout: moments of the draws against closed forms, and against torch's own dropout.
"""

import pytest
import torch
from test_swag import drawn, written
from torch import nn

import bdl
from bdl.data import TensorSlices
from bdl.engine.forward import Forward
from bdl.errors import ConfigError

DRAWS, P = 2000, 0.3


def trained_on(folder, net: nn.Module) -> bdl.Posterior:
    tensors = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    return written(folder, net, [{k: v.detach().unsqueeze(0).clone() for k, v in tensors.items()}])


def data(*shape: int) -> TensorSlices:
    x = torch.randn(12, *shape, generator=torch.Generator().manual_seed(3))
    return TensorSlices(x, torch.arange(12) % 2)


def outputs_of_draws(folder, net: nn.Module, loader: TensorSlices) -> torch.Tensor:
    """(DRAWS, n, K) from the drawn weights, in eval mode."""
    tensors = drawn(bdl.MCDropout(draws=DRAWS), trained_on(folder / "sgd", net), loader, DRAWS)
    return Forward(net).evaluate(tensors, loader.x).detach()


def test_the_moments_are_those_of_bernoulli_masks(tmp_path):
    """Mean W h + b and variance Σ_j W_kj² h_j² p / (1 - p). Bounds: 5 standard errors of 24 numbers each."""
    torch.manual_seed(0)
    net, loader = nn.Sequential(nn.Linear(3, 20), nn.Tanh(), nn.Dropout(P), nn.Linear(20, 2)), data(3)
    draws = outputs_of_draws(tmp_path, net, loader)
    with torch.no_grad():
        h, last = net[1](net[0](loader.x)), net[3]
        wanted, variance = last(h), h.square() @ last.weight.square().T * P / (1 - P)
        outputs = torch.stack([net[3](net[2].train()(h)) for _ in range(DRAWS)])  # torch's masks, one for each item
    assert bool(((draws.mean(0) - wanted).abs() < 5 * (variance / DRAWS).sqrt()).all())
    fourth = (outputs - wanted).pow(4).mean(0)  # for the standard error of a variance
    error = ((fourth - variance.square()) / DRAWS).sqrt()
    assert bool(((draws.var(0) - variance).abs() < 5 * error).all())
    assert bool(((outputs.var(0) - variance).abs() < 5 * error).all())


def test_dropouts_and_average_of_probabilities_agree_with_torch(tmp_path):
    """The average over masks of each item, from another stream. Bounds: 5 standard errors of the difference."""
    torch.manual_seed(1)
    net = nn.Sequential(
        nn.Linear(3, 8), nn.ReLU(), nn.Dropout(P), nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 2)
    )
    loader = data(3)
    probs = outputs_of_draws(tmp_path, net, loader).softmax(-1).mean(0)
    with torch.no_grad():
        each = torch.stack([net.train()(loader.x).softmax(-1) for _ in range(DRAWS)])
    assert bool(((probs - each.mean(0)).abs() < 5 * each.std(0) * (2 / DRAWS) ** 0.5).all())


def test_whole_channels_are_dropped_before_a_convolution(tmp_path):
    torch.manual_seed(2)
    net = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Dropout2d(P), nn.Conv2d(6, 2, 3), nn.Flatten())
    loader = data(1, 5, 5)
    mean = outputs_of_draws(tmp_path, net, loader).mean(0)
    with torch.no_grad():
        each = torch.stack([net.train()(loader.x) for _ in range(DRAWS)])
        assert bool(((mean - net.eval()(loader.x)).abs() < 5 * each.std(0) / DRAWS**0.5).all())


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.dropout, self.last = nn.Linear(3, 4), nn.Dropout(P), nn.Linear(4, 2)

    def forward(self, x):
        h = self.dropout(self.first(x))
        return self.last(h) + h[:, :2]  # the mask also reaches the output beside the layer


class Twice(Residual):
    def forward(self, x):
        return self.last(self.dropout(torch.tanh(self.dropout(self.first(x)))))


@pytest.mark.parametrize(
    ("net", "shape", "message"),
    [
        (nn.Linear(3, 2), (3,), "needs a network that was trained with dropout"),
        (nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.0), nn.Linear(4, 2)), (3,), "was trained with dropout"),
        (
            nn.Sequential(nn.Linear(3, 4), nn.Dropout(P), nn.Tanh(), nn.Linear(4, 2)),
            (3,),
            "cannot be written as weights",
        ),
        (Residual(), (3,), "the masks of dropout cannot be written as weights"),
        (Twice(), (3,), "the masks of dropout cannot be written as weights"),
        (nn.Sequential(nn.Dropout(P), nn.Conv2d(1, 2, 5), nn.Flatten()), (1, 5, 5), "cannot be written as weights"),
        (
            nn.Sequential(nn.Conv2d(1, 4, 3), nn.Dropout2d(P), nn.Conv2d(4, 4, 3, groups=2), nn.Flatten()),
            (1, 5, 5),
            "cannot be written as weights",
        ),
    ],
)
def test_networks_whose_masks_are_no_weights_are_refused(tmp_path, net, shape, message):
    with pytest.raises(ConfigError, match=message) as error:
        bdl.MCDropout(draws=2).fit(trained_on(tmp_path / "sgd", net), tmp_path / "mc", train=data(*shape))
    assert "\n" not in str(error.value) and not (tmp_path / "mc").exists()


def test_no_global_random_stream_moves(tmp_path):
    net = nn.Sequential(nn.Linear(3, 4), nn.Dropout(P), nn.Linear(4, 2))
    trained = trained_on(tmp_path / "sgd", net)
    before = torch.get_rng_state()
    bdl.MCDropout(draws=2).fit(trained, tmp_path / "mc", train=data(3))
    assert torch.equal(before, torch.get_rng_state())
