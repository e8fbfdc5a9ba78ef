"""Tests of `bdl.contrib.thin`: the chosen networks against a search by hand, their scores, and their store."""

import itertools
import math

import pytest
import torch
import toys
from by_hand import NUMBERS_X, NUMBERS_Y, X, Y, of_file
from repeats import slow_where

import bdl
from bdl.data import TensorBatches, TensorSlices
from bdl.errors import ConfigError, StoreError
from bdl.posterior.samples import Samples
from bdl.schedules import EveryStep

HELD_OUT = toys.tensors(seed=7)
TEST = TensorSlices(X, Y)


def nll(probs: torch.Tensor, y: torch.Tensor) -> float:
    return float(-probs[torch.arange(len(y)), y].log().mean())


def each_network(posterior, x: torch.Tensor) -> dict[tuple[int, int], torch.Tensor]:
    """(n, K) probabilities of every network by (chain, step), one network at a time."""
    found = {}
    for sample in posterior.stream():
        net = toys.plain()
        net.load_state_dict(sample.tensors)
        with torch.no_grad():
            found[sample.chain, sample.record.step] = net(x).softmax(-1)
    return found


def test_the_networks_are_those_of_a_search_by_hand(posterior):
    """Each one lowers the NLL of the average more than any other would; all sets are scored one by one."""
    x, y = HELD_OUT
    probs = each_network(posterior, x)
    wanted = []
    for _ in range(4):
        left = [key for key in probs if key not in wanted]
        wanted.append(min(left, key=lambda key: nll(torch.stack([probs[k] for k in [*wanted, key]]).mean(0), y)))
    small = posterior.thin(4, TensorSlices(x, y), by="nll")
    assert small.thinning.networks == wanted
    # The best of all sets of two is no better than what a search of one after the other misses
    best = min(nll((probs[a] + probs[b]) / 2, y) for a, b in itertools.combinations(probs, 2))
    assert posterior.thin(2, TensorSlices(x, y), by="nll").thinning.scores["chosen"] >= best - 1e-6


def test_never_worse_than_evenly_spaced_where_it_was_chosen(posterior):
    x, y = HELD_OUT
    for k in range(1, posterior.samples + 1):
        scores = posterior.thin(k, TensorSlices(x, y), by="nll").thinning.scores
        assert scores["chosen"] <= scores["spaced"], k
        assert scores["spaced"] == pytest.approx(nll(posterior.as_module(samples=k)(x), y), rel=1e-5)
    assert scores["chosen"] == pytest.approx(scores["all"], rel=1e-9)


def test_where_evenly_spaced_is_better_it_is_taken():
    """One after the other can end worse: A alone is best, and B with C together are better than A with any."""
    from bdl.contrib.thin import Densities, thin_out

    p = torch.tensor([[0.5, 0.5], [1.0, 0.01], [0.01, 1.0]])
    densities = Densities.of(p.log().unsqueeze(1), torch.full((1, 2), 0.5))
    assert densities.chosen(2)[0] == 0
    keys = [(0, 1), (0, 2), (0, 3)]
    thinning = thin_out(2, [(0, 2), (0, 3)], "nll", keys, densities)
    assert thinning.networks == [(0, 2), (0, 3)] and thinning.scores["chosen"] == thinning.scores["spaced"]
    assert densities.score(densities.chosen(2)) > thinning.scores["chosen"]


def test_the_scores_are_those_of_the_predictions(posterior):
    """On the items that chose, and on others, against `predict` and `evaluate` of the thinned posterior."""
    x, y = HELD_OUT
    small = posterior.thin(3, TensorSlices(x, y), by="nll", test=TEST)
    scores = small.thinning.scores
    assert scores["chosen"] == pytest.approx(nll(small.predict(x).probs, y), rel=1e-5)
    assert scores["all"] == pytest.approx(nll(posterior.predict(x).probs, y), rel=1e-5)
    assert scores["test/nll/chosen"] == pytest.approx(small.evaluate(TEST).metrics()["bma/nll"], rel=1e-5)
    assert scores["test/nll/all"] == pytest.approx(posterior.evaluate(TEST).metrics()["bma/nll"], rel=1e-5)
    assert scores["test/nll/spaced"] == pytest.approx(nll(posterior.as_module(samples=3)(X), Y), rel=1e-5)
    assert "thinned from 16" in repr(small) and "3 of 16" in repr(small.thinning)


def test_without_labels_the_divergence_from_the_average_decides(posterior):
    average = posterior.predict(X).probs.double()
    small = posterior.thin(3, X)
    kl = (average * (average.log() - small.predict(X).probs.double().log())).sum(-1).mean()
    scores = small.thinning.scores
    assert small.thinning.by == "divergence" and scores["all"] == 0
    assert scores["chosen"] == pytest.approx(float(kl), rel=1e-3, abs=1e-6)
    spaced = posterior.as_module(samples=3)(X).double()
    assert scores["spaced"] == pytest.approx(float((average * (average / spaced).log()).sum(-1).mean()), rel=1e-3)


