"""Tests of `bdl.run.rehearsal` and `bdl.lightning.first_batch`: what the end needs is asked before the first step."""

import functools
import warnings

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import LearningRateFinder, StochasticWeightAveraging, WeightAveraging
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bdl
from bdl.errors import BdlWarning, ConfigError
from bdl.likelihoods.categorical import are_probabilities

torch.manual_seed(0)
X = torch.randn(60, 3)
CLASSES = (X[:, 0] > 0).long()
SOFT = (2 * X[:, :2]).softmax(1)
GAP = torch.where(torch.arange(60)[:, None] == 50, torch.nan, X)


def loader(y, size=20):
    return DataLoader(TensorDataset(X, y), size, shuffle=True)


class Steps(L.Callback):
    made = 0

    def on_train_batch_end(self, *_):
        self.made += 1


def sample(folder, loss, y, test, net=None, **arguments):
    seen = Steps()
    arguments = {"steps": 6, "lr": 0.01, "chains": 2, "accelerator": "cpu", **arguments}
    try:
        return bdl.sample(net or nn.Linear(3, 2), loss, loader(y), folder, test=test, callbacks=[seen], **arguments)
    except ConfigError:
        assert seen.made == 0
        raise


REFUSED = [
    (nn.CrossEntropyLoss(), CLASSES, loader(torch.ones(60, 3)), "takes one class for each item"),
    (bdl.CategoricalNLL(), SOFT, loader(CLASSES), r"take nn.CrossEntropyLoss\(\) as the loss"),
    (nn.CrossEntropyLoss(), CLASSES, loader(CLASSES + 5), "none of the 2 classes"),
    (bdl.GaussianNLL(1.0), SOFT, loader(X), "predicts 2 targets"),
    (bdl.PoissonNLL(), SOFT.round(), loader(SOFT), "no counts 0, 1, 2"),
    (nn.CrossEntropyLoss(), CLASSES, DataLoader(TensorDataset(X), 20), "evaluation needs a loader of"),
    (nn.CrossEntropyLoss(), CLASSES, DataLoader(TensorDataset(X[:0], CLASSES[:0]), 20), "test data have no item"),
    (nn.CrossEntropyLoss(), CLASSES, {"test": loader(CLASSES), "val": []}, "val data have no item"),
    (
        nn.CrossEntropyLoss(),
        CLASSES,
        DataLoader(TensorDataset(GAP, CLASSES), 20),
        "item 50 of the test data has an input that",
    ),
]


@pytest.mark.parametrize("loss, y, test, match", REFUSED)
def test_what_the_report_would_refuse_is_refused_before_the_first_step(tmp_path, loss, y, test, match):
    with pytest.raises(ConfigError, match=match):
        sample(tmp_path, loss, y, test)


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        return {"logits": self.layer(x), "size": self.layer(x)[:, :1]}


def test_a_network_with_a_dict_of_heads_is_refused_before_the_first_step(tmp_path):
    with pytest.raises(ConfigError, match="wrap the network in a module that returns the logits"):
        sample(tmp_path, nn.CrossEntropyLoss(), CLASSES, loader(CLASSES), net=Heads())


def test_soft_labels_are_sampled_and_scored(tmp_path):
    with pytest.warns(BdlWarning, match="are probabilities, and are scored as the most probable class"):
        sample(tmp_path, nn.CrossEntropyLoss(), SOFT, loader(SOFT))
    assert (tmp_path / "report.html").exists()
    assert are_probabilities(SOFT) and not are_probabilities(CLASSES) and not are_probabilities(X)


def test_a_rehearsal_changes_no_sample(tmp_path):
    """Nor the mode of the network, nor torch's stream, which shuffles."""
    net = nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.2))
    states = []
    for folder, test in ((tmp_path / "a", None), (tmp_path / "b", loader(CLASSES))):
        torch.manual_seed(1)
        posterior = sample(folder, nn.CrossEntropyLoss(), CLASSES, test, net=net, start="given")
        states.append([posterior.read_record(record) for record in posterior.records])
    for one, other in zip(*states, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


def trained(folder, callbacks, **trainer):
    build = functools.partial(bdl.Sampler, dynamics=bdl.SGHMC(), num_data=60, lr=0.02)
    made = L.Trainer(
        accelerator="cpu", default_root_dir=folder, callbacks=callbacks, enable_progress_bar=False,
        enable_model_summary=False, **trainer,
    )  # fmt: skip
    made.fit(bdl.BayesianModule(nn.Linear(3, 2), build), loader(CLASSES))
    return made


def test_a_fast_dev_run_passes_without_samples(tmp_path):
    keep = bdl.CollectSamples(bdl.schedules.EveryStep(100, 10))
    made = trained(tmp_path, [keep, bdl.Monitor(1), bdl.Report(loader(CLASSES))], fast_dev_run=True)
    assert made.global_step == 1 and not (tmp_path / "report.html").exists()
    with pytest.raises(ConfigError, match="takes one class for each item"):
        trained(tmp_path, [keep, bdl.Report(loader(X))], fast_dev_run=True)


@pytest.mark.parametrize("callback", [StochasticWeightAveraging(swa_lrs=0.1), LearningRateFinder(), WeightAveraging()])
def test_callbacks_that_step_by_themselves_are_named(tmp_path, callback):
    with pytest.raises(ConfigError, match=f"the callback {type(callback).__name__} makes steps or changes weights"):
        trained(tmp_path, [callback], max_epochs=4, logger=False, enable_checkpointing=False)


@pytest.mark.parametrize(
    "x, y, words",
    [
        (X, CLASSES[:, None], r"give y.squeeze\(-1\)$"),
        (X, CLASSES.float(), r"give y.long\(\)$"),
        (X, CLASSES[:, None].float(), r"give y.squeeze\(-1\).long\(\)$"),
        (X, CLASSES.to(torch.complex64), "the targets are torch.complex64, .*two targets"),
        (X, CLASSES[:, None].to(torch.complex64), "the targets are torch.complex64, .*two targets"),
        ((9 * X).long(), CLASSES, "Linear does not take the inputs int64"),
    ],
)
@pytest.mark.parametrize("chains", [None, 2])
def test_a_first_batch_of_another_type_is_refused_in_one_line(tmp_path, x, y, words, chains):
    batches = DataLoader(TensorDataset(x, y), 20)
    with pytest.raises(ConfigError, match=words):
        bdl.sample(nn.Linear(3, 2), nn.CrossEntropyLoss(), batches, tmp_path, steps=6, lr=0.01, chains=chains)


class Cut(nn.Module):
    """Its first layer changes the outputs, and gets no gradient."""

    def __init__(self):
        super().__init__()
        self.below, self.above = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.above(self.below(x).detach())


@pytest.mark.parametrize("chains", [None, 2])
def test_a_part_without_gradient_that_changes_the_loss_is_told(tmp_path, chains):
    call = {"steps": 6, "lr": 0.01, "chains": chains, "accelerator": "cpu"}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        bdl.sample(Cut(), nn.CrossEntropyLoss(), loader(CLASSES), tmp_path / "cut", **call)
    (line,) = [str(w.message) for w in said if "gradient" in str(w.message)]
    assert "2 of 4 parameters" in line and "no gradient" in line and "detach()" in line
    unused = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    nn.init.zeros_(unused[1].weight)  # so that the layer below gets no gradient at first
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "2 of 4")
        bdl.sample(unused, nn.CrossEntropyLoss(), loader(CLASSES), tmp_path / "zero", start="given", **call)
