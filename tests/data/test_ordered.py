"""Tests of `bdl.data.ordered`: how many items a loader's data are, and their order."""

import functools
import warnings

import lightning as L
import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    TensorDataset,
    default_collate,
)

import bdl
from bdl.batch import count_targets
from bdl.data.module import in_order
from bdl.data.ordered import counts_of, ordered, size_of
from bdl.errors import BdlWarning, ConfigError

torch.manual_seed(0)
X = torch.randn(70, 3)
Y = X[:, :1] + 0.1 * torch.randn(70, 1)
ROWS = TensorDataset(X, Y)
SHARDS = [(X[i : i + 20], Y[i : i + 20]) for i in range(0, 70, 20)]  # the last one has 10 rows


class Stream(IterableDataset):
    def __init__(self, items, length=None, times=1):
        self.items, self.times = items, times
        if length:
            self.__class__ = type("Sized", (Stream,), {"__len__": lambda self: length})

    def __iter__(self):
        yield from list(self.items) * self.times


def twice(items):
    return tuple(torch.cat([part, part]) for part in default_collate(items))


def joined(shards):
    return tuple(map(torch.cat, zip(*shards, strict=True)))


LOADERS = {  # a loader, counts, items of a batch
    "rows": (lambda: DataLoader(ROWS, 20, shuffle=True), (70,), 20),
    "batches as items": (lambda: DataLoader(SHARDS, batch_size=None, shuffle=True), (70,), 17),
    "named batches": (lambda: DataLoader([{"input": x, "y": y} for x, y in SHARDS], batch_size=None), (70,), 17),
    "a sampler of batches": (
        lambda: DataLoader(ROWS, batch_size=None, sampler=BatchSampler(RandomSampler(ROWS), 20, False)),
        (70,),
        20,
    ),
    "a batch sampler": (
        lambda: DataLoader(ROWS, batch_sampler=BatchSampler(RandomSampler(ROWS), 20, False)),
        (70,),
        20,
    ),
    "one batch as item": (lambda: DataLoader(SHARDS, 1, collate_fn=lambda b: b[0]), (4, 70), 1),
    "joined batches": (lambda: DataLoader(SHARDS, 2, collate_fn=joined), (4, 70), 2),
    "two views": (lambda: DataLoader(ROWS, 20, collate_fn=twice), (70, 140), 20),
    "a collate_fn": (lambda: DataLoader(ROWS, 20, collate_fn=lambda b: default_collate(b)), (70,), 20),
    "a stream": (lambda: DataLoader(Stream(ROWS), 20), (), 20),
    "a stream of batches": (lambda: DataLoader(Stream(SHARDS, 4), batch_size=None), (), None),
    "a stream with a length": (lambda: DataLoader(Stream(ROWS, 70), 20), (70,), 20),
}


@pytest.mark.parametrize("name", LOADERS)
def test_items_are_counted_as_batches_hold_them_and_come_in_order(name):
    make, counts, size = LOADERS[name]
    loader, random = make(), torch.random.get_rng_state()
    assert (counts_of(loader), size_of(loader)) == (counts, size)
    assert torch.equal(random, torch.random.get_rng_state())
    batches = list(ordered(loader))
    assert sum(map(count_targets, batches)) == (counts[-1] if counts else 70)
    x = torch.cat([b["input"] if isinstance(b, dict) else b[0] for b in batches])
    assert name == "two views" or torch.equal(x, X)
    if len(counts) == 1:  # what the report scores
        assert [count_targets(b) for b in in_order(loader)] == [count_targets(b) for b in batches]


def test_data_that_grow_are_counted_again():
    shards = SHARDS[:2]
    loader = DataLoader(shards, batch_size=None)  # type: ignore[arg-type]
    assert counts_of(loader) == (40,)
    shards.append(SHARDS[3])
    assert counts_of(loader) == (50,)


def sample(folder, loader, **arguments):
    arguments = {"steps": 6, "lr": 0.01, "accelerator": "cpu", **arguments}
    return bdl.sample(nn.Linear(3, 1), bdl.GaussianNLL(1.0), loader, folder, **arguments)


