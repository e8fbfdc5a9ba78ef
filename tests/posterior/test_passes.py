"""Tests of `bdl.posterior.passes`: numbers that are evaluated in slices of the items score as all of them together."""

import dataclasses
import math
import tempfile
import threading
from typing import Any

import numpy as np
import pytest
import torch
from by_hand import NUMBERS_X as X
from by_hand import NUMBERS_Y as VALUES

import bdl
from bdl.data import TensorSlices
from bdl.errors import StoreError
from bdl.posterior import passes, stored_outputs
from bdl.posterior.passes import ahead
from bdl.posterior.samples import Samples
from bdl.posterior.store import SampleStore
from bdl.posterior.stored_outputs import StoredOutputs
from bdl.posterior.target_values import Units, values_of
from bdl.posterior.value_evaluation import ValueEvaluation, join_slices

PER_ITEM = 4 * 8 * 2  # bytes of the outputs of the 8 networks of `regression`: a mean and a log variance
CLOSE: Any = {"rtol": 1e-5, "atol": 1e-6}  # float32 outputs, which a matrix product of other sizes rounds otherwise


def test_a_thread_makes_the_next_item_without_gradients():
    made: list[tuple[int, int, bool]] = []
    before = threading.active_count()

    def items():
        for i in range(5):
            made.append((i, threading.get_ident(), torch.is_grad_enabled()))
            yield i

    assert list(ahead(items())) == [0, 1, 2, 3, 4] and list(ahead(iter([]))) == []
    assert [i for i, *_ in made] == [0, 1, 2, 3, 4]
    assert {(thread == threading.get_ident(), grads) for _, thread, grads in made} == {(False, False)}
    assert torch.is_grad_enabled() and threading.active_count() == before


def test_an_error_of_the_thread_reaches_the_caller():
    def items():
        yield 1
        raise StoreError("no sample")

    with pytest.raises(StoreError, match="no sample"):
        list(ahead(items()))


class FromDisk:
    """A loader of somebody else that says in which threads it was read."""

    shuffles = False

    def __init__(self):
        self.threads: set[int] = set()

    def __iter__(self):
        self.threads.add(threading.get_ident())
        yield from TensorSlices(X, VALUES, batch_size=10)


def test_data_of_somebody_else_are_read_by_callers_thread_alone(of_numbers, monkeypatch):
    used: list[int] = []
    monkeypatch.setattr(passes, "ahead", lambda items: used.append(1) or ahead(items))
    loader = FromDisk()
    apart, together = of_numbers.evaluate(loader), of_numbers.evaluate(TensorSlices(X, VALUES, batch_size=10))
    assert loader.threads == {threading.get_ident()} and used == [1]
    assert apart.metrics() == together.metrics()


def test_under_autocast_the_callers_thread_computes_all(regression, monkeypatch):
    posterior, loader = bdl.Posterior.load(*regression[:2]), TensorSlices(X, VALUES, batch_size=10)
    used: list[int] = []
    monkeypatch.setattr(passes, "ahead", lambda items: used.append(1) or ahead(items))
    with torch.autocast("cpu", torch.bfloat16):
        posterior.evaluate(loader)
    assert used == []
    posterior.evaluate(loader)
    assert used == [1]


class Count:
    """Counts the files that are read, and the most bytes of outputs that one store of them was given."""

    def __init__(self, monkeypatch):
        self.read, self.most = 0, 0
        read, add = SampleStore.read, StoredOutputs.add

        def counted_read(store, record):
            self.read += 1
            return read(store, record)

        def counted_add(stored, outputs):
            add(stored, outputs)
            self.most = max(self.most, 4 * stored.networks * stored.shape.numel())

        monkeypatch.setattr(SampleStore, "read", counted_read)
        monkeypatch.setattr(StoredOutputs, "add", counted_add)


