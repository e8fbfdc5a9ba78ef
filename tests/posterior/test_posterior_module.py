"""Tests of `bdl.posterior.export`.

The average as one module: equal to `predict`, saved, loaded and exported.
"""

import pytest
import torch
import toys
from by_hand import X, probabilities
from torch import nn

import bdl
from bdl.errors import ConfigError
from bdl.posterior.export import PosteriorModule, expected


@pytest.mark.parametrize("method", ["auto", "vmap", "loop"])
@pytest.mark.parametrize("kind", ["uniform", "step_size"])
def test_it_predicts_what_the_posterior_predicts(posterior, method, kind):
    module = posterior.as_module(kind, method=method)
    torch.testing.assert_close(module(X), posterior.predict(X, kind).probs)


def test_it_holds_every_sample_and_no_path(run, posterior, tmp_path):
    module = posterior.as_module()
    assert {k: v.shape[0] for k, v in module.net.named_parameters()} == dict.fromkeys(
        (k for k, _ in toys.plain().named_parameters()), posterior.samples
    )
    torch.save(module, tmp_path / "module.pt")
    assert str(run).encode() not in (tmp_path / "module.pt").read_bytes()
    loaded = torch.load(tmp_path / "module.pt", weights_only=False)
    assert torch.equal(loaded(X), module(X))
    other = posterior.as_module()
    other.load_state_dict({k: v * 0 for k, v in module.state_dict().items()})
    assert not torch.equal(other(X), module(X))
    other.load_state_dict(module.state_dict())
    assert torch.equal(other(X), module(X))


def test_thinned_samples_come_from_all_chains(run, posterior):
    """One network of each of two chains: the first and the last by chain and step."""
    p = probabilities(run)  # (draws, chains, n, K)
    torch.testing.assert_close(posterior.as_module(samples=2)(X), (p[0, 0] + p[-1, 1]) / 2)


@pytest.mark.parametrize("samples", [0, 10_000])
def test_an_impossible_number_of_samples_is_refused(posterior, samples):
    with pytest.raises(ConfigError, match="samples must be between 1 and"):
        posterior.as_module(samples=samples)


@pytest.mark.parametrize("method", ["auto", "vmap", "loop"])
def test_it_is_exported_for_any_number_of_items(posterior, tmp_path, method):
    module = posterior.as_module(samples=3, method=method)
    exported = torch.export.export(module, (X,), dynamic_shapes=((({0: torch.export.Dim.DYNAMIC}),),))
    torch.export.save(exported, tmp_path / "module.pt2")
    loaded = torch.export.load(tmp_path / "module.pt2").module()
    for n in (2, 7):
        torch.testing.assert_close(loaded(X[:n]), module(X[:n]))


def test_a_network_with_batchnorm_convolutions_and_two_inputs():
    """Against one network at a time."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten())
            self.head = nn.Linear(2 * 4 * 4 + 3, 4)

        def forward(self, image, features):
            return self.head(torch.cat([self.body(image), features], 1))

    nets = [Net().eval() for _ in range(3)]
    stacked = {k: torch.stack([dict(n.state_dict())[k] for n in nets]) for k in nets[0].state_dict()}
    inputs, weights = (torch.randn(5, 1, 6, 6), torch.randn(5, 3)), torch.tensor([1.0, 2.0, 1.0])
    average = sum(w * net(*inputs).softmax(-1) for w, net in zip(weights, nets, strict=True)) / 4
    for method in ("loop", "vmap"):
        module = PosteriorModule(nets[0], stacked, weights, bdl.CategoricalNLL(), method)
        torch.testing.assert_close(module(*inputs), average)
        torch.testing.assert_close(module(image=inputs[0], features=inputs[1]), average)
        exported = torch.export.export(module, inputs)
        torch.testing.assert_close(exported.module()(*inputs), average)


def test_means_by_likelihood():
    outputs = torch.randn(3, 5, 2)
    assert torch.equal(expected(bdl.BernoulliNLL(), outputs), outputs.sigmoid())
    assert torch.equal(expected(bdl.HeteroscedasticNLL(), outputs), outputs[..., :1])
    torch.testing.assert_close(
        expected(bdl.CategoricalNLL(class_axis=-3), torch.randn(3, 5, 4, 2, 2)).sum(-1), torch.ones(3, 5, 2, 2)
    )


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens):
        return self.head(self.layer(self.embedding(tokens)).mean(1))


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))


def convolutions() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3))


def averaged(make, method="auto") -> PosteriorModule:
    nets = [make().eval() for _ in range(2)]
    stacked = {k: torch.stack([net.state_dict()[k] for net in nets]) for k in nets[0].state_dict()}
    return PosteriorModule(nets[0], stacked, torch.tensor([1.0, 3.0]), bdl.CategoricalNLL(), method)


@pytest.mark.parametrize(
    ("make", "method", "x"),
    [
        (perceptron, "auto", torch.randn(5, 5)),
        pytest.param(convolutions, "vmap", torch.randn(5, 1, 6, 6), marks=pytest.mark.slow),
        pytest.param(Encoder, "loop", torch.randint(0, 11, (5, 7)), marks=pytest.mark.slow),
    ],
    ids=["perceptron", "vmap of convolutions", "transformer"],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_onnx_computes_the_average_for_any_number_of_items(make, method, x, tmp_path):
    from onnx.reference import ReferenceEvaluator

    module = averaged(make, method)
    module.to_onnx(tmp_path / "module.onnx", x)
    written = ReferenceEvaluator(str(tmp_path / "module.onnx"))
    for n in (2, 4):
        (means,) = written.run(None, {written.input_names[0]: x[:n].numpy()})
        torch.testing.assert_close(torch.from_numpy(means), module(x[:n]))
    assert module.method == method


def test_onnx_without_its_packages_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr("bdl.posterior.export.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"ONNX needs onnx and onnxscript.*pip install 'bdl\[onnx\]'"):
        averaged(perceptron).to_onnx(tmp_path / "module.onnx", torch.randn(5, 5))
    assert not (tmp_path / "module.onnx").exists()


def test_onnx_without_an_operator_is_one_line_that_names_it(tmp_path):
    class Bessel(nn.Linear):
        def forward(self, x):
            return super().forward(torch.special.bessel_j0(x))

    with pytest.raises(ConfigError, match=r"^[^\n]*bessel_j0[^\n]*use torch\.export$"):
        averaged(lambda: Bessel(5, 3)).to_onnx(tmp_path / "module.onnx", torch.randn(5, 5))
    assert not (tmp_path / "module.onnx").exists()


def test_it_stays_in_evaluation_mode():
    """Also as a part of a module that trains."""
    module = averaged(lambda: nn.Sequential(nn.Dropout(0.5), perceptron()))
    x = torch.randn(5, 5)
    before = module(x)
    nn.ModuleList([module]).train()
    assert torch.equal(module(x), before) and not any(part.training for part in module.modules())
