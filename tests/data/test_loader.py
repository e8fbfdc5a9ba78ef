"""Tests of `bdl.data.loader`, `.slices`, `.order` and `.module`.

Loaders: the order of batches is a function of (seed, stack, epoch, chain), so it can be resumed anywhere.
"""

import copy
import itertools

import pytest
import torch
from memory import Memory

from bdl.data import Augment, TensorBatches, TensorSlices, WorkerBatches
from bdl.errors import ConfigError

N = 23


def loader(batch_size=5, **arguments) -> TensorBatches:
    return TensorBatches(torch.arange(N)[:, None] * 1.0, torch.arange(N), batch_size, **arguments)


def rows(loader, epochs=1) -> list[list[int]]:
    """The rows of each batch, over whole epochs."""
    return [y.flatten().tolist() for _ in range(epochs) for _, y in loader]


def take(loader, batches: int) -> list[list[int]]:
    """The rows of that many batches, over as many epochs as that takes."""
    stream = itertools.chain.from_iterable(iter(loader) for _ in itertools.count())
    return [y.flatten().tolist() for _, y in itertools.islice(stream, batches)]


def test_x_and_y_stay_together():
    for x, y in loader(chains=3):
        assert x.shape == (3, 5, 1) and y.shape == (3, 5)
        assert torch.equal(x[..., 0].long(), y)


@pytest.mark.parametrize("chains", [None, 3])
def test_an_epoch_is_a_permutation_without_repeats(chains):
    each = loader(batch_size=1, chains=chains)
    for _ in range(3):
        order = torch.stack([y.reshape(chains or 1, -1) for _, y in each]).permute(1, 0, 2).flatten(1)
        assert all(sorted(one) == list(range(N)) for one in order.tolist())


@pytest.mark.parametrize("replacement", [False, True])
@pytest.mark.parametrize("chains", [None, 3])
def test_rows_ahead_are_those_of_the_batches_over_epochs(chains, replacement, monkeypatch):
    """4 batches an epoch, so that 11 from the second one on reach into the fourth epoch. The position stays."""
    each, same = (loader(chains=chains, replacement=replacement) for _ in range(2))
    take(each, 1), take(same, 1)
    ahead = each.rows_ahead(11)
    assert ahead is not None and each.state_dict() == same.state_dict()
    expected = take(same, 11)
    assert [batch.flatten().tolist() for batch in ahead] == expected
    each.advance(11)
    assert each.state_dict() == same.state_dict() and take(each, 3) == take(same, 3)
    monkeypatch.setattr("bdl.data.loader.AHEAD", 1)
    few = loader(chains=chains, replacement=replacement).rows_ahead(11)
    assert few is not None and len(few) == 4, "an epoch, where more would take much memory"


@pytest.mark.parametrize("chains", [None, 1, 3])
def test_batches_of_all_items_keep_order_and_take_no_memory(chains):
    each = loader(N, chains=chains)
    (x, y), again = each.at(0, 0), each.at(5, 0)
    assert each.is_whole and torch.equal(x, again[0]) and torch.equal(y, again[1])
    assert y.reshape(chains or 1, N).tolist() == [list(range(N))] * (chains or 1)
    if chains == 3:
        assert x.untyped_storage().nbytes() == each.x.untyped_storage().nbytes()
    else:
        x.zero_()  # what a network writes to
        assert each.x.any()
    assert not loader(N, chains=chains, replacement=True).is_whole and not loader(5, chains=chains).is_whole


def test_batches_with_replacement_are_independent():
    """Two batches of an epoch share as many items as independent draws do, not none. The order can be resumed."""
    each = loader(4, replacement=True)
    together = [len(set(a) & set(b)) for _ in range(400) for a, b in itertools.pairwise(rows(each))]
    expected = N * (1 - (1 - 1 / N) ** 4) ** 2
    assert sum(together) / len(together) == pytest.approx(expected, abs=4 * (expected / len(together)) ** 0.5)
    first, second = loader(4, replacement=True, chains=3), loader(4, replacement=True, chains=3)
    take(first, 7)
    second.load_state_dict(first.state_dict())
    assert take(second, 9) == take(first, 9) != take(loader(4, chains=3), 9)


