"""Tests of `bdl.run.threads`: one rule for how many threads torch has, at every door, and none is left changed."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bdl
from bdl.errors import ConfigError
from bdl.run import threads
from bdl.run.threads import on_threads, thread_count
from bdl.sklearn import BayesianMLPClassifier


class Counting(nn.Module):
    """Notes how many threads torch has whenever it is called."""

    seen: set[int] = set()

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x):
        Counting.seen.add(torch.get_num_threads())
        return self.layer(x)


@pytest.fixture
def user_has_three():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    Counting.seen = set()
    yield
    torch.set_num_threads(before)


def sample(folder, **arguments):
    data = TensorDataset(torch.randn(12, 2), torch.arange(12) % 2)
    loader = DataLoader(data, batch_size=6)
    bdl.sample(Counting(), None, loader, folder, steps=8, lr=1e-3, accelerator="cpu", test=loader, **arguments)
    return loader


@pytest.mark.parametrize(("asked", "had"), [({}, 1), ({"threads": 2}, 2), ({"threads": None}, 5)])
def test_sampling_and_reports_have_the_threads_that_were_asked_for(tmp_path, user_has_three, monkeypatch, asked, had):
    monkeypatch.setattr(threads, "usable_cores", lambda: 5)
    loader = sample(tmp_path, **asked)
    assert (Counting.seen, torch.get_num_threads()) == ({had}, 3)
    Counting.seen = set()
    bdl.report(tmp_path, Counting(), {"test": loader}, likelihood=bdl.CategoricalNLL(), **asked)
    assert (Counting.seen, torch.get_num_threads()) == ({had}, 3)


def test_an_estimator_has_one_thread(user_has_three, monkeypatch):
    seen, predicted = [], bdl.Posterior.predicted
    monkeypatch.setattr(
        bdl.Posterior, "predicted", lambda *a, **k: (seen.append(torch.get_num_threads()), predicted(*a, **k))[1]
    )
    x = np.random.default_rng(0).normal(size=(20, 2))
    settings = dict(hidden_layer_sizes=2, chains=2, samples=4, steps=20, lr=0.01, temperature=1.0, prior_std=1.0)
    BayesianMLPClassifier(**settings, start=None).fit(x, x[:, 0] > 0).predict(x)
    assert set(seen) == {1} and torch.get_num_threads() == 3


def test_threads_are_given_back_after_an_error(user_has_three):
    with pytest.raises(ValueError), on_threads():
        raise ValueError
    assert torch.get_num_threads() == 3


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "all"])
def test_no_number_of_threads(tmp_path, wrong):
    with pytest.raises(ConfigError, match=f"threads must be a whole number >= 1, or None for all cores, got {wrong!r}"):
        sample(tmp_path, threads=wrong)
    assert not any(tmp_path.iterdir())


def test_all_cores_are_shared_among_processes(monkeypatch):
    monkeypatch.setattr(threads, "usable_cores", lambda: 8)
    assert [thread_count(), thread_count(None), thread_count(None, 3), thread_count(2, 3)] == [1, 8, 2, 2]
