"""Tests of `bdl.run.in_python` and `.write_report`.

Three modules that were not written for bdl, each from its plain form to samples, predictions and a report.
"""

import functools
import json
from dataclasses import dataclass

import lightning as L
import pytest
import torch
import torch.nn.functional as F
import torchmetrics
import toys
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bdl
from bdl.errors import ConfigError, StoreError
from bdl.schedules import EveryStep

N, STEPS = 24, 8


class ConvClassifier(L.LightningModule):
    """With torchmetrics and a validation_step; `configure_optimizers` is the changed method."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 3)
        )
        self.accuracy = torchmetrics.Accuracy("multiclass", num_classes=3)

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self.net(x)
        self.accuracy(logits, y)
        self.log("train_accuracy", self.accuracy, on_step=False, on_epoch=True)
        return F.cross_entropy(logits, y)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", F.cross_entropy(self.net(x), y))

    def configure_optimizers(self):
        return bdl.Sampler(self.net.named_parameters(), bdl.SGHMC(0.5), num_data=N, lr=0.01)


class Tagger(nn.Module):
    """A tiny transformer that gives each token logits of 3 tags."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens, mask):
        return self.head(self.layer(self.embed(tokens), src_key_padding_mask=~mask))


class TaggerModule(L.LightningModule):
    """Dict batches with masks and padded labels."""

    def __init__(self):
        super().__init__()
        self.net = Tagger()

    def training_step(self, batch, batch_idx):
        logits = self.net(batch["tokens"], batch["mask"])
        return F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())

    def configure_optimizers(self):
        return bdl.Sampler(self.net.named_parameters(), bdl.SGHMC(0.5), num_data=N, lr=0.01)


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right, self.head = nn.Linear(3, 4), nn.Linear(2, 4), nn.Linear(4, 1)

    def forward(self, a, b):
        return self.head(torch.tanh(self.left(a) + self.right(b)))


def sentences() -> list[dict[str, torch.Tensor]]:
    """N sentences of 5 tokens, the last of which is padding in every second one; the label is the token modulo 3."""
    random, items = torch.Generator().manual_seed(0), []
    for i in range(N):
        tokens, mask = torch.randint(10, (5,), generator=random), torch.ones(5, dtype=torch.bool)
        mask[4] = i % 2 == 0
        items.append({"tokens": tokens, "mask": mask, "labels": torch.where(mask, tokens % 3, -100)})
    return items


def trained(module, loader, folder, *callbacks):
    parts = [bdl.CollectSamples(EveryStep(2, 1)), bdl.Monitor(2), *callbacks]
    toys.trainer(folder, STEPS, parts, max_epochs=-1).fit(module, loader)
    return folder


def metrics_of(folder) -> dict[str, float]:
    page = (folder / "report.html").read_text()
    assert "R-hat" in page and "T_eff" in page
    return json.loads((folder / "metrics.json").read_text())


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """(folder, module, loader) of the classifier, with `bdl.Report` as a callback."""
    data = TensorDataset(torch.randn(N, 1, 6, 6), torch.arange(N) % 3)
    train, test = DataLoader(data, 8, shuffle=True), DataLoader(data, 8)
    module, folder = ConvClassifier(), tmp_path_factory.mktemp("images")
    report = bdl.Report(likelihood=bdl.CategoricalNLL())
    parts = [bdl.CollectSamples(EveryStep(2, 1)), bdl.Monitor(2), report]
    trainer = toys.trainer(folder, STEPS, parts, max_epochs=-1)
    trainer.fit(module, train, test)
    return folder, module, test


def test_the_classifier_reports_by_callback(images):
    folder, module, test = images
    metrics = metrics_of(folder)
    assert metrics["samples"] == 6 and 0 <= metrics["test/bma/accuracy"] <= 1
    assert metrics["t_eff"] is not None and metrics["train/bma/nll"] > 0
    probs = bdl.Posterior.load(folder, module, likelihood=bdl.CategoricalNLL()).predict(test).probs
    labels = torch.arange(N) % 3
    assert metrics["test/bma/nll"] == pytest.approx(-probs[torch.arange(N), labels].log().mean().item(), rel=1e-5)


def test_the_function_writes_what_the_callback_wrote(images):
    folder, module, test = images
    before = metrics_of(folder)
    bdl.report(folder, module, {"test": test, "train": test}, likelihood=bdl.CategoricalNLL())
    assert metrics_of(folder) == pytest.approx(before, nan_ok=True)


def test_a_module_without_its_trainer_reads_the_callbacks_trace(images):
    folder, _, test = images
    before = metrics_of(folder)
    bdl.report(folder, ConvClassifier(), test, likelihood=bdl.CategoricalNLL())
    after = metrics_of(folder)
    assert [after[k] for k in ("t_eff", "test/bma/nll")] == pytest.approx(
        [before[k] for k in ("t_eff", "test/bma/nll")]
    )


def test_the_check_of_the_loss_leaves_metrics_alone(images, tmp_path):
    """The metric has seen the training batches of its last epoch, and none of the halves of the first batch."""
    _, module, _ = images
    assert module.accuracy.update_count <= STEPS
    assert "log" not in vars(module)