def fit(folder, loader, num_data=70, **settings):
    build = functools.partial(bdl.Sampler, dynamics=bdl.SGLD(), num_data=num_data, lr=0.01)
    module = bdl.BayesianModule(nn.Linear(3, 1), build, loss=bdl.GaussianNLL(1.0))
    L.Trainer(
        max_steps=12, max_epochs=-1, accelerator="cpu", logger=False, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False, default_root_dir=folder,
        callbacks=[bdl.CollectSamples(bdl.schedules.EveryStep(1, 1))], **settings,
    ).fit(module, loader)  # fmt: skip
    return bdl.Posterior.load(folder, nn.Linear(3, 1))


@pytest.mark.parametrize("name", LOADERS)
def test_n_is_the_number_of_items_at_both_doors(tmp_path, name):
    make, counts, _ = LOADERS[name]
    assert fit(tmp_path / "fit", make()).target["num_data"] == 70
    stated = {} if len(counts) == 1 else {"num_data": 70}
    if stated:
        with pytest.raises(ConfigError, match="num_data") as refused:
            sample(tmp_path / "sample", make())
        assert "\n" not in str(refused.value)
    posterior = sample(tmp_path / "sample", make(), full_energy=True, chains=2, **stated)
    assert posterior.target["num_data"] == 70
    if name in ("rows", "batches as items"):  # energies over all the data weigh every row alike
        tensors = posterior.read_record(posterior.records[0])
        outputs = X @ tensors["weight"].mT + tensors["bias"].unsqueeze(1)
        energy = -torch.distributions.Normal(outputs, 1.0).log_prob(Y).sum((1, 2))
        prior = sum(t.square().sum(tuple(range(1, t.ndim))) / 2 for t in tensors.values())
        assert torch.allclose(torch.tensor(posterior.records[0].energy_full), energy + prior, rtol=1e-4)


@pytest.mark.parametrize("size", [4, 69, 71])
def test_another_n_is_refused(tmp_path, size):
    with pytest.raises(ConfigError, match=f"num_data = {size}, but the training data have 70 items: set num_data=70"):
        fit(tmp_path, LOADERS["batches as items"][0](), size)


