"""Tests of `bdl.run.in_python`, `.begun` and `bdl.data.fingerprint`: one call samples a network and goes on."""

import functools
import html
import io
import logging
import re
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
from toys import K, N, batches, tensors

import bdl
from bdl.data.fingerprint import fingerprint
from bdl.errors import ConfigError
from bdl.schedules import EveryStep, Ramp

X, Y = tensors()


def mlp(activation: nn.Module | None = None) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), activation or nn.Tanh(), nn.Linear(4, K))


def loader(x: torch.Tensor = X, y: torch.Tensor = Y, size: int = 10) -> DataLoader:
    return DataLoader(TensorDataset(x, y), size)


def ramp(end: float) -> bdl.Schedule:
    return bdl.Schedule(lr=Ramp(end, 10, 0.01))


@pytest.fixture
def call(tmp_path):
    """`bdl.sample` into one folder, where a finished run lies."""
    made = functools.partial(
        bdl.sample, keep=EveryStep(1, 1), accelerator="cpu", run_dir=tmp_path, monitor_every=2, chains=2
    )
    arguments = dict(net=mlp(), loss=None, loader=loader(), steps=4, lr=0.01, schedule=ramp(0.02))
    made(**arguments)
    return lambda **changed: made(**{**arguments, **changed})


OTHERS = {
    "an activation": (dict(net=mlp(nn.ReLU())), "model.1.type"),
    "labels": (dict(loader=loader(y=Y.flip(0))), "data.sha256"),
    "inputs": (dict(loader=loader(X + 1)), "data.sha256"),
    "a loss": (dict(loss=nn.CrossEntropyLoss(label_smoothing=0.1)), "loss.type"),
    "a schedule": (dict(schedule=ramp(0.03)), "schedule.lr.end"),
    "no schedule": (dict(schedule=None), "schedule"),
    "a batch size": (dict(loader=loader(size=5)), "batch_size"),
    "a prior": (dict(prior=bdl.Gaussian(2.0)), "prior"),
    "lr": (dict(lr=0.02), "lr was 0.01 there, and is 0.02 now; give another run_dir"),
    "friction": (dict(dynamics=bdl.SGHMC(0.5)), "dynamics.friction was 0.1 there, and is 0.5 now"),
}


def test_what_lightning_says_of_its_devices_is_not_shown_and_its_loggers_stay_as_they_were(tmp_path, capsys):
    said, loggers = io.StringIO(), [logging.getLogger(f"lightning.{name}") for name in ("pytorch", "fabric")]
    handler = logging.StreamHandler(said)
    for each in loggers:
        each.addHandler(handler)
        each.setLevel(logging.INFO)
    bdl.sample(mlp(), None, loader(), tmp_path, steps=4, lr=0.01, accelerator="cpu", keep=EveryStep(1, 1))
    for each in loggers:
        each.removeHandler(handler)
    assert said.getvalue() == "" and "available" not in "".join(capsys.readouterr())
    assert [each.level for each in loggers] == [logging.INFO] * 2


@pytest.mark.parametrize(("name", "steps"), [*((name, 4) for name in OTHERS), ("labels", 6)])
def test_a_folder_of_another_run_is_refused_and_stays_as_it_is(call, tmp_path, name, steps):
    """Of a run that has ended, and of one that would go on; a hash of the Sampler's arguments alone saw the last."""
    changed, key = OTHERS[name]
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match=f"holds another run: {key}") as refused:
        call(**{**changed, "steps": steps})
    assert re.search(" was .* there, and is .* now", str(refused.value))
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_another_function_of_the_same_name_is_another_loss(tmp_path):
    """Every lambda is called <lambda>."""
    common = dict(loader=loader(), run_dir=tmp_path, steps=2, lr=0.01, keep=EveryStep(0, 1), accelerator="cpu")
    for _ in range(2):
        bdl.sample(mlp(), lambda outputs, y: nn.functional.cross_entropy(outputs, y), **common)
    with pytest.raises(ConfigError, match="holds another run: code of the loss.checksum was"):
        bdl.sample(mlp(), lambda outputs, y: 2 * nn.functional.cross_entropy(outputs, y), **common)