@pytest.fixture
def pair(of_numbers, monkeypatch):
    """(whole, in slices of 7 items, counts): evaluations of the 40 items in batches of 10, and what the second read."""
    loader = TensorSlices(X, VALUES, batch_size=10)
    whole = of_numbers.evaluate(loader)
    monkeypatch.setattr(stored_outputs, "OUTPUTS_IN_MEMORY", 7 * PER_ITEM)
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda: pytest.fail("a temporary file"))
    count = Count(monkeypatch)
    done: list[tuple[int, int]] = []
    sliced = of_numbers.evaluate_all({"": loader}, lambda *now: done.append(now))[""]
    assert done == sorted(done) and done[-1] == (8 * 40, 8 * 40)
    return whole, sliced, count


def test_slices_score_as_the_whole_within_the_bound(pair):
    whole, sliced, count = pair
    assert count.most == 7 * PER_ITEM
    assert count.read == 6 * 4  # slices x files
    assert sliced.metrics() == pytest.approx(whole.metrics(), rel=1e-5)
    assert sliced.repeat_error() == pytest.approx(whole.repeat_error(), rel=1e-4)
    assert sliced.against_constant() == pytest.approx(whole.against_constant(), rel=1e-4, nan_ok=True)
    for one, other in zip(dataclasses.astuple(sliced.curve), dataclasses.astuple(whole.curve), strict=True):
        assert one == pytest.approx(other, rel=1e-5)
    for name in ("quantities", "features", "log_probs"):
        np.testing.assert_allclose(getattr(sliced, name), getattr(whole, name), **CLOSE)
    units = [Units("t", 3.0, 2.0)]
    (one,), (other,) = (values_of(evaluation, units) for evaluation in (sliced, whole))
    for name in ("y", "mean", "std", "low", "high"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), **CLOSE)
    for name, (_, shares) in other.shares.items():
        np.testing.assert_allclose(one.shares[name][1], shares, atol=1e-12)
    assert count.read == 6 * 4 and count.most == 7 * PER_ITEM  # a report asks for nothing else


def test_other_questions_are_answered_by_another_pass(pair):
    whole, sliced, count = pair
    for name in ("mean", "std", "aleatoric", "epistemic"):
        torch.testing.assert_close(getattr(sliced.bma, name), getattr(whole.bma, name), **CLOSE)
    before = count.read
    torch.testing.assert_close(sliced.bma.quantile(0.3), whole.bma.quantile(0.3), **CLOSE)
    assert count.read == before + 6 * 4 and count.most == 7 * PER_ITEM
    torch.testing.assert_close(sliced.bma.draw(3), whole.bma.draw(3), **CLOSE)
    torch.testing.assert_close(sliced.one_sample[1].crps(VALUES), whole.one_sample[1].crps(VALUES), **CLOSE)
    items = torch.tensor([39, 3, 11])
    torch.testing.assert_close(sliced.bma[items].quantile(0.3), whole.bma.quantile(0.3)[items], **CLOSE)
    torch.testing.assert_close(sliced.bma[items].interval(0.9)[0], whole.bma.interval(0.9)[0][items], **CLOSE)


def test_items_below_the_bound_are_evaluated_together(regression, monkeypatch):
    monkeypatch.setattr(stored_outputs, "OUTPUTS_IN_MEMORY", 40 * PER_ITEM)
    count = Count(monkeypatch)
    few, all_items = TensorSlices(X[:5], VALUES[:5]), TensorSlices(X, VALUES)
    both = bdl.Posterior.load(*regression[:2]).evaluate_all({"few": few, "all": all_items})
    assert count.read == 4 and [both[name].items for name in both] == [5, 40]
    monkeypatch.setattr(stored_outputs, "OUTPUTS_IN_MEMORY", 39 * PER_ITEM)
    mixed = bdl.Posterior.load(*regression[:2]).evaluate_all({"all": all_items, "few": few})
    assert count.read == 4 + 4 + 2 * 4 and list(mixed) == ["all", "few"]  # one pass for few, one for each slice of all
    for name in both:
        assert mixed[name].metrics() == pytest.approx(both[name].metrics(), rel=1e-5)


