"""Tests of `bdl.posterior.report.zoom`: the numbers of a picture are those that were drawn."""

import base64
import json

import numpy as np
from matplotlib.figure import Figure

from bdl.posterior.report.figures import drawn
from bdl.posterior.report.zoom import ZOOM_LEVELS, lines_of


def decoded(text: str, low: float, high: float) -> np.ndarray:
    levels = np.frombuffer(base64.b64decode(text), "<u2").astype(float)
    return np.where(levels > ZOOM_LEVELS, np.nan, low + (high - low) * levels / ZOOM_LEVELS)


def test_lines_of_each_axis_decode_to_half_a_level():
    x, y = np.arange(50.0), np.random.default_rng(0).normal(size=50) * 1e4
    y[7], constant = np.nan, np.full(50, 3.0)

    def draw(scale: float) -> Figure:
        figure = Figure()
        top, bottom = figure.subplots(2)
        top.plot(x, scale * y, color="#123456", lw=2, alpha=0.5, label="a chain")
        top.axhline(0)  # its x is no step
        top.plot(x, y, ls="", marker="|")  # marks are no line
        bottom.plot(x, constant)
        bottom.set_yscale("log")
        bottom.set_ylabel("rate")
        return figure

    top, bottom = json.loads(lines_of(drawn(draw, (2.0,), "svg", {})[0]))
    (line,), (flat,) = top["lines"], bottom["lines"]
    assert (line["colour"], line["width"], line["alpha"], line["label"]) == ("#123456", 2, 0.5, "a chain")
    assert not top["log"] and bottom["log"] and bottom["name"] == "rate" and flat["label"] == ""
    seen = decoded(line["y"], *line["ends"])
    np.testing.assert_array_equal(np.isnan(seen), np.isnan(y))
    half = (np.nanmax(2 * y) - np.nanmin(2 * y)) / ZOOM_LEVELS / 2
    np.testing.assert_allclose(seen, 2 * y, rtol=0, atol=1.001 * half)
    np.testing.assert_allclose(
        decoded(line["x"], *top["x"]), x, rtol=0, atol=1.001 * np.ptp(top["x"]) / ZOOM_LEVELS / 2
    )
    np.testing.assert_allclose(decoded(flat["y"], *flat["ends"]), constant)
    left, low, right, high = top["box"]
    assert 0 < left < right < 1 and bottom["box"][3] < low < high < 1