def test_the_items_left_out_differ_from_epoch_to_epoch():
    each = loader()
    left_out = [set(range(N)) - set(itertools.chain(*rows(each))) for _ in range(4)]
    assert all(len(s) == N % 5 for s in left_out) and len({frozenset(s) for s in left_out}) > 1


def test_epochs_differ():
    each = loader()
    assert rows(each) != rows(each)


def test_every_chain_has_another_order():
    _, y = next(iter(loader(chains=4)))
    assert len({tuple(one) for one in y.tolist()}) == 4


def test_batches_of_a_chain_do_not_depend_on_number_of_chains():
    three, five = (next(iter(loader(chains=c)))[1] for c in (3, 5))
    assert torch.equal(three, five[:3])


def test_the_order_is_a_function_of_seed_stack_and_epoch():
    torch.manual_seed(0)
    first = rows(loader(seed=1, stack=2), 2)
    torch.manual_seed(1)
    assert first == rows(loader(seed=1, stack=2), 2)
    assert first != rows(loader(seed=2, stack=2), 2)
    assert first != rows(loader(seed=1, stack=1), 2)
    assert rows(loader(seed=1, stack=2)) != rows(loader(seed=2, stack=1))


def test_the_order_of_an_epoch_takes_4_bytes_an_item_and_chain():
    """And 8 bytes an item while one chain's is drawn. Orders of all chains in int64 took 24 bytes an item and chain."""
    chains, items = 16, 5000
    batches = TensorBatches(torch.zeros(items, 1), torch.zeros(items).long(), 100, chains=chains)
    with Memory() as memory:
        before = memory.begin()
        batches._draw(0)
    assert memory.peak - before <= (4 * chains + 2 * 8) * items


def test_the_global_generator_is_left_alone():
    before = torch.get_rng_state()
    rows(loader(chains=2), 2)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("done", range(10))
def test_a_loader_resumes_where_another_one_stopped(done):
    whole = take(loader(chains=2), 12)
    first, second = loader(chains=2), loader(chains=2)
    assert take(first, done) == whole[:done]
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert take(second, 12 - done) == whole[done:]


def test_an_iterator_abandoned_on_the_last_batch_ends_the_epoch():
    whole = rows(loader(), 2)
    each = loader()
    assert [next(it)[1].tolist() for it in [iter(each)] for _ in range(4)] == whole[
        :4
    ]  # the iterator never raises StopIteration
    assert rows(each) == whole[4:]


def test_epochs_follow_each_other_after_stop_iteration():
    each = loader()
    iterator = iter(each)
    assert len(list(iterator)) == len(each) == 4
    assert next(iterator, None) is None
    assert (each.epoch, each.index) == (1, 0)


def test_a_copy_has_an_independent_position():
    each = loader()
    take(each, 2)
    list(copy.copy(each))
    assert each.state_dict() == {"epoch": 0, "index": 2}


def test_moving_the_data_keeps_the_order():
    each = loader()
    expected = take(loader(), 4)
    assert [*take(each, 2), *take(each.to("cpu"), 2)] == expected


@pytest.mark.parametrize("chains", [None, 2])
def test_the_parts_of_a_loader_make_up_its_batches(chains):
    """The batches cross the end of an epoch, and the batch size leaves some rows out."""
    whole = all_labels(loader(batch_size=6, chains=chains), 5)
    parts = [all_labels(loader(batch_size=2, chains=chains).shard(rank, 3), 5) for rank in range(3)]
    assert all(torch.equal(y, torch.cat(part, -1)) for y, *part in zip(whole, *parts, strict=True))


@pytest.mark.parametrize("workers", [None, 0])
def test_the_parts_of_a_loader_are_augmented_as_the_whole(workers):
    x = torch.arange(N * 3 * 16, dtype=torch.uint8).view(N, 3, 4, 4)

    def images(batch_size: int, rank: int, ranks: int) -> list[torch.Tensor]:
        batches = TensorBatches(x, torch.arange(N), batch_size, augment=Augment(crop=1))
        each = batches if workers is None else WorkerBatches(batches, workers)
        return [x for x, _ in each.shard(rank, ranks)]

    parts = [images(2, rank, 3) for rank in range(3)]
    assert all(torch.equal(x, torch.cat(part)) for x, *part in zip(images(6, 0, 1), *parts, strict=True))


