"""Tests of `bdl.posterior.seen_inputs` and `bdl.lightning.training_inputs`: inputs far from all training items."""

import json
import warnings
from typing import Any

import lightning as L
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset, random_split

import bdl
from bdl.posterior.seen_inputs import _Far, read_inputs, recorded_inputs, tell_far, write_inputs
from bdl.posterior.store import SampleStore
from bdl.schedules import EveryStep

N = 200
CALL: dict[str, Any] = {"steps": 6, "lr": 0.01, "accelerator": "cpu", "keep": EveryStep(2, 2)}


def numbers(n: int = N, features: int = 3) -> torch.Tensor:
    return torch.randn(n, features, generator=torch.Generator().manual_seed(n)).float()


def labels(n: int = N) -> torch.Tensor:
    return torch.arange(n) % 2


class Items(Dataset):
    """Items that lie in no tensor that bdl knows."""

    def __init__(self, x: torch.Tensor):
        self.x = x

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], int(i) % 2


def told(predict) -> list[str]:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        predict()
    return [str(w.message) for w in said if "far from all training items" in str(w.message)]


LOADERS = {
    "tensors": lambda x: DataLoader(TensorDataset(x, labels()), 20, shuffle=True),
    "in order": lambda x: DataLoader(TensorDataset(x, labels()), 20),
    "part": lambda x: DataLoader(random_split(TensorDataset(x, labels()), [N - 20, 20])[0], 20, shuffle=True),
    "items": lambda x: DataLoader(Items(x), 20, shuffle=True),
    "bdl": lambda x: bdl.data.TensorBatches(x, labels(), 20),
}


@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.parametrize("chains", [None, 2])
def test_far_inputs_are_told_and_honest_ones_are_not(tmp_path, kind, chains):
    x = numbers()
    loader = LOADERS[kind](x)
    if kind == "bdl" and chains:
        loader = bdl.data.TensorBatches(x, labels(), 20, chains=chains)
    posterior = bdl.sample(nn.Linear(3, 2), nn.CrossEntropyLoss(), loader, tmp_path, chains=chains, **CALL)
    test = numbers(50)
    assert told(lambda: posterior.predict(test)) == []
    test[3, 1] = 1e30
    (line,) = told(lambda: posterior.predict(test))
    assert "1 of 50 items (2 %)" in line and "1e+30 in feature 1 of item 3" in line and "as in training" in line
    (line,) = told(lambda: posterior.predict(1000 * numbers(50)))
    assert "of 50 items" in line


def test_warning_is_at_the_caller(tmp_path):
    posterior = bdl.sample(nn.Linear(3, 2), nn.CrossEntropyLoss(), LOADERS["tensors"](numbers()), tmp_path, **CALL)
    with pytest.warns(bdl.BdlWarning, match="far from all training items") as said:
        posterior.predict(1e6 * numbers(5))
    assert said[0].filename == __file__


def test_images_in_bytes_are_far_from_shares(tmp_path):
    x = torch.rand(N, 1, 4, 4)
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    posterior = bdl.sample(net, nn.CrossEntropyLoss(), LOADERS["items"](x), tmp_path, **CALL)
    assert told(lambda: posterior.predict(torch.rand(30, 1, 4, 4))) == []
    (line,) = told(lambda: posterior.predict(255 * torch.rand(30, 1, 4, 4)))
    assert "30 of 30 items (100 %)" in line


def test_constant_features_alarm_far_beyond_the_scale_of_all(tmp_path):
    def lines(whole: bool, x: torch.Tensor) -> list[str]:
        store = SampleStore(tmp_path / str(whole))
        train = torch.stack([torch.full((N,), 0.1), torch.arange(N) / N], 1)
        write_inputs(store.manifest(0), recorded_inputs(train, whole))
        return told(lambda: tell_far([store], [(x, None)]))

    near = torch.tensor([[0.1 + 1e-8, 0.5]])
    assert lines(True, near) == [] == lines(False, near)
    assert lines(True, torch.tensor([[0.2, 0.5]])) == []  # as a rare pixel
    assert len(lines(True, torch.tensor([[10.0, 0.5]]))) == 1
    assert lines(False, torch.tensor([[10.0, 0.5]])) == []  # a rare column is constant in a part of the items