@pytest.mark.parametrize("labels", slow_where(bool, [True, False]))
def test_numbers_with_and_without_labels(of_numbers, labels):
    by = "nll" if labels else "divergence"
    small = of_numbers.thin(3, TensorSlices(NUMBERS_X, NUMBERS_Y), by=by)
    scores = small.thinning.scores
    assert scores["chosen"] <= scores["spaced"]
    if labels:
        of_all, of_small = (-p.predict(NUMBERS_X).log_density(NUMBERS_Y).mean().item() for p in (of_numbers, small))
        assert scores["all"] == pytest.approx(of_all, rel=1e-4) and scores["chosen"] == pytest.approx(
            of_small, rel=1e-4
        )
    else:
        of_all, of_small = of_numbers.predict(NUMBERS_X), small.predict(NUMBERS_X)
        y = of_all.draw(2000)
        gaps = torch.stack([of_all.log_density(one) - of_small.log_density(one) for one in y]).double()
        error = gaps.mean(1).std() / len(gaps) ** 0.5
        assert scores["chosen"] == pytest.approx(float(gaps.mean()), abs=5 * float(error))


NUMBERS = torch.cat([NUMBERS_Y, -NUMBERS_Y], 1)
CLASSES = torch.cat([NUMBERS_Y > 0, NUMBERS_Y > 1], 1).long()
FIRST = torch.zeros_like(CLASSES, dtype=torch.bool)
FIRST[0, 1] = True
SEVERAL = [  # outputs of the network, likelihood and labels (n, 2)
    (4, bdl.ObservedNLL(bdl.HeteroscedasticNLL()), NUMBERS.masked_fill(FIRST, torch.nan)),
    (5, bdl.MultivariateNormalNLL(), NUMBERS),
    (5, bdl.MultiCategoricalNLL((2, 3)), CLASSES.masked_fill(FIRST, -100)),
]


@pytest.mark.parametrize("outputs, likelihood, y", SEVERAL, ids=["numbers with gaps", "correlated", "classes"])
def test_the_targets_of_an_item_are_scored_together(outputs, likelihood, y, tmp_path):
    net, data = bdl.models.MLP((3, 4, outputs)), TensorSlices(NUMBERS_X, y)
    module = toys.module(net, 2, likelihood, lr=0.01)
    keep = bdl.CollectSamples(EveryStep(0, 2), tmp_path)
    toys.trainer(tmp_path, 8, [keep]).fit(module, TensorBatches(NUMBERS_X, y, 10, chains=2))
    posterior = bdl.Posterior.load(tmp_path, net)
    each = torch.stack([-likelihood(of_one.double(), y) for of_one in posterior.outputs(NUMBERS_X)])
    expected = math.log(len(each)) - float(each.logsumexp(0).mean())
    assert posterior.thin(2, data, by="nll").thinning.scores["all"] == pytest.approx(expected, rel=1e-5)


def test_it_predicts_with_so_many_networks_and_no_more(posterior, monkeypatch):
    small, seen = posterior.thin(2, TEST), []
    blocks = Samples.groups

    def counted(self, used):
        for group in blocks(self, used):
            seen.append(len(group))
            yield group

    monkeypatch.setattr(Samples, "groups", counted)
    small.predict(X)
    assert sum(seen) == 2 == small.samples == small.chains
    seen.clear()
    posterior.predict(X)
    assert sum(seen) == 16


def test_it_is_saved_and_loaded(posterior, tmp_path):
    small = posterior.thin(3, TEST)
    small.save(tmp_path / "small")
    loaded = bdl.Posterior.load(tmp_path / "small", toys.plain())
    assert "likelihood  CategoricalNLL()" in repr(loaded)
    assert loaded.samples == 3 and torch.equal(loaded.predict(X).probs, small.predict(X).probs)
    assert loaded.records[0].lr == [r.lr for r in small.records for _ in r.chains]
    evaluated = loaded.evaluate(TEST).metrics()
    assert evaluated == pytest.approx(small.evaluate(TEST).metrics(), nan_ok=True)
    with pytest.raises(StoreError, match="holds samples already"):
        small.save(tmp_path / "small")
    with pytest.raises(ConfigError, match="only what thin"):
        posterior.save(tmp_path / "all")
    tensors = loaded.stores[0].read(loaded.records[0])
    torch.testing.assert_close(of_file(tensors, toys.plain()).mean(0), small.predict(X).probs)


def test_a_part_of_a_network_is_saved_with_the_frozen_rest(tmp_path):
    toys.sample(tmp_path / "run", only="4.*" if hasattr(toys.plain(), "4") else "2.*", chains=None)
    posterior = bdl.Posterior.load(tmp_path / "run", toys.plain())
    small = posterior.thin(2, TEST)
    small.save(tmp_path / "small")
    loaded = bdl.Posterior.load(tmp_path / "small", toys.plain())
    assert torch.equal(loaded.predict(X).probs, small.predict(X).probs)


def test_what_cannot_be_thinned_so_is_refused(posterior):
    for k in (0, 17):
        with pytest.raises(ConfigError, match="k must be between 1 and the 16 networks"):
            posterior.thin(k, TEST)
    with pytest.raises(ConfigError, match="the uniform average was thinned"):
        posterior.thin(2, TEST).predict(X, "step_size")
