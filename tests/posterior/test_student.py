"""Tests of `bdl.posterior.student`."""

import pytest
from scipy import stats

from bdl.posterior.student import student_factor


@pytest.mark.parametrize("chains", [2, 5, 1000])
def test_the_factor_is_that_of_both_laws(chains):
    assert student_factor(chains) == pytest.approx(stats.t.ppf(0.975, chains - 1) / stats.norm.ppf(0.975), rel=1e-9)
