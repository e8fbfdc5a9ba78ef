"""Tests of `bdl.posterior.doubt`: a recorded verdict is told once where samples are read again."""

import json
import warnings

import pytest
import toys
from by_hand import X
from test_verdict import GOOD

import bdl


def told(folder) -> list[str]:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        posterior = bdl.Posterior.load(folder, toys.plain())
        posterior.predict(X)
        posterior.predict(X)
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
def test_load_tells_the_verdict_of_the_run_once_and_predict_does_not_repeat_it(tmp_path, metrics, words):
    toys.sample(tmp_path, 6)
    if metrics is not None:
        (tmp_path / "metrics.json").write_text(metrics if isinstance(metrics, str) else json.dumps(metrics))
    found = told(tmp_path)
    assert len(found) == len(words) and all(w in f and str(tmp_path) in f for w, f in zip(words, found, strict=True))
