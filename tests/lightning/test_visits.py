"""Tests of `bdl.lightning.visits` and `bdl.lightning.micro_batches`: which items count, and how much."""

import functools
import math
import warnings

import lightning as L
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, TensorDataset

import bdl
from bdl.errors import BdlWarning, ConfigError

LR = 1e-9  # so small that θ stands still, up to the displacement that is measured


class Own(L.LightningModule):
    """A module of the user's, with a loss of its own."""

    def __init__(self, net, build):
        super().__init__()
        self.net, self.build = net, build

    def configure_optimizers(self):
        return self.build(self.net.named_parameters())

    def training_step(self, batch, batch_idx):
        x, y = batch
        return 0.5 * (self.net(x) - y).square().sum(-1).mean()


class Watch(L.Callback):
    def __init__(self):
        self.energies, self.places = [], []

    def on_train_batch_end(self, trainer, module, *_):
        sampler = trainer.optimizers[0]
        if not self.places or sampler.steps > len(self.energies):
            self.energies.append(float("nan") if sampler.energy is None else sampler.energy.item())
            self.places.append(sampler.chain.theta.clone())


def told(said):
    return sum(issubclass(w.category, BdlWarning) for w in said)


def tensors(n):
    torch.manual_seed(0)
    x, y = torch.randn(n, 2, dtype=torch.float64), torch.randn(n, 1, dtype=torch.float64)
    y[-1] += 50
    return x, y


def fit(folder, module_type, n, steps, lr=LR, loader=None, dataset=None, num_data=None, **trainer):
    x, y = tensors(n)
    net = nn.Linear(2, 1, dtype=torch.float64)
    build = functools.partial(
        bdl.Sampler, dynamics=bdl.SGLD(), num_data=num_data or n, lr=lr, temperature=0.0, prior=bdl.Uniform()
    )
    module = (
        module_type(net, build)
        if issubclass(module_type, Own)
        else bdl.BayesianModule(net, build, bdl.GaussianNLL(1.0))
    )
    watch = Watch()
    keep = bdl.CollectSamples(bdl.schedules.EveryStep(steps - 1, 1), folder)
    made = L.Trainer(
        max_steps=steps, max_epochs=-1, accelerator="cpu", logger=False, enable_progress_bar=False, precision="64-true",
        enable_model_summary=False, enable_checkpointing=False, default_root_dir=folder, callbacks=[watch, keep],
        **trainer,
    )  # fmt: skip
    made.fit(module, DataLoader(dataset or TensorDataset(x, y), **(loader or {"batch_size": 10})))
    return net, watch


@pytest.mark.parametrize(
    "module_type, n, parts", [(bdl.BayesianModule, 31, 1), (Own, 31, 1), (bdl.BayesianModule, 51, 4), (Own, 40, 2)]
)
def test_an_epoch_has_the_gradient_of_all_the_data(tmp_path, module_type, n, parts):
    """In a fixed order with a short batch, and with a last step of fewer micro-batches than others."""
    steps = math.ceil(math.ceil(n / 10) / parts)  # of an epoch
    net, watch = fit(tmp_path, module_type, n, 3 * steps, accumulate_grad_batches=parts)
    x, y = tensors(n)
    loss = bdl.GaussianNLL(1.0)(net(x), y).mean()
    gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(net.parameters()))])
    move = (watch.places[2 * steps - 1] - watch.places[3 * steps - 1]) / (LR * steps)
    torch.testing.assert_close(move, gradient, rtol=1e-5, atol=1e-7)
    if module_type is bdl.BayesianModule:
        assert sum(watch.energies[-steps:]) / steps == pytest.approx(n * loss.item(), rel=1e-6)


def test_another_module_is_told_of_parts_that_are_not_alike(tmp_path):
    with pytest.warns(BdlWarning, match="accumulate_grad_batches=3 adds up parts of steps that are not alike") as said:
        fit(tmp_path, Own, 40, 6, accumulate_grad_batches=3)
    assert told(said) == 1


class Words(Dataset):
    """Items whose batches bdl cannot count."""

    def __len__(self):
        return 31

    def __getitem__(self, i):
        return str(i)


class OfWords(Own):
    def training_step(self, batch, batch_idx):
        numbers = torch.tensor([[float(word), 1.0] for word in batch], dtype=torch.float64)
        return self.net(numbers).square().mean()


def test_batches_of_unknown_size_are_pointed_out(tmp_path):
    net, words = nn.Linear(2, 1, dtype=torch.float64), Words()
    build = functools.partial(bdl.Sampler, dynamics=bdl.SGLD(), num_data=31, lr=LR)
    trainer = functools.partial(
        L.Trainer, max_steps=5, max_epochs=-1, accelerator="cpu", logger=False, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False, precision="64-true",
    )  # fmt: skip
    keep = bdl.CollectSamples(bdl.schedules.EveryStep(3, 1), tmp_path / "ragged")
    with pytest.warns(BdlWarning, match="size of the batches is unknown.*drop_last=True"):
        trainer(callbacks=[keep]).fit(OfWords(net, build), DataLoader(words, 10, shuffle=True))
    keep = bdl.CollectSamples(bdl.schedules.EveryStep(3, 1), tmp_path / "alike")
    trainer(callbacks=[keep]).fit(OfWords(net, build), DataLoader(words, 10, shuffle=True, drop_last=True))