def test_byte_code_of_another_python_is_not_compared(tmp_path, monkeypatch):
    """A second lambda stands for the first one as another Python compiles it. Settings are compared as ever."""
    common = dict(loader=loader(), run_dir=tmp_path, steps=4, keep=EveryStep(0, 1), accelerator="cpu")
    bdl.sample(mlp(), lambda outputs, y: nn.functional.cross_entropy(outputs, y), lr=0.01, **common)
    here, loss = sys.implementation.cache_tag, lambda outputs, y: nn.functional.cross_entropy(outputs, y) * 1
    monkeypatch.setattr(sys.implementation, "cache_tag", "python-4")
    with pytest.warns(bdl.BdlWarning, match=f"{here} compiled the loss of {tmp_path}, and python-4 that of this call"):
        assert bdl.sample(mlp(), loss, lr=0.01, **common | {"steps": 6}).samples == 6
    with pytest.raises(ConfigError, match="holds another run: lr was 0.01"):
        bdl.sample(mlp(), loss, lr=0.02, **common)


def test_the_same_call_and_one_of_more_steps_go_on(call):
    assert call().samples == 6
    assert call(net=mlp(), loader=loader(X.clone(), Y.clone()), steps=6, schedule=ramp(0.02)).samples == 10


def test_runs_of_other_data_are_not_one_posterior(tmp_path):
    for name, y in (("a", Y), ("b", Y.flip(0))):
        bdl.sample(mlp(), None, loader(y=y), tmp_path / name, steps=3, lr=0.01, accelerator="cpu", keep=EveryStep(1, 1))
    with pytest.raises(bdl.StoreError, match="data.sha256"):
        bdl.Posterior.load([tmp_path / "a", tmp_path / "b"], mlp())


class Noisy(Dataset):
    """Items with an augmentation that draws from the global random numbers, or from a generator of its own."""

    def __init__(self, shift: float = 0.0, own: bool = False):
        self.shift, self.random = shift, np.random.default_rng() if own else np.random

    def __len__(self) -> int:
        return 100

    def __getitem__(self, row: int):
        return {"x": torch.full((2,), row + self.shift) + torch.rand(2), "y": int(self.random.normal() > 0)}


def test_items_that_are_not_in_memory_count_by_some_of_them():
    """The streams of random numbers stay. Items of a generator that nobody can reset count by their shapes alone."""
    torch.manual_seed(3)
    before = torch.get_rng_state()
    one, again, other = (fingerprint(DataLoader(Noisy(shift))) for shift in (0.0, 0.0, 1.0))
    assert torch.equal(torch.get_rng_state(), before)
    assert one == again and one["sha256"] != other["sha256"] and one["items"] == 100
    assert fingerprint(DataLoader(Noisy(own=True)))["sha256"] is None


def test_augmentations_and_transforms_of_a_loader_count():
    assert fingerprint(batches()) == fingerprint(batches(seed=3))  # the order of the batches does not
    assert fingerprint(batches(transform=torch.tanh)) != fingerprint(batches(transform=torch.relu))
    assert fingerprint(batches())["items"] == N


@pytest.mark.filterwarnings("ignore::bdl.errors.VerdictWarning")
def test_the_report_names_next_steps_that_run(tmp_path, monkeypatch):
    """What its page prints is pasted into Python: predict, score, save, and a posterior of all items."""
    monkeypatch.chdir(tmp_path)
    arguments = dict(steps=40, lr=0.01, keep=EveryStep(0, 1), accelerator="cpu", chains=2, test=loader())
    known = dict(bdl=bdl, net=mlp(), x=X, loss=None, loader=loader(), loader_of_all_items=loader(), arguments=arguments)
    bdl.sample(known["net"], None, loader(), "run", **arguments)
    page = (tmp_path / "run" / "report.html").read_text()
    steps = [html.unescape(code) for code in re.findall('<pre class="command">(.*?)</pre>', page, re.DOTALL)]
    assert re.match(r"steps=\d+  # of bdl.sample", steps[0]) and len(steps) == 5
    for code in steps:
        exec(code, known)
    assert len(known["prediction"].probs) == N
    assert bdl.Posterior.load("small", known["net"]).samples == 20
    assert (tmp_path / "run-all" / "report.html").exists()
