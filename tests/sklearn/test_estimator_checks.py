"""scikit-learn's own checks of an estimator."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

import bdl
from bdl.sklearn import BayesianMLPClassifier, BayesianMLPRegressor

# Enough for scikit-learn's blobs, and a fit takes a tenth of a second
SMALL = dict(
    hidden_layer_sizes=(8,), start=bdl.AdamWStart(lr=0.05, epochs=12), chains=2, samples=2, steps=6, prior_std=1.0
)
# The posteriors are equal (tests/likelihoods/test_weighted.py), but not the draws: N, and so the step, differ
DRAWS = "the same posterior by another sample, and columns are standardised without weights"
FAILED = {f"check_sample_weight_equivalence_on_{kind}_data": DRAWS for kind in ("dense", "sparse")}


@parametrize_with_checks([BayesianMLPClassifier(**SMALL)], expected_failed_checks=lambda model: FAILED)
def test_check_classifier(estimator, check):
    check(estimator)


@pytest.mark.slow  # most checks are of what both estimators have from one base
@parametrize_with_checks([BayesianMLPRegressor(**SMALL)], expected_failed_checks=lambda model: FAILED)
def test_check_regressor(estimator, check):
    check(estimator)
