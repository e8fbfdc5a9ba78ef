"""Tests of `bdl.metrics`: its classes against the functions, in batches, and in parts that are merged as DDP does."""

import pytest
import torch

import bdl
from bdl import metrics
from bdl.errors import ConfigError
from bdl.posterior.metrics import classification_metrics, value_metrics
from bdl.posterior.mixture import PredictiveMixture
from bdl.posterior.ood import detection
from bdl.posterior.prediction import of_mixture
from bdl.posterior.stored_outputs import StoredOutputs

N = 60
random = torch.Generator().manual_seed(0)
PROBS = (2 * torch.randn(N, 4, generator=random)).softmax(-1)
PROBS[5:12] = PROBS[3]  # ties, also between the halves
PROBS[40:45] = PROBS[3]
LABELS = torch.multinomial(PROBS, 1, generator=random).squeeze(1)
MEANS, Y = torch.randn(3, N, 1, generator=random), torch.randn(N, generator=random)
SCORES, STRANGE = torch.randn(N, generator=random).round(decimals=1), torch.rand(N, generator=random) < 0.4
OF_CLASSES = classification_metrics(PROBS, LABELS)


def numbers(items: slice) -> bdl.ValuePrediction:
    """Three networks that predict normal laws."""
    stored = StoredOutputs()
    stored.add(MEANS[:, items])
    return of_mixture(PredictiveMixture(stored, bdl.GaussianNLL(0.7), torch.ones(3)))


OF_NUMBERS = value_metrics(numbers(slice(None)), Y)
CASES = {
    "nll of classes": (metrics.PredictiveNLL, lambda i: (PROBS[i], LABELS[i]), OF_CLASSES["nll"]),
    "nll of numbers": (metrics.PredictiveNLL, lambda i: (numbers(i), Y[i]), OF_NUMBERS["nll"]),
    "brier": (metrics.BrierScore, lambda i: (PROBS[i], LABELS[i]), OF_CLASSES["brier"]),
    "crps": (metrics.CRPS, lambda i: (numbers(i), Y[i]), OF_NUMBERS["crps"]),
    "coverage": (metrics.IntervalCoverage, lambda i: (numbers(i), Y[i]), OF_NUMBERS["coverage_90"]),
    "ece": (metrics.AdaptiveECE, lambda i: (PROBS[i], LABELS[i]), OF_CLASSES["ece_adaptive"]),
    "aurc": (metrics.AURC, lambda i: (PROBS[i], LABELS[i]), OF_CLASSES["aurc"]),
    "risk": (lambda **k: metrics.CoverageAtRisk(0.2, **k), lambda i: (PROBS[i], LABELS[i]), None),
    "ood": (metrics.OODDetection, lambda i: (SCORES[i], STRANGE[i]), detection(SCORES[~STRANGE], SCORES[STRANGE])),
}


def value_of(metric) -> object:
    value = metric.compute()
    return {k: v.item() for k, v in value.items()} if isinstance(value, dict) else value.item()


@pytest.mark.parametrize("name", CASES)
def test_batches_and_processes_add_up_to_the_function(name):
    """Batches of 7; and the states of two processes with 25 and 35 items, joined by the metric's own reductions."""
    make, batch, expected = CASES[name]
    whole, batched = make(), make()
    whole.update(*batch(slice(None)))
    for begin in range(0, N, 7):
        batched.update(*batch(slice(begin, begin + 7)))
    expected = value_of(whole) if expected is None else expected
    assert value_of(whole) == pytest.approx(expected, abs=1e-6)
    assert value_of(batched) == pytest.approx(expected, abs=1e-6)
    halves = [make(), make()]
    for metric, items in zip(halves, (slice(0, 25), slice(25, N)), strict=True):
        metric.update(*batch(items))
    assert value_of(halves[0]) != pytest.approx(expected, abs=1e-6)  # a half is not the whole
    gathered = gatherer(halves)
    joined = make(dist_sync_fn=gathered, distributed_available_fn=lambda: True, sync_on_compute=True)
    joined.update(*batch(slice(0, 25)))
    assert value_of(joined) == pytest.approx(expected, abs=1e-6)
    again = make()
    again.update(*batch(slice(25, N)))
    again.merge_state(halves[0])
    assert value_of(again) == pytest.approx(expected, abs=1e-6)


def gatherer(halves):
    """`gather_all_tensors` of two processes: the state of rank 0 is recognised, and that of rank 1 stands beside it."""
    states = [{name: getattr(metric, name) for name in metric._defaults} for metric in halves]
    flat = [{k: torch.cat(v) if isinstance(v, list) else v for k, v in state.items()} for state in states]

    def gather(value, group=None):
        name = next(k for k, v in flat[0].items() if v.shape == value.shape and torch.equal(v, value))
        return [flat[0][name], flat[1][name]]

    return gather


def test_a_prediction_is_as_good_as_its_probabilities():
    none = torch.zeros(N)
    prediction = bdl.Prediction(PROBS, none, none, none, torch.zeros_like(PROBS))
    for kind in (metrics.AURC, metrics.PredictiveNLL, metrics.BrierScore):
        assert kind()(prediction, LABELS) == kind()(PROBS, LABELS)


def test_bad_input_is_one_line():
    with pytest.raises(ConfigError, match="apply softmax"):
        metrics.AURC().update(PROBS.log(), LABELS)
    with pytest.raises(ConfigError, match="labels must be in 0 .. 3"):
        metrics.PredictiveNLL().update(PROBS, LABELS + 1)
    with pytest.raises(ConfigError, match="between 0 and 1"):
        metrics.IntervalCoverage(1.5)
    with pytest.raises(ConfigError, match="seen no item"):
        metrics.AdaptiveECE().compute()