NO_BATCH = "batch_size=None.* which is none: give the DataLoader a batch_size"
REFUSED = {
    "single rows": (lambda: DataLoader(ROWS, batch_size=None), NO_BATCH, NO_BATCH),
    "single classes": (lambda: DataLoader([(x, torch.tensor(0)) for x in X], batch_size=None), NO_BATCH, NO_BATCH),
    "a list of batches": (
        lambda: SHARDS,
        r"got a list: .*DataLoader\(batches, batch_size=None",
        r"takes a list as .*DataLoader\(batches, batch_size=None",
    ),
    "a generator": (lambda: iter(SHARDS), "got list_iterator: a DataLoader", "no batch left after step 4, because"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_loader_of_batches_is_refused_in_one_line(tmp_path, name):
    make, of_sample, of_fit = REFUSED[name]
    for call, words in ((sample, of_sample), (fit, of_fit)):
        with pytest.raises(ConfigError, match=words) as refused:
            call(tmp_path, make())
        assert "\n" not in str(refused.value)


class Reloaded(L.LightningDataModule):
    """Another loader in every epoch."""

    def __init__(self, rows):
        super().__init__()
        self.rows, self.epoch = rows, -1

    def train_dataloader(self):
        self.epoch += 1
        rows = self.rows(self.epoch)
        return DataLoader(TensorDataset(X[rows], Y[rows]), 7, shuffle=True)


def test_loaders_that_are_reloaded_have_one_data_set(tmp_path):
    def reloaded(name, rows):
        return fit(tmp_path / name, Reloaded(rows), 35, reload_dataloaders_every_n_epochs=1)

    with pytest.raises(ConfigError, match="num_data = 35, but the training data have 70 items"):
        reloaded("more", lambda epoch: slice(0, 35 * (epoch + 1)))
    with pytest.warns(BdlWarning, match="the loader of epoch 1 has other data .* posterior is that of 35 items"):
        reloaded("other", lambda epoch: slice(35 * (epoch % 2), 35 * (epoch % 2) + 35))
    assert reloaded("same", lambda epoch: slice(0, 35)).samples == 11


def test_a_collate_fn_that_leaves_items_out_is_told(tmp_path):
    def positive(rows):
        return default_collate([row for row in rows if row[0][0] > 0])

    kept = int((X[:, 0] > 0).sum())
    with pytest.warns(BdlWarning, match=f"have 70 items, .* batches with {kept} in all, .* set num_data={kept}"):
        fit(tmp_path, DataLoader(ROWS, 35, collate_fn=positive, shuffle=True))


class Order:
    """An order of the user's, in batches of 10; `draw` returns the 70 rows of an epoch."""

    def __init__(self, draw):
        self.draw, self.held = draw, (row for row in ROWS)  # which cannot be copied

    def __iter__(self):
        return iter(torch.as_tensor(self.draw()).view(-1, 10).tolist())


class Doubled(BatchSampler):
    """One that is built on a random order, and changes its rows."""

    def __iter__(self):
        return ([row // 2 for row in batch] for batch in super().__iter__())


def balanced():
    return torch.cat([torch.randint(10, (35,)), torch.randint(10, 70, (35,))])


ORDERS = {
    "prefers some": [{"batch_sampler": Order(balanced)}, {"sampler": [*range(70), *range(35), *range(35)]}],
    "visits 1": [{"sampler": [0] * 70}, {"sampler": torch.zeros(70, dtype=torch.long)}],
    "visits 35": [
        {"sampler": list(range(35)) * 2},
        {"batch_sampler": Order(lambda: list(range(35)) * 2)},
        {"batch_sampler": Doubled(RandomSampler(range(70)), 10, False)},
    ],
    "visits 60": [{"batch_sampler": Order(lambda: torch.randperm(60))}],
}


@pytest.mark.parametrize("words, loader", [(words, each) for words, several in ORDERS.items() for each in several])
def test_an_order_that_repeats_or_leaves_items_out_is_told(tmp_path, words, loader):
    with pytest.warns(BdlWarning, match=f"{words} items, and the posterior is that of all 70"):
        fit(tmp_path, DataLoader(ROWS, **loader))


@pytest.mark.parametrize(
    "draw",
    [
        lambda: torch.randperm(70)[:60],  # leaves out others in each epoch
        lambda: torch.randint(70, (70,)),
        lambda: (10 * torch.randint(7, (7, 1)) + torch.arange(10)).flatten(),  # whole groups of rows
    ],
)
def test_an_order_that_draws_all_items_alike_is_not_told(tmp_path, draw):
    with warnings.catch_warnings():
        warnings.simplefilter("error", BdlWarning)
        fit(tmp_path, DataLoader(ROWS, batch_sampler=Order(draw)))


def test_a_stream_that_visits_items_more_than_once_is_told(tmp_path):
    """As a stream does that does not divide its items among the workers of its loader."""
    with pytest.warns(BdlWarning, match="an epoch of Stream visits 140 items, .* of 70: set num_data=140"):
        fit(tmp_path, DataLoader(Stream(ROWS, times=2), 35))


def test_a_kernel_that_needs_all_the_data_gets_them(tmp_path):
    for shards in ([(X, Y)], SHARDS):
        loader: DataLoader = DataLoader(shards, batch_size=None)  # type: ignore[arg-type]
        if len(shards) > 1:
            with pytest.raises(ConfigError, match="HMC needs all the data in every batch, got batch_size = 17 of 70"):
                sample(tmp_path / "parts", loader, dynamics=bdl.HMC(2))
        else:
            assert sample(tmp_path / "whole", loader, dynamics=bdl.HMC(2)).target["num_data"] == 70


def test_a_second_fit_of_a_trainer_reads_its_stream_anew(tmp_path):
    build = functools.partial(bdl.Sampler, dynamics=bdl.SGLD(), num_data=70, lr=0.01)
    module = bdl.BayesianModule(nn.Linear(3, 1), build, loss=bdl.GaussianNLL(1.0))
    trainer = L.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False, default_root_dir=tmp_path,
    )  # fmt: skip
    for epochs in (2, 4):
        trainer.fit_loop.max_epochs = epochs
        trainer.fit(module, DataLoader(Stream(ROWS), 35))
    assert trainer.current_epoch == 4