@pytest.mark.parametrize(
    ("likelihood", "chains"),
    [
        (bdl.GaussianNLL(0.5), 1), (bdl.GaussianNLL(0.5), 3), (bdl.PoissonNLL(), 3),
        (bdl.ObservedNLL(bdl.GaussianNLL(0.5)), 3), (bdl.ObservedNLL(bdl.MultivariateNormalNLL()), 3),
    ],
    ids=repr,
)  # fmt: skip
def test_joined_slices_equal_the_whole_in_double_precision(likelihood, chains):
    """The same outputs for both. CRPS of laws that are not normal is an estimate from 1,000 draws, which differ.

    Its standard error is at most that of E|Y - y| with one error for all items: sqrt(E(Y - y)² / 1000).
    """
    random, networks, k = torch.Generator().manual_seed(3), 6, 2
    y = torch.randint(4, (31, k), generator=random).float()
    if isinstance(likelihood, bdl.ObservedNLL):  # half of the first slices' targets are missing, none of the last
        y[1:18, 1] = y[0, 0] = math.nan
    outputs = torch.randn(networks, 31, likelihood.num_outputs(k), generator=random)
    weights = torch.tensor([0.1, 0.0, 0.3, 0.2, 0.0, 0.4])
    numbers = [i % chains for i in range(networks)]

    def made(first: int, end: int) -> ValueEvaluation:
        evaluation = ValueEvaluation(likelihood, y[first:end], chains, first, 31)
        for i in range(0, networks, 3):
            evaluation.add(numbers[i : i + 3], outputs[i : i + 3, first:end], weights[i : i + 3])
        return evaluation

    whole, slices = made(0, 31), [made(*ends) for ends in ((0, 1), (1, 18), (18, 31))]
    stored = StoredOutputs()
    stored.add(outputs)
    sliced = join_slices(likelihood, [part.settled() for part in slices], stored)
    mean, std = whole.bma.mean, whole.bma.std
    error = math.sqrt(float((std.square() + (mean - y).square()).nanmean()) / 1000)
    expected = whole.metrics()
    assert "bma_weighted/crps" in expected
    for name, value in sliced.metrics().items():
        if name.endswith("crps"):  # a quadrature's steps depend on the items beside
            estimated = likelihood.counts
            tolerance = 4 * math.sqrt(2) * error if estimated else 1e-5 * float(std.max())
        else:
            tolerance = 1e-6 if name.split("_")[-1] in ("50", "90") or name.endswith("nll") else 1e-12
        assert value == pytest.approx(expected[name], abs=tolerance), name
    assert sliced.claim() == pytest.approx(whole.claim(), rel=1e-12)
    assert sliced.repeat_error() == pytest.approx(whole.repeat_error(), rel=1e-12)
    torch.testing.assert_close(sliced.losses(), whole.losses(), rtol=1e-12, atol=1e-12)
    for name in ("features", "quantities"):
        np.testing.assert_array_equal(getattr(sliced, name), getattr(whole, name))


def test_a_sample_that_vanishes_between_two_slices_is_refused(regression, monkeypatch):
    """With skip_bad it is left out, and slices of different posteriors are no evaluation of either."""
    monkeypatch.setattr(stored_outputs, "OUTPUTS_IN_MEMORY", 20 * PER_ITEM)
    posterior, passes, groups = bdl.Posterior.load(*regression[:2], skip_bad=True), [], Samples.groups

    def shorter(samples, used):
        passes.append(1)
        all_groups = list(groups(samples, used))
        return iter([next(all_groups[0].blocks(2))] if len(passes) > 1 else all_groups)

    monkeypatch.setattr(Samples, "groups", shorter)
    with pytest.raises(StoreError, match="^8 networks could be read at first, and then 2: the samples changed.*again$"):
        posterior.evaluate(TensorSlices(X, VALUES))


@pytest.mark.parametrize("size", [7, 40])
def test_items_that_are_not_finite_are_counted_in_one_warning(regression, monkeypatch, size):
    """One is in another slice than the others, and infinities of both signs are in one batch."""
    monkeypatch.setattr(stored_outputs, "OUTPUTS_IN_MEMORY", size * PER_ITEM)
    x = X.clone()
    x[3], x[31], x[33] = math.inf, -math.inf, math.nan
    with pytest.warns(bdl.BdlWarning, match="not finite") as seen:
        bdl.Posterior.load(*regression[:2]).evaluate(TensorSlices(x, VALUES, batch_size=10))
    assert [str(w.message).partition(" have")[0] for w in seen] == ["3 of 40 items, 3 the first,"]