def test_heavy_tails_and_rare_columns_are_honest():
    g = torch.Generator().manual_seed(3)
    x = torch.cat([torch.randn(4000, 4, generator=g).exp(), (torch.rand(4000, 4, generator=g) < 0.01).float()], 1)
    far = _Far(recorded_inputs(x[:2000], True)["0"])
    far.see(x[2000:])
    for odd in (x[:0], x[:, :3], torch.tensor(1e9)):
        far.see(odd)
    assert far.items == 0


def test_tokens_and_few_numbers_say_nothing():
    assert recorded_inputs({"ids": torch.zeros(50, 3, dtype=torch.long)}, True) == {}
    assert recorded_inputs(torch.zeros(2, 3), True) == {}
    assert recorded_inputs(torch.full((50, 3), torch.nan), True) == {}
    assert recorded_inputs(torch.zeros(50, 1001), True)["0"]["features"] is False


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 2)

    def forward(self, a, b):
        return self.layer(torch.cat([a, b], 1))


def test_several_inputs_are_told_by_name(tmp_path):
    batches: Any = [{"a": numbers(20, 3), "b": numbers(20, 2), "labels": labels(20)}] * 4
    data = DataLoader(batches, batch_size=None)
    posterior = bdl.sample(Two(), nn.CrossEntropyLoss(), data, tmp_path, num_data=80, **CALL)
    assert told(lambda: posterior.predict({"a": numbers(9, 3), "b": 1e9 * numbers(9, 2)})) == []  # of an unknown order

    pairs = DataLoader(TensorDataset(numbers(N, 3), numbers(N, 2), labels()), 20)
    posterior = bdl.sample(Two(), nn.CrossEntropyLoss(), pairs, tmp_path / "pairs", **CALL)
    (line,) = told(lambda: posterior.predict((numbers(9, 3), 1e9 * numbers(9, 2))))
    assert "input 1: 9 of 9 items" in line


class Plain(L.LightningModule):
    def __init__(self, scale: float, folder):
        super().__init__()
        self.net, self.scale = nn.Linear(3, 2), scale

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.cross_entropy(self.net(x * self.scale), y)

    def configure_optimizers(self):
        return bdl.Sampler(self.net.named_parameters(), bdl.SGLD(), num_data=N, lr=0.001)


@pytest.mark.parametrize("scale, lines", [(1.0, 1), (1e-3, 0)])
def test_module_of_the_user_that_scales_its_inputs_is_not_judged(tmp_path, scale, lines):
    trainer = L.Trainer(
        max_steps=6, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        callbacks=[bdl.CollectSamples(EveryStep(2, 2), tmp_path)],
    )  # fmt: skip
    module = Plain(scale, tmp_path)
    trainer.fit(module, LOADERS["tensors"](numbers()))
    posterior = bdl.Posterior.load(tmp_path, module, likelihood=bdl.likelihoods.CategoricalNLL())
    assert len(told(lambda: posterior.predict(1e6 * numbers(30)))) == lines


def test_resumed_run_keeps_its_record_and_an_older_run_predicts(tmp_path):
    def call(name: str, steps: int):
        batches = bdl.data.TensorBatches(numbers(), labels(), 20)
        more = {**CALL, "steps": steps, "keep": EveryStep(1, 1), "start": "given", "checkpoint_every": 1}
        return bdl.sample(nn.Linear(3, 2), nn.CrossEntropyLoss(), batches, tmp_path / name, **more)

    torch.manual_seed(0)
    call("whole", 6)
    torch.manual_seed(0)
    call("stopped", 3)
    posterior = call("stopped", 6)
    files = [tmp_path / name / "samples" / "inputs-0.json" for name in ("whole", "stopped")]
    assert files[0].read_bytes() == files[1].read_bytes() and json.loads(files[0].read_text())["0"]["whole"]
    assert len(told(lambda: posterior.predict(1e6 * numbers(5)))) == 1
    manifest = tmp_path / "stopped" / "manifest-0.jsonl"
    assert sum("inputs-0.json" in line for line in manifest.read_text().splitlines()) == 1
    SampleStore(tmp_path / "odd").manifest(0).write("samples/inputs-0.json", "inputs", b'{"0": {"mean": 3}}')
    with pytest.raises(bdl.StoreError, match="inputs-0.json is damaged .*: restore it"):
        read_inputs(SampleStore(tmp_path / "odd"))
    empty = SampleStore(tmp_path / "none")
    assert read_inputs(empty) == {} and told(lambda: tell_far([empty], [(1e9 * numbers(5), None)])) == []
