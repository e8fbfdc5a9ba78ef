"""Tests of `bdl.posterior.student`."""

from __future__ import annotations

import subprocess
import sys

import pytest
from scipy import special

from bdl.posterior.student import student_factor


@pytest.mark.parametrize("chains", [2, 3, 4, 5, 10, 17, 64, 1000])
def test_the_factor_is_that_of_scipy(chains):
    assert student_factor(chains) == pytest.approx(special.stdtrit(chains - 1, 0.975) / special.ndtri(0.975), rel=1e-9)


def test_a_verdict_needs_no_scipy():
    code = """
import sys
from bdl.posterior.judge_law import error_factor
from bdl.posterior.judgements import Numbers
assert error_factor(Numbers({"chains": 10.0})) > 1
assert "scipy.special" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