class InOrder(Sampler):
    """An order of the user's that bdl does not know."""

    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return iter(range(self.n))

    def __len__(self):
        return self.n


PARTS = [
    ({"overfit_batches": 1}, {}, 10),
    ({"limit_train_batches": 2}, {}, 20),
    ({"limit_train_batches": 0.5}, {}, 20),
    ({"limit_train_batches": 2}, {"sampler": InOrder(40)}, 20),
    ({"limit_train_batches": 2}, {"batch_sampler": torch.arange(40).view(-1, 4).tolist()}, 8),
]


@pytest.mark.parametrize("trainer, loader, seen", PARTS)
@pytest.mark.parametrize("module_type", [bdl.BayesianModule, Own])
def test_epochs_that_visit_the_same_part_are_pointed_out_once(tmp_path, module_type, trainer, loader, seen):
    loader = loader if "batch_sampler" in loader else {"batch_size": 10, **loader}
    with pytest.warns(BdlWarning, match=f"every epoch visits the same {seen} items.* of all 40: ") as said:
        fit(tmp_path, module_type, 40, 9, loader=loader, **trainer)
    assert told(said) == 1


class Stream(IterableDataset):
    """Items in a new order each time, and no length."""

    def __init__(self, visited):
        self.visited, self.tensors = visited, tensors(40)

    def __iter__(self):
        x, y = self.tensors
        return ((x[i], y[i]) for i in torch.randperm(self.visited).tolist())


class Counted(Stream):
    """A stream that says how many items there are."""

    def __len__(self):
        return 40


@pytest.mark.parametrize("module_type", [bdl.BayesianModule, Own])
@pytest.mark.parametrize("data, visited", [(Stream, 20), (Stream, 40), (Counted, 20)])
@pytest.mark.filterwarnings("ignore:Length of IterableDataset")
def test_a_stream_of_other_items_than_num_data_is_pointed_out(tmp_path, module_type, data, visited):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", BdlWarning)
        fit(tmp_path, module_type, 40, 9, dataset=data(visited))
    words = f"an epoch of {data.__name__} visits {visited} items, and the posterior is that of 40"
    assert [words in str(w.message) for w in said if w.category is BdlWarning] == [True] * (visited != 40)


@pytest.mark.parametrize("loader, steps, tells", [({}, 100, True), ({"shuffle": True}, 100, False), ({}, 3, False)])
def test_a_run_shorter_than_an_epoch_in_a_fixed_order_is_pointed_out(tmp_path, loader, steps, tells):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", BdlWarning)
        fit(tmp_path, bdl.BayesianModule, 120, steps, loader={"batch_size": 1, **loader})
    words = [str(w.message) for w in said if w.category is BdlWarning]
    told_once = "100 steps visit the first 100 items, and the posterior is that of all 120: shuffle the loader, or run"
    assert words == [f"{told_once} longer than an epoch"] * tells


@pytest.mark.parametrize("loader", [{"batch_size": 10, "drop_last": True}, {"batch_size": 10}])
def test_a_last_batch_that_is_always_left_out_is_pointed_out(tmp_path, loader):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", BdlWarning)
        fit(tmp_path, Own, 41, 9, loader=loader)
    assert [True for w in said if "visits the same 40 items" in str(w.message)] == [True] * ("drop_last" in loader)


@pytest.mark.parametrize("trainer", [{}, {"limit_train_batches": 2}])
def test_shuffled_epochs_visit_all_in_the_end(tmp_path, trainer):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", BdlWarning)
        fit(tmp_path, bdl.BayesianModule, 40, 9, loader={"batch_size": 10, "shuffle": True}, **trainer)
    assert told(said) == 0


@pytest.mark.parametrize("module_type", [bdl.BayesianModule, Own])
def test_a_batch_without_items_is_named(tmp_path, module_type):
    def without_the_last(rows):
        kept = [(x, y) for x, y in rows if y < 40]
        return tuple(map(torch.stack, zip(*kept, strict=True))) if kept else (torch.zeros(0, 2), torch.zeros(0, 1))

    with pytest.raises(ConfigError, match="batch 3 of epoch 0 has no items.* leave it out in the collate_fn"):
        fit(tmp_path, module_type, 40, 9, loader={"batch_size": 13, "collate_fn": without_the_last})


def test_a_run_without_a_step_is_pointed_out(tmp_path):
    with pytest.warns(BdlWarning, match="the run made no step: its loader has no batch"):
        fit(tmp_path, Own, 40, 9, loader={"batch_size": 50, "drop_last": True})


def test_an_iterator_that_ends_in_a_step_does_not_begin_epochs_for_ever(tmp_path):
    class Pairs(Own):
        def training_step(self, batch, batch_idx):
            self.others = getattr(self, "others", iter(range(20)))
            next(self.others)
            return super().training_step(batch, batch_idx)

    with pytest.raises(ConfigError, match=r"epoch \d made no step: a StopIteration"):
        fit(tmp_path, Pairs, 40, 30, loader={"batch_size": 10})
