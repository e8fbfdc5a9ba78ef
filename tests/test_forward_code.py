"""Tests of `bdl.forward_code`: networks of the same shapes that compute something else."""

import functools
import json
import math

import lightning as L
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bdl
from bdl.errors import BdlWarning
from bdl.forward_code import described, difference

SCALE = 1.0


class Own(nn.Module):
    def __init__(self, activation=torch.tanh, scale=1.0, heads=1, flag=False, several=(torch.tanh,), mask=None):
        super().__init__()
        self.layer, self.activation, self.scale, self.heads = nn.Linear(2, 2), activation, scale, heads
        self.flag, self.several, self.mask, self.calls = flag, list(several), mask, 0
        self.strange, self.data = (torch.Tensor.tanh, "word".upper, math.nan), TensorDataset(torch.zeros(3))

    def forward(self, x):
        """Adds one to `calls`."""
        self.calls += 1
        return self.top(self.activation(self.layer(x)))

    def top(self, x):
        return x


def named_own(**methods) -> type:
    return type("Own", (Own,), {"__qualname__": "Own", "__module__": __name__, **methods})


def documented(self, x):
    """Other words."""

    self.calls += 1
    return self.top(self.activation(self.layer(x)))


def with_global(x):
    return x * SCALE


OTHERS = {
    "a function": (Own(), Own(torch.relu), "at its top activation was tanh, and is relu"),
    "a lambda": (Own(lambda x: x), Own(lambda x: 2 * x), "activation is another one"),
    "a partial": (
        Own(functools.partial(F.leaky_relu, negative_slope=0.1)),
        Own(functools.partial(F.leaky_relu, negative_slope=0.3)),
        "activation is another one",
    ),
    "a number": (Own(), Own(scale=3.0), "scale was 1.0, and is 3.0"),
    "heads": (Own(), Own(heads=2), "heads was 1, and is 2"),
    "a flag": (Own(), Own(flag=True), "flag was False, and is True"),
    "several": (Own(), Own(several=(torch.relu,)), r"several was \['torch.*tanh'\], and is"),
    "a tensor": (Own(mask=torch.ones(2)), Own(mask=torch.zeros(2)), r"mask was \[1.0, 1.0\], and is \[0.0, 0.0\]"),
    "a large tensor": (Own(mask=torch.ones(20_000)), Own(mask=torch.zeros(20_000)), "mask was"),
    "forward": (Own(), named_own(forward=lambda self, x: self.layer(x))(), "the code of Own is another one"),
    "a method": (Own(), named_own(top=lambda self, x: x + 1)(), "the code of Own is another one"),
    "a layer": (nn.Sequential(nn.Tanh()), nn.Sequential(nn.ReLU()), "at 0 was Tanh, and is ReLU"),
    "no layer": (nn.Sequential(nn.Tanh()), nn.Sequential(nn.Tanh(), nn.Tanh()), "at 1 was no layer, and is Tanh"),
    "a setting": (nn.Sequential(nn.GELU()), nn.Sequential(nn.GELU("tanh")), "approximate was none, and is tanh"),
}
SAME = {
    "the same": (Own(), Own()),
    "a docstring": (Own(), named_own(forward=documented)()),
    "another method": (Own(), named_own(training_step=lambda self, x: x)()),
    "the same lambda": tuple(Own(lambda x: x + 1) for _ in range(2)),
}


def recorded(net):
    return json.loads(json.dumps(described(net)))


@pytest.mark.parametrize("name", OTHERS)
def test_another_network_is_told_where_it_differs(name):
    one, other, words = OTHERS[name]
    found = difference(recorded(one), other)
    assert found is not None
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(f"at {found[0] or 'its top'} {found[1]}")


@pytest.mark.parametrize("name", SAME)
def test_the_same_network_is_not(name):
    one, other = SAME[name]
    other(torch.zeros(1, 2))  # what it counts itself is no setting
    assert difference(recorded(one), other) is None


def test_what_a_function_names_outside_of_it_counts(monkeypatch):
    before = recorded(Own(with_global))
    assert difference(before, Own(with_global)) is None
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    assert difference(before, Own(with_global)) == ("", "activation is another one")


def test_code_of_another_python_and_strange_records_are_not_compared():
    one, other, _ = OTHERS["forward"]
    assert difference(recorded(one) | {"python": "pypy-9"}, other) is None
    for strange in (None, 3, {}, {"modules": 3}, {"modules": {"": 3}}, {"modules": {"": {"settings": 3}}}):
        assert difference(strange, other) is None


X = torch.randn(40, 2)
DATA = DataLoader(TensorDataset(X, (X[:, 0] > 0).long()), 10)


def by_call(net, folder):
    bdl.sample(net, None, DATA, folder, steps=4, lr=0.01, accelerator="cpu")


def by_trainer(net, folder):
    build = functools.partial(bdl.Sampler, dynamics=bdl.SGHMC(), num_data=40, lr=0.01)
    L.Trainer(
        max_steps=4, max_epochs=-1, accelerator="cpu", logger=False, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False, default_root_dir=folder,
        callbacks=[bdl.CollectSamples(bdl.schedules.EveryStep(1, 1))],
    ).fit(bdl.BayesianModule(net, build), DATA)  # fmt: skip


def by_loop(net, folder):
    sampler = bdl.Sampler(net.named_parameters(), bdl.SGHMC(), num_data=40, lr=0.01)
    x, y = DATA.dataset.tensors  # type: ignore[attr-defined]

    def closure():
        sampler.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        return loss

    sampler.step(closure, items=40)
    bdl.SampleStore(folder).append(sampler, net, loss=bdl.CategoricalNLL())


@pytest.mark.filterwarnings("error::bdl.errors.BdlWarning")
@pytest.mark.parametrize("sampled", [by_call, by_trainer, by_loop])
def test_every_door_records_its_network_and_load_compares(tmp_path, sampled):
    sampled(Own(scale=1.0), tmp_path)
    assert bdl.Posterior.load(tmp_path, Own(scale=1.0)).predict(X).probs.shape == (40, 2)
    with pytest.raises(BdlWarning, match="sampled another network: at its top scale was 1.0, and is 2.0; pass the net"):
        bdl.Posterior.load(tmp_path, Own(scale=2.0))


def test_runs_are_merged_whatever_is_recorded_of_their_network(tmp_path):
    """A run of an older bdl has no such record, and a module may have counted."""
    net = Own()
    for number in range(2):
        by_loop(net, tmp_path / str(number))
        net.flag = True
    assert bdl.Posterior.load([tmp_path / "0", tmp_path / "1"], Own()).samples == 2
