"""Tests of `bdl.posterior.energy_histogram`.

What the report says of a weighting: numbers from a histogram, and a sentence for each.
"""

import math

import numpy as np
import pytest

from bdl.posterior.energy_histogram import EnergyHistogram, weighting_metrics, weighting_sentences

ENERGIES = np.linspace(0.5, 9.5, 1000)


def histogram(slope: float, zeta: float = 2.0, T: float = 0.5, **arguments) -> EnergyHistogram:
    """log psi rises by `slope` per nat over ten bins of one nat."""
    return EnergyHistogram(
        np.linspace(0, 10, 11),
        slope * np.arange(10),
        ENERGIES,
        zeta,
        T,
        **(dict(depth=12.0, depth_error=2.0) | arguments),
    )


def test_numbers_of_a_constant_pull():
    """The multiplier is 1 + zeta T slope everywhere, and plain sampling shows these energies at T over it."""
    m = weighting_metrics([histogram(3.0)])
    assert m["weighting/multiplier"] == m["weighting/multiplier_95"] == pytest.approx(4)
    assert m["weighting/plain_temperature"] == pytest.approx(0.5 / 4)
    assert m["weighting/depth"] == 12 and m["weighting/bin_width"] == 1
    assert m["weighting/lowest_share"] == pytest.approx(0.5 / 9, abs=1e-2)


def test_sentences_say_whether_it_did_anything():
    strong, weak = (" ".join(weighting_sentences(weighting_metrics([histogram(s)]))) for s in (3.0, 0.01))
    assert "multiplied the gradient by 4 " in strong and "next to nothing" not in strong
    assert (
        "at a temperature of about 0.12" in strong and "The energies lie 12 ± 2 nats of log G below the top" in strong
    )
    assert "so it changed next to nothing" in weak


@pytest.mark.parametrize("error", [4.0, math.nan])
def test_a_depth_with_too_large_an_error_is_not_told(error: float):
    lines = " ".join(weighting_sentences(weighting_metrics([histogram(3.0, depth_error=error)])))
    assert (
        "is not known, because psi does not rest there or too few bins" in lines
        and "12" not in lines.split("How many")[1]
    )


@pytest.mark.parametrize(
    "ess, biased, words",
    [
        (math.nan, math.nan, "not available"),
        (40.0, 0.0, "40.0 effective samples of 80"),
        (40.0, 1.0, "mean little"),
        (40.0, math.nan, "may be biased: full_energy=true"),
    ],
)
def test_a_sentence_on_importance_weights(ess, biased, words):
    m = weighting_metrics([histogram(1.0)]) | {"weight_ess": ess, "weights_biased": biased, "samples": 80.0}
    assert words in weighting_sentences(m)[-1]


def test_the_noise_of_an_energy_stands_beside_the_width_of_a_bin():
    m = weighting_metrics([histogram(1.0)]) | {"energy/batch_error": 238.0}
    assert "A bin is 1 nats wide, and the energy of one batch errs by 238." in weighting_sentences(m)


def test_without_a_weighting_nothing_is_said():
    assert weighting_metrics([]) == {} and weighting_sentences({"test/bma/nll": 0.2}) == []


def test_multipliers_of_all_chains(weighted):
    """Each chain's energies go through its own psi; the metrics see all of them."""
    from bdl.posterior.store import SampleStore

    store = SampleStore(weighted)
    histograms, (saved, _) = EnergyHistogram.read_all(store, 0), store.weighting(0)
    assert saved is not None and len(histograms) == saved["recent_energies"].shape[1] == 2
    each = [weighting_metrics([h])["weighting/multiplier"] for h in histograms]
    by_hand = [np.median(h.multiplier_at(saved["recent_energies"][:, c].numpy())) for c, h in enumerate(histograms)]
    np.testing.assert_allclose(each, by_hand)
    assert each[0] != each[1]
    assert min(each) <= weighting_metrics(histograms)["weighting/multiplier"] <= max(each)
