"""Tests of `bdl.lightning.callbacks.start`.

EnsembleStart: the sampler begins at the ensemble, which is kept once, checked, and never trained twice.
"""

from pathlib import Path

import lightning as L
import pytest
import torch
import toys
from lightning.pytorch.callbacks import LambdaCallback
from torch import Tensor

import bdl
from bdl.data import TensorDataModule
from bdl.posterior.store import SampleStore
from bdl.schedules import EveryStep, Keep
from bdl.start import AdamWStart, Trained

START = AdamWStart(lr=0.01, batch_size=10, epochs=4)
WHOLE = 10
KEEP = EveryStep(0, 2)


def data() -> TensorDataModule:
    splits = {"train": toys.tensors(), "test": toys.tensors(seed=2)}
    return TensorDataModule(splits, batch_size=toys.BATCH, chains=2)


def run(folder: Path, steps: int = WHOLE, resume: bool = False, keep: Keep = KEEP) -> list[Tensor]:
    """A run of the toy module. Returns the parameters at which the sampler began."""
    module, begun = toys.module(dynamics=bdl.SGHMC(0.5)), []

    def note(trainer, module) -> None:
        begun.extend(p.detach().clone() for p in module.net.parameters())

    save = bdl.SaveLast(folder / "checkpoints", every=5)
    start, noted = bdl.callbacks.EnsembleStart(START, folder), LambdaCallback(on_train_start=note)
    callbacks = [bdl.CollectSamples(keep, folder), start, save, noted]
    trainer: L.Trainer = toys.trainer(folder, steps, callbacks)
    trainer.fit(module, data(), ckpt_path=save.path if resume else None, weights_only=True)
    return begun


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("samples/*")}


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[Path, list[Tensor]]:
    folder = tmp_path_factory.mktemp("whole")
    return folder, run(folder)


def test_the_sampler_begins_at_the_ensemble_that_is_kept(whole):
    folder, began = whole
    store = SampleStore(folder / "start")
    (record,) = store.records()
    kept = store.read(record)
    assert record.temperature == 0 and record.chains == [0, 1] and record.step == START.epochs
    stack = bdl.ChainStack(toys.plain(), 2)
    names = [name for name, _ in stack.net.named_parameters()]
    assert all(torch.equal(kept[name], value) for name, value in zip(names, began, strict=True))
    START.train(stack, data().train_dataloader(), bdl.CategoricalNLL())
    assert all(torch.equal(a, b) for a, b in zip(stack.parameters(), began, strict=True))


def test_the_ensemble_predicts_and_is_no_sample(whole):
    folder, began = whole
    posterior, ensemble = (bdl.Posterior.load(f, toys.plain()) for f in (folder, folder / "start"))
    assert (posterior.samples, ensemble.samples) == (10, 2)
    x = toys.tensors(seed=2)[0]
    stack = bdl.ChainStack(toys.plain(), 2)
    with torch.no_grad():
        for parameter, value in zip(stack.parameters(), began, strict=True):
            parameter.copy_(value)
        expected = stack.broadcast(x).softmax(-1).mean(0)
    prediction = ensemble.predict(x)
    assert isinstance(prediction, bdl.Prediction)
    torch.testing.assert_close(prediction.probs, expected)


def test_a_resumed_run_is_the_whole_run_and_trains_nothing(whole, tmp_path, monkeypatch):
    run(tmp_path, steps=6)
    monkeypatch.setattr(AdamWStart, "train", lambda *_, **__: pytest.fail("trained twice"))
    run(tmp_path, resume=True)
    assert files(tmp_path) == files(whole[0])


def test_a_run_without_a_checkpoint_begins_at_ensemble_on_disk(whole, tmp_path, monkeypatch):
    run(tmp_path, steps=2)
    for path in [*(tmp_path / "samples").iterdir(), *(tmp_path / "checkpoints").iterdir()]:
        path.unlink()
    monkeypatch.setattr(AdamWStart, "train", lambda *_, **__: pytest.fail("trained twice"))
    run(tmp_path)
    assert files(tmp_path) == files(whole[0])


def test_a_refused_run_leaves_no_ensemble(tmp_path):
    with pytest.raises(bdl.ConfigError, match="keeps no sample"):
        run(tmp_path, keep=EveryStep(100, 1))
    assert not (tmp_path / "start").exists()


def test_an_altered_ensemble_is_refused(tmp_path):
    run(tmp_path, steps=2)
    (path,) = (tmp_path / "start" / "samples").glob("*.safetensors")
    path.write_bytes(path.read_bytes()[:-4] + b"\0\0\0\1")
    with pytest.raises(bdl.StoreError, match="was altered"):
        run(tmp_path, resume=True)


def test_a_validation_part_stops_the_training(tmp_path, monkeypatch):
    given, train = [], AdamWStart.train

    def recorded(start: AdamWStart, stack, batches, loss, val, **options) -> Trained:
        given.append(val)
        return train(start, stack, batches, loss, val, **options)

    monkeypatch.setattr(AdamWStart, "train", recorded)
    splits = {"train": toys.tensors(), "test": toys.tensors(seed=2), "val": toys.tensors(seed=3)}
    bdl.callbacks.EnsembleStart(START, tmp_path, report=lambda trained: None).prepare(
        toys.module(), TensorDataModule(splits, chains=2)
    )
    assert torch.equal(given[0].x, splits["val"][0])


@pytest.mark.parametrize(
    "module, datamodule, words",
    [
        (lambda: toys.module(chains=None), data, "a BayesianModule of a ChainStack"),
        (toys.module, lambda: Foreign(), "start needs the loaders of bdl.data, got DataLoader"),
    ],
)
def test_what_it_cannot_train_is_refused(tmp_path, module, datamodule, words):
    with pytest.raises(bdl.ConfigError, match=words):
        bdl.callbacks.EnsembleStart(START, tmp_path).prepare(module(), datamodule())


class Foreign(L.LightningDataModule):
    def train_dataloader(self):
        return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*toys.tensors()), batch_size=10)

    def val_dataloader(self):
        return []