def all_labels(loader, batches: int) -> list[torch.Tensor]:
    stream = itertools.chain.from_iterable(iter(loader) for _ in itertools.count())
    return [y for _, y in itertools.islice(stream, batches)]


def test_parts_that_do_not_fit_are_refused():
    with pytest.raises(ConfigError, match=f"batch_size = 8 on each of 3 processes .* {N} training items: at most 7"):
        loader(batch_size=8).shard(0, 3)


@pytest.mark.parametrize("size", [0, N + 1])
def test_a_batch_that_does_not_fit_is_refused(size):
    with pytest.raises(ConfigError, match=f"between 1 and the {N} training items, got {size}"):
        loader(batch_size=size)


def test_slices_keep_the_order_and_the_short_last_batch():
    slices = TensorSlices(torch.arange(N), torch.arange(N), batch_size=5)
    assert torch.equal(torch.cat([y for _, y in slices]), torch.arange(N))
    assert len(slices) == len(list(slices)) == 5


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_make_the_same_batches(workers):
    assert take(WorkerBatches(loader(chains=2), workers), 7) == take(loader(chains=2), 7)


@pytest.mark.parametrize("done", [0, 1, 4, 6])
def test_workers_resume_after_the_last_yielded_batch(done):
    """The workers are ahead of it by then."""
    whole = take(loader(), 9)
    first, second = WorkerBatches(loader(), 1), WorkerBatches(loader(), 1)
    assert take(first, done) == whole[:done]
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert take(second, 9 - done) == whole[done:]


def test_workers_leave_the_global_generator_alone():
    before = torch.get_rng_state()
    rows(WorkerBatches(loader(), 1))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_copy_of_worker_batches_has_an_independent_position():
    each = WorkerBatches(loader(), 0)
    take(each, 2)
    assert len(list(copy.copy(each))) == 2 and each.state_dict() == {"epoch": 0, "index": 2}
    assert len(each) == 4 and each.batch_size == 5 and len(each.dataset) == N
    assert torch.equal(next(iter(each.slices()))[1], torch.arange(N))


@pytest.mark.parametrize("replacement", [False, True])
def test_an_accelerator_draws_the_order_of_many_chains_by_itself(simulated, monkeypatch, replacement):
    """A function of (seed, stack, epoch); each chain has its own, and an epoch shows every item of a batch once."""
    monkeypatch.setattr("bdl.data.loader.MANY", 100)
    rows = torch.arange(40)

    def order(**settings) -> torch.Tensor:
        """(2 epochs, C, items)"""
        loader = TensorBatches(rows.float(), rows, 8, chains=4, replacement=replacement, **settings).to("cuda")
        with simulated.counted() as seen:
            epochs = [torch.cat([loader.at(e, i)[1] for i in range(5)], 1) for e in (1, 0)]
        assert not seen.waits and not seen.copies, seen
        return torch.stack([epochs[1].cpu(), epochs[0].cpu()])

    one = order()
    assert torch.equal(one, order()) and not torch.equal(one, order(seed=1)) and not torch.equal(one, order(stack=1))
    each = one.flatten(0, 1)
    assert len({tuple(row.tolist()) for row in each}) == 8
    assert replacement or all(torch.equal(row.sort().values, rows) for row in each)
    assert not replacement or 0.4 < (each.diff(dim=1) > 0).double().mean() < 0.6


def test_ranks_share_the_order_that_an_accelerator_draws(simulated, monkeypatch):
    monkeypatch.setattr("bdl.data.loader.MANY", 10)
    rows = torch.arange(40)
    parts = [TensorBatches(rows.float(), rows, 5, chains=2).shard(r, 4).to("cuda") for r in range(4)]
    seen = torch.cat([part.at(0, i)[1].cpu() for part in parts for i in range(2)], 1)
    assert torch.equal(seen.sort(1).values, rows.expand(2, -1))
