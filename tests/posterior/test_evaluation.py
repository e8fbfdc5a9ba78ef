"""Tests of `bdl.posterior.evaluation` and `.class_evaluation`, against scores computed by hand from every sample."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import toys
from by_hand import X, Y, probabilities
from torch.utils.data import DataLoader, TensorDataset

import bdl
from bdl.data import TensorSlices
from bdl.errors import ConfigError
from bdl.posterior.class_evaluation import ClassEvaluation
from bdl.posterior.metrics import value_means
from bdl.posterior.value_evaluation import ValueEvaluation


def test_one_sample_and_the_averages_against_hand_computed_ones(run, posterior):
    p = probabilities(run)
    evaluation = posterior.evaluate(TensorSlices(X, Y))
    torch.testing.assert_close(evaluation.one_sample, p[-1])
    torch.testing.assert_close(evaluation.chain_bma, p.mean(0))
    torch.testing.assert_close(evaluation.bma, p.mean((0, 1)))
    metrics = evaluation.metrics()
    assert metrics["bma/nll"] == pytest.approx(F.nll_loss(p.mean((0, 1)).log(), Y).item(), rel=1e-5)
    each = [F.nll_loss(p[-1, c].log(), Y).item() for c in range(2)]
    assert metrics["one_sample/nll"] == pytest.approx(sum(each) / 2, rel=1e-5)
    assert evaluation.curve.samples == list(range(2, 17, 2))
    assert evaluation.curve.nll[-1] == pytest.approx(metrics["bma/nll"], rel=1e-5)
    assert evaluation.log_probs.shape == (2, 8, len(X))
    np.testing.assert_allclose(evaluation.log_probs[1, 3, 5], p[3, 1, 5, Y[5]].log(), rtol=1e-5)


def test_an_evaluation_shows_its_scores(posterior):
    evaluation = posterior.evaluate(TensorSlices(X, Y))
    lines, metrics = str(evaluation).splitlines(), evaluation.metrics()
    assert lines[0] == f"ClassEvaluation of {len(X)} items by 2 chains"
    assert f"  bma         accuracy {metrics['bma/accuracy']:.3g}, nll {metrics['bma/nll']:.3g}" in lines
    assert "ValueEvaluation of 3 items by 1 chain" == str(ValueEvaluation(bdl.GaussianNLL(0.5), torch.zeros(3, 1), 1))


@pytest.mark.parametrize("draws", [3, 10, 13])
def test_scores_of_the_last_ten_samples_one_by_one(draws):
    torch.manual_seed(0)
    logits, y = torch.randn(draws, 2, 40, 3), torch.randint(3, (40,))
    evaluation = ClassEvaluation(bdl.CategoricalNLL(), y, 2)
    for both in logits:
        evaluation.add([0, 1], both)
    last = logits[-10:]
    losses = F.cross_entropy(last.flatten(0, 2), y.repeat(2 * len(last)))
    metrics = evaluation.metrics()
    assert metrics["last_ten/nll"] == pytest.approx(losses.item(), rel=1e-5)
    right = (last.argmax(-1) == y).double()
    assert metrics["last_ten/accuracy"] == pytest.approx(right.mean().item())
    assert metrics["last_ten/accuracy_se"] == pytest.approx(right.mean((0, 2)).std().item() / 2**0.5)
    averages = (logits.softmax(-1).mean(0).argmax(-1) == y).double().mean(1)
    assert metrics["chain_bma/accuracy_se"] == pytest.approx(averages.std().item() / 2**0.5)


def test_the_rmse_of_the_last_ten_samples_is_a_mean_of_rmses():
    torch.manual_seed(0)
    means, y = torch.randn(13, 1, 40, 1), torch.randn(40, 1)
    evaluation = ValueEvaluation(bdl.GaussianNLL(0.5), y, 1)
    for one in means:
        evaluation.add([0], one)
    errors = (means[-10:, 0] - y).square()
    metrics = evaluation.metrics()
    assert metrics["last_ten/rmse"] == pytest.approx(errors.mean((1, 2)).sqrt().mean().item(), rel=1e-5)
    losses = errors.double() / (2 * 0.25) + np.log(0.5 * np.sqrt(2 * np.pi))
    assert metrics["last_ten/nll"] == pytest.approx(losses.mean().item(), rel=1e-5)


def test_each_prediction_of_numbers_is_scored_once_and_none_that_nobody_asks_for(monkeypatch):
    seen = []
    monkeypatch.setattr("bdl.posterior.value_evaluation.value_means", lambda p, y: seen.append(p) or value_means(p, y))
    torch.manual_seed(0)
    evaluation = ValueEvaluation(bdl.GaussianNLL(0.5), torch.randn(40, 1), 3)
    evaluation.add([0, 1, 2], torch.randn(3, 40, 1))
    of_average = evaluation.metrics(["bma"])
    assert len(seen) == 1
    every = evaluation.metrics()
    assert of_average == {name: value for name, value in every.items() if name.startswith(("bma/", "last_ten/"))}
    assert len(seen) == 1 + 3 + 3  # the average, each chain's last sample, each chain's average
    evaluation.means_of("bma"), evaluation.means_of("one_sample")
    assert len(seen) == 7
    evaluation.add([0, 1, 2], torch.randn(3, 40, 1))
    assert evaluation.metrics(["bma"])["bma/nll"] != of_average["bma/nll"]


def test_the_importance_weighted_average(weighted):
    posterior = bdl.Posterior.load(weighted, toys.plain())
    w, p = posterior.weights("importance").by_key, probabilities(weighted)
    each = [sum(w.get((c, r.step), 0.0) * p[i, c] for i, r in enumerate(posterior.records)) for c in range(2)]
    torch.testing.assert_close(posterior.predict(X, "importance").probs, (each[0] + each[1]) / 2)
    torch.testing.assert_close(posterior.evaluate(TensorSlices(X, Y)).bma_weighted, (each[0] + each[1]) / 2)


def test_a_shuffling_loader_pairs_inputs_with_their_own_labels(posterior):
    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(X, Y), batch_size=16, shuffle=True)
    expected = posterior.evaluate(TensorSlices(X, Y)).metrics()
    shuffled = posterior.evaluate(loader).metrics()
    # The last bit of a probability may move an item to another bin
    names = [k for k in expected if "ece" not in k and "brier_" not in k]
    assert [shuffled[k] for k in names] == pytest.approx([expected[k] for k in names])
    assert shuffled.keys() == expected.keys()


def test_evaluation_needs_labels(posterior):
    with pytest.raises(ConfigError, match=r"needs a loader of \(x, y\) batches"):
        posterior.evaluate([X])
