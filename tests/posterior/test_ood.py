"""Out-of-distribution scores against scikit-learn, and against the networks of a posterior one by one."""

import numpy as np
import pytest
import torch
import toys
from sklearn import metrics
from torch.func import functional_call

import bdl
from bdl.data.loader import TensorSlices
from bdl.errors import ConfigError
from bdl.posterior.ood import detection


@pytest.mark.parametrize("ties", [False, True])
def test_detection_is_that_of_scikit_learn(ties):
    """Scores of any range: torchmetrics would take negative ones for logits, and round large ones together."""
    random = np.random.default_rng(0)
    inside, outside = 50 * random.normal(size=300) - 1e4, 50 * random.normal(size=200) - 1e4 + 40
    if ties:
        inside, outside = inside.round(-1), outside.round(-1)
    scores, strange = np.concatenate([inside, outside]), np.repeat([0, 1], [300, 200])
    false_alarms, found, _ = metrics.roc_curve(strange, scores, drop_intermediate=False)
    assert detection(torch.from_numpy(inside), torch.from_numpy(outside)) == {
        "auroc": pytest.approx(metrics.roc_auc_score(strange, scores), abs=1e-6),
        "aupr": pytest.approx(metrics.average_precision_score(strange, scores), abs=1e-6),
        "fpr95": pytest.approx(false_alarms[np.argmax(found >= 0.95)], abs=1e-6),
    }


@pytest.mark.parametrize("strange", [20, 40, 100, 980, 1000])
def test_the_threshold_finds_95_percent_where_20_divides(strange):
    """Every strange item has a score of its own, between two of the data: one item more is one false alarm more."""
    inside, outside = torch.arange(0.0, strange), torch.arange(0.5, strange)
    missed = strange // 20
    assert detection(inside, outside)["fpr95"] == pytest.approx((strange - missed - 1) / strange, abs=1e-6)


def test_scores_that_say_nothing():
    same = torch.ones(30)
    assert detection(same, same[:10]) == {"auroc": 0.5, "aupr": pytest.approx(0.25), "fpr95": 1.0}
    with pytest.raises(ConfigError, match="finite scores"):
        detection(same, torch.tensor([torch.nan]))
    with pytest.raises(ConfigError, match="0 strange"):
        detection(same, torch.ones(0))


def test_the_scores_are_those_of_the_networks(tmp_path):
    """Tensors and loaders alike. The energy is the mean over networks, no function of the average."""
    toys.sample(tmp_path)
    posterior = bdl.Posterior.load(tmp_path, toys.plain())
    x, y = toys.tensors()
    far = 5 * x
    found = bdl.ood(posterior, TensorSlices(x, y), far)
    scores = []
    for data in (x, far):
        logits = torch.stack([functional_call(posterior.net, s.tensors, (data,)) for s in posterior.stream()]).detach()
        p = logits.softmax(-1)
        entropy = torch.special.entr(p.mean(0)).sum(-1)
        information = entropy - torch.special.entr(p).sum(-1).mean(0)
        scores.append({"entropy": entropy, "mutual_information": information, "energy": -logits.logsumexp(-1).mean(0)})
    for name in scores[0]:
        for metric, value in detection(scores[0][name], scores[1][name]).items():
            assert found[f"{name}/{metric}"] == pytest.approx(value, abs=2e-3), name  # rounding swaps a few pairs
    assert len(found) == 9