def test_the_transformer_reports_by_function(tmp_path):
    module, loader = TaggerModule(), DataLoader(sentences(), 8)
    trained(module, loader, tmp_path)
    metrics = bdl.report(tmp_path, module, loader, likelihood=bdl.CategoricalNLL())
    assert metrics_of(tmp_path)["test/bma/nll"] == pytest.approx(metrics["test/bma/nll"])
    posterior = bdl.Posterior.load(tmp_path, module, likelihood=bdl.CategoricalNLL())
    batch = next(iter(DataLoader(sentences(), N)))
    probs = posterior.predict(batch).probs
    assert probs.shape == (N, 5, 3)
    counted = batch["labels"] != -100
    p = probs[counted].gather(1, batch["labels"][counted].unsqueeze(1))
    assert metrics["test/bma/nll"] == pytest.approx(-p.log().mean().item(), rel=1e-5)


def test_the_regression_takes_one_call(tmp_path):
    """Plain torch, two inputs, one call of `bdl.sample`; the same call again changes nothing."""
    a, b = torch.randn(N, 3), torch.randn(N, 2)
    loader = DataLoader(TensorDataset(a, b, a[:, :1] + b[:, :1]), 8)
    call = functools.partial(
        bdl.sample, TwoInputs(), bdl.GaussianNLL(0.3), loader, tmp_path, steps=STEPS, lr=0.001, chains=2,
        keep=EveryStep(2, 1), test=loader, accelerator="cpu", monitor_every=2,
    )  # fmt: skip
    posterior = call()
    metrics = metrics_of(tmp_path)
    assert metrics["test/bma/rmse"] > 0 and posterior.samples == 12 and posterior.chains == 2
    prediction = posterior.predict((a, b))
    torch.testing.assert_close(prediction.mean, posterior.predict(loader).mean)
    assert prediction.mean.shape == (N, 1)
    assert call().samples == 12 and metrics_of(tmp_path)["test/bma/nll"] == metrics["test/bma/nll"]
    with pytest.raises(ConfigError, match="holds another run: lr was 0.001 there"):
        call(lr=0.002)


@dataclass
class Pair:
    a: torch.Tensor
    b: torch.Tensor
    y: torch.Tensor


def test_batches_of_dataclass_and_of_module_of_ones_own_are_same(tmp_path):
    a, b, y = torch.randn(N, 3), torch.randn(N, 2), torch.randn(N, 1)

    class Reads(TwoInputs):
        def inputs(self, batch):
            return batch[1]["first"], batch[1]["second"]

        def targets(self, batch):
            return batch[0]

    build = functools.partial(bdl.Sampler, dynamics=bdl.SGHMC(0.5), num_data=N, lr=0.001)
    scores, start = [], TwoInputs().state_dict()
    for net, collate in (
        (TwoInputs(), lambda i: Pair(a[i], b[i], y[i])),
        (Reads(), lambda i: (y[i], {"first": a[i], "second": b[i]})),
    ):
        net.load_state_dict(start)
        folder, loader = tmp_path / type(net).__name__, DataLoader(range(N), 8, collate_fn=collate)
        for stack in (net, bdl.ChainStack(net, 2, shared=True)):
            average = bdl.ModelAverage(EveryStep(2, 1), loader)
            trained(
                bdl.BayesianModule(stack, build, bdl.GaussianNLL(0.3)), loader, folder / type(stack).__name__, average
            )
            posterior = bdl.Posterior.load(folder / type(stack).__name__, net)
            scores.append(posterior.evaluate(loader).metrics()["bma/nll"])
            assert average.metrics["nll"] == pytest.approx(scores[-1], rel=1e-5)
    assert scores[:2] == scores[2:]


@pytest.mark.parametrize(
    "data, message",
    [
        (None, "has no test data"),
        ({"train": []}, "has no test data"),
        ({"testing": []}, "'testing' is no split"),
        ([torch.zeros(2, 1, 6, 6)], "evaluation needs a loader"),
        ([{"labels": torch.zeros(2)}], "no input that bdl can read: dict(labels: float32 (2,))"),
        ([{"image": torch.zeros(2, 1, 6, 6), "y": torch.zeros(2)}], "does not take the inputs dict(image"),
    ],
)
def test_data_that_cannot_be_read_are_refused_in_one_line(images, data, message):
    folder, _, _ = images
    with pytest.raises(ConfigError) as refusal:
        bdl.report(folder, ConvClassifier(), data, likelihood=bdl.CategoricalNLL())
    assert message in str(refusal.value) and "\n" not in str(refusal.value)


def test_another_network_and_an_empty_folder_are_refused(images, tmp_path):
    folder, _, test = images
    with pytest.raises(StoreError, match="another network"):
        bdl.report(folder, nn.Linear(3, 3), test, likelihood=bdl.CategoricalNLL())
    with pytest.raises(StoreError, match="no samples"):
        bdl.report(tmp_path, ConvClassifier(), test)


def test_report_says_at_the_start_what_it_will_need(tmp_path):
    with pytest.raises(ConfigError, match="pass likelihood="):
        trained(TaggerModule(), DataLoader(sentences(), 8), tmp_path, bdl.Report(sentences()))
    with pytest.raises(ConfigError, match="add bdl.CollectSamples"):
        toys.trainer(tmp_path, 2, [bdl.Report()]).fit(toys.module(), toys.batches())


def test_a_module_whose_loss_is_a_sum_is_refused(tmp_path):
    class Sums(ConvClassifier):
        def training_step(self, batch, batch_idx):
            x, y = batch
            return F.cross_entropy(self.net(x), y, reduction="sum")

    data = DataLoader(TensorDataset(torch.randn(N, 1, 6, 6), torch.arange(N) % 3), 8)
    with pytest.raises(ConfigError, match="adds up the items of a batch"):
        trained(Sums(), data, tmp_path / "sums")
