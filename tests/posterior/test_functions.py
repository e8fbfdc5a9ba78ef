"""Tests of `bdl.contrib.functions`: each network's outputs and draws, lazily and in slices; one network kept."""

import numpy as np
import pytest
import torch
import toys
from by_hand import X, probabilities

import bdl
from bdl.errors import ConfigError
from bdl.posterior.store import SampleStore


def by_hand(run) -> torch.Tensor:
    """(samples, n, K) softmax of the outputs, chain by chain in the order of the steps."""
    return probabilities(run).transpose(0, 1).flatten(0, 1)


def test_outputs_are_those_of_every_network_in_the_order_of_chains(run, posterior):
    outputs = posterior.outputs(X)
    expected = by_hand(run)
    assert len(outputs) == posterior.samples and outputs.shape == expected.shape
    torch.testing.assert_close(outputs[:].softmax(-1), expected)
    np.testing.assert_allclose(np.asarray(outputs), outputs[:])
    torch.testing.assert_close(torch.stack(list(outputs)), outputs[:])
    torch.testing.assert_close(outputs.weights, torch.full((len(outputs),), 1 / len(outputs)).double())


SLICES = [
    3,
    -1,
    slice(2, 5),
    slice(None, None, 3),
    [4, 0],
    (2, slice(1, 4)),
    (slice(1, 3), slice(None, 5), 0),
    slice(0, 0),
]
SLICES += [(slice(0, 2), [5, 1]), (0, 2, 1), (slice(1, 3), slice(8, 2, -2)), (1, slice(-3, None))]  # fmt: skip


@pytest.mark.parametrize("index", SLICES, ids=str)
def test_a_slice_is_that_of_all_outputs(posterior, index):
    if not isinstance(index, tuple) or not any(isinstance(i, slice) and (i.step or 1) < 0 for i in index):
        torch.testing.assert_close(posterior.outputs(X)[index], posterior.outputs(X)[:][index])
    else:
        with pytest.raises(ValueError, match="step"):
            posterior.outputs(X)[index]


def test_one_network_reads_its_file_alone_and_items_of_a_slice_alone(posterior, monkeypatch):
    read, seen = [], []
    monkeypatch.setattr(SampleStore, "read", lambda self, r, do=SampleStore.read: read.append(r) or do(self, r))
    fresh = bdl.Posterior.load([s.run_dir for s in posterior.stores], toys.plain())
    forward = type(fresh.stored.forward())
    monkeypatch.setattr(
        forward, "evaluate", lambda self, t, x, do=forward.evaluate: seen.append(len(x)) or do(self, t, x)
    )
    fresh.outputs(X)[2, 3:5]
    assert len(read) == 1 and seen == [2]


def test_draws_of_y_have_the_noise_of_y(run, posterior):
    """A network draws 2,000 labels for one item: their shares are its probabilities, to 5 standard errors."""
    draws, p = posterior.draws(X[:1].repeat(2000, 1)), by_hand(run)[4, 0]
    shares = torch.bincount(draws[4].long(), minlength=len(p)) / 2000
    assert (abs(shares - p) < 5 * (p * (1 - p) / 2000).sqrt()).all()
    assert torch.equal(draws[3:5][1], draws[4]) and not torch.equal(draws[3], draws[4])
    assert not torch.equal(posterior.draws(X[:1].repeat(2000, 1), seed=1)[4], draws[4])


def test_a_function_is_kept_when_the_network_moves_on(posterior):
    one = posterior.function(5)
    torch.testing.assert_close(one(X), posterior.outputs(X)[5])
    with torch.no_grad():
        next(posterior.net.parameters()).add_(1.0)
    torch.testing.assert_close(one(X), posterior.outputs(X)[5])
    assert not one.training and not any(p.requires_grad for p in one.parameters())
    drawn = [posterior.function(seed=seed)(X) for seed in range(4)]
    assert torch.equal(drawn[0], posterior.function(seed=0)(X)) and any(not torch.equal(d, drawn[0]) for d in drawn)
    with pytest.raises(ConfigError, match="i must be the number of one of the"):
        posterior.function(posterior.samples)


def test_groups_of_arviz_are_left_out_and_thinned_on_demand(run, posterior):
    from bdl.data import TensorSlices

    data = TensorSlices(X, torch.zeros(len(X), dtype=torch.int64))
    whole = posterior.to_arviz(data)
    few = posterior.to_arviz(data, log_likelihood=False, posterior_predictive=2)
    assert "log_likelihood" not in few.children and few["posterior_predictive"].sizes["draw"] == 2
    draws = whole["posterior_predictive"]["y"].values
    np.testing.assert_array_equal(few["posterior_predictive"]["y"], draws[:, [0, -1]])
    assert few["posterior"].sizes == whole["posterior"].sizes
    with pytest.raises(ConfigError, match="posterior_predictive must be a whole number of at least 1, got 0"):
        posterior.to_arviz(data, posterior_predictive=0)
