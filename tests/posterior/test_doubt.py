"""Tests of `bdl.posterior.doubt`: a recorded verdict is told once where samples are read again."""

from __future__ import annotations

import json
import warnings

import pytest
import torch
from test_verdict import GOOD
from torch import nn

import bdl


@pytest.fixture
def run(tmp_path):
    net, store = nn.Linear(2, 3), bdl.SampleStore(tmp_path)
    sampler = bdl.Sampler(net.parameters(), bdl.SGLD(), num_data=10, lr=0.1)
    x, y = torch.randn(10, 2), torch.arange(10) % 3

    def closure():
        sampler.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        return loss

    for _ in range(3):
        sampler.step(closure)
        store.append(sampler, net, bdl.CategoricalNLL())
    return tmp_path, net


def told(run, net, **kwargs) -> list[str]:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        posterior = bdl.Posterior.load(run, net, likelihood=bdl.CategoricalNLL())
        posterior.predict(torch.randn(4, 2))
        posterior.predict(torch.randn(4, 2))
    assert all(warning.filename == __file__ for warning in said)
    return [str(w.message) for w in said if issubclass(w.category, bdl.VerdictWarning)]


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        (None, []),
        (GOOD, []),
        (GOOD | {"ess/min": 150.0, "ess/within": 160.0}, ["verdict: more samples. ESS"]),
        (GOOD | {"temperature": 0.0, "t_eff": None}, ["verdict: no posterior. Temperature"]),
        ("damaged", []),
        ({"a": "b"}, []),
    ],
)
def test_load_tells_the_verdict_of_the_run_once_and_predict_does_not_repeat_it(run, metrics, words):
    folder, net = run
    if metrics is not None:
        (folder / "metrics.json").write_text(metrics if isinstance(metrics, str) else json.dumps(metrics))
    found = told(folder, net)
    assert len(found) == len(words) and all(w in f and str(folder) in f for w, f in zip(words, found, strict=True))
