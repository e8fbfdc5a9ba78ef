"""Tests of `bdl.contrib.landscape.callback`: measurements along a training, which they leave as it is."""

import functools

import lightning as L
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bdl

BUILD = functools.partial(bdl.Sampler, dynamics=bdl.SGLD(), num_data=40, lr=0.1)
SETTINGS = {"steps": 20, "chains": 2, "localization": 100.0}


class Plain(L.LightningModule):
    """A module that knows nothing of bdl, with dropout and a loader that shuffles by the global random stream."""

    def __init__(self, with_loss: bool = True):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Dropout(0.3), nn.Linear(4, 2))
        if with_loss:
            self.loss = nn.CrossEntropyLoss()

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def data() -> TensorDataset:
    draw = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(40, 3, generator=draw), torch.randint(2, (40,), generator=draw))


def trained(folder, *callbacks, module=None, logger=False) -> L.LightningModule:
    torch.manual_seed(0)
    module = module or Plain()
    trainer = L.Trainer(
        max_steps=12, max_epochs=-1, accelerator="cpu", devices=1, callbacks=list(callbacks), logger=logger,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder, enable_checkpointing=False,
        log_every_n_steps=1,
    )  # fmt: skip
    trainer.fit(module, DataLoader(data(), 10, shuffle=True))
    return module


def test_a_training_is_measured_and_left_as_it_is(tmp_path):
    """At every fifth step, in logs and attributes; the weights at the end are those without it, to the bit."""
    loader = DataLoader(data(), 20, shuffle=True)
    callback = bdl.LearningCoefficient(every=5, loader=loader, **SETTINGS)
    logger = CSVLogger(tmp_path, name="", version="")
    measured = trained(tmp_path, callback, logger=logger)
    plain = trained(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(measured.parameters(), plain.parameters(), strict=True))
    assert list(callback.values) == list(callback.estimates) == [5, 10]
    text = (tmp_path / "metrics.csv").read_text()
    assert all(f"llc/{name}" in text for name in ("value", "std_error", "sound"))
    assert str(callback.values[5][0])[:8] in text
    again = bdl.LearningCoefficient(every=5, loader=loader, **SETTINGS)
    again.load_state_dict(callback.state_dict())
    assert again.values == callback.values


def test_a_measurement_is_that_of_the_function(tmp_path):
    """The network after the last step, measured afterwards, in the mode and with the seed of the callback."""
    callback = bdl.LearningCoefficient(every=12, loader=DataLoader(data(), 40), **SETTINGS)
    module = trained(tmp_path, callback)
    found = bdl.learning_coefficient(module.net, nn.CrossEntropyLoss(), DataLoader(data(), 40), **SETTINGS)
    assert callback.values[12][0] == found.value


@pytest.mark.parametrize(
    "callback, module, words",
    [
        (lambda: bdl.LearningCoefficient(0, []), Plain, "every of LearningCoefficient must be a whole"),
        (lambda: bdl.LearningCoefficient(5, []), lambda: Plain(False), "needs a loss: pass loss="),
        (
            lambda: bdl.LearningCoefficient(5, [], nn.CrossEntropyLoss()),
            lambda: bdl.BayesianModule(bdl.ChainStack(nn.Linear(3, 2), 2), BUILD),
            "this is a stack of chains",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_measured_is_refused(tmp_path, callback, module, words):
    with pytest.raises(bdl.ConfigError, match=words):
        trained(tmp_path, callback(), module=module())
