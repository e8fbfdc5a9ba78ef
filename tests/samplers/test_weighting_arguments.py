"""Tests of `bdl.samplers.weighting.weightings` and `.histogram`: refused arguments, forms by their names."""

from __future__ import annotations

import dataclasses
import math

import pytest

import bdl
from bdl.samplers.weighting.histogram import Form


@pytest.mark.parametrize(
    "arguments",
    [
        dict(zeta=-1.0), dict(zeta=1e10), dict(bins=1), dict(low=2.0, high=1.0), dict(low="5", high=5),
        dict(energy="sum"),
        dict(form="steep"), dict(units="kT"),
        dict(refresh=0), dict(low="0.1 %%"), dict(low="101%"), dict(high="3M"), dict(high=math.inf),
        pytest.param(dict(zeta=math.nan)), pytest.param(dict(low=math.nan, high=1.0)),
    ],
    ids=str,
)  # fmt: skip
def test_bad_arguments_are_refused(arguments):
    """The message names the offending value."""
    (value, *_) = arguments.values()
    with pytest.raises(bdl.errors.ConfigError, match=str(value)):
        bdl.AdaptiveWeight(**arguments)


@pytest.mark.parametrize("arguments", [dict(rise="steep"), dict(start="i/m"), dict(min_visits=-1)], ids=str)
def test_bad_arguments_of_a_form_are_refused(arguments):
    (value,) = arguments.values()
    with pytest.raises(bdl.errors.ConfigError, match=str(value)):
        Form(**arguments)


@pytest.mark.parametrize(
    ("kind", "name", "form"),
    [
        (bdl.AdaptiveWeight, "slides", Form("bounded", 10, "flat", True)),
        (bdl.AdaptiveWeight, "code", Form("log", 0, "linear", True)),
        (bdl.Contour, "slides", Form("clipped", 10, "flat", False)),
        (bdl.Contour, "code", Form("log", 0, "linear", False)),
    ],
)
def test_a_form_by_its_name(kind, name, form):
    assert kind(form=name).psi_form == form and len(dataclasses.fields(kind)) <= 12
