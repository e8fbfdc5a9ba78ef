"""The parts of experiments that have known answers: energies in one dimension, and races on the ten functions."""

import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from literature.energies import Wells, bounded_log, fixed_point, log_psi_at
from literature.experiment import Context, on_all_cores
from literature.functions_race import (
    DESCENT,
    METHODS,
    Job,
    Phase,
    Plan,
    best,
    build,
    decided,
    race,
    race_all,
    tune_and_report,
)
from literature.targets import PUBLISHED, Chains, GaussianLaw, SumSquares, integrate
from literature.targets.base import value_and_grad

import bdl


def test_the_wells_have_the_gradient_of_their_energy():
    x = torch.linspace(-5, 5, 40, dtype=torch.float64)[:, None]
    assert torch.allclose(Wells().grad(x), value_and_grad(Wells().energy, x)[1])


def test_the_fixed_point_is_the_energy_cdf_for_zeta_one():
    """Within .025 with 40 bins, because a rise 1 - θ_(J-1)/θ_J is less than that of log θ; most in the lowest bin,
    where it is largest. For ζ = 2 the fixed point misses G^(1/ζ) by more than .1."""
    law = integrate(GaussianLaw([0.0], [[1.0]]), -9, 9, 100_000)
    edges = np.linspace(0, 6, 41)
    truth = law.energy_cdf(edges[1:]).numpy()
    truth[-1] = 1  # the top bin holds all above
    assert np.abs(fixed_point(law, edges, 1.0) - truth).max() < 0.025
    assert np.abs(fixed_point(law, edges, 2.0) - truth**0.5).max() > 0.1
    assert bounded_log(np.array([1e-9, 0.5, 1.0])) == pytest.approx([-1.5, -0.5, 0], abs=1e-6)


def test_a_race_finds_the_iterations_of_descent_exactly():
    """On the sum of squares f after k steps of descent is known, and so is the first k below the threshold."""
    settings = replace(PUBLISHED["sum_squares"], start=(-5, 10), threshold=1.5)
    start = settings.draw(3, 20, torch.Generator().manual_seed(0))
    lanes = [(DESCENT, 1.0), (DESCENT, 100.0)]  # the second one diverges
    group = build(SumSquares(20), settings, lanes, start, seed=0).sampler.param_groups[0]
    exact = Chains(  # the same chains without gradient noise
        SumSquares(20), bdl.SGLD(), start.repeat(2, 1), lr=group["lr"], temperature=group["temperature"]
    )
    iterations = race(exact, settings, [DESCENT] * 2, Phase("", 500, 3))
    i = torch.arange(1, 21, dtype=torch.float64)
    below = torch.stack([(i * ((1 - 0.02 * i) ** k * start) ** 2).sum(1) < 1.5 for k in range(500)])
    assert torch.equal(iterations[0], below.double().argmax(0).double())
    assert iterations[1].isinf().all()


def test_the_best_lr_counts_failures_as_the_cap():
    trials = {(DESCENT, 1.0): torch.tensor([10.0, math.inf]), (DESCENT, 3.0): torch.tensor([40.0, 50.0])}
    assert best(DESCENT, trials, cap=100) == 3.0
    assert best(DESCENT, {(DESCENT, f): torch.tensor([math.inf]) for f in (0.3, 1.0, 3.0)}, cap=100) == 1.0


def test_a_race_is_decided_only_when_nobody_can_overtake():
    iterations, running = torch.tensor([5.0, 7.0, math.inf, 2.0]), torch.tensor([False, False, True, False])
    phase = Phase("", 100, 2)
    assert not decided(iterations, running, [DESCENT] * 2, phase, 6)  # the second lane could finish at (6 + 2) / 2
    assert decided(iterations, running, [DESCENT] * 2, phase, 11)


def test_tuning_and_report_differ_in_starts_and_repeat_exactly():
    plan = Plan((3.0,), Phase("tuning", 40, 2), Phase("report", 40, 2), Phase("report", 40, 2))
    job, lanes = Job("sum_squares", plan, 0), [(m, 3.0) for m in METHODS if m.tuned]
    tuning, report = (race_all(job, lanes, phase) for phase in (plan.tuning, plan.report))
    assert all(not torch.equal(tuning[lane], report[lane]) for lane in lanes)
    again = tune_and_report(job)
    assert set(again) == {m.name for m in METHODS}
    assert all(torch.equal(again[m.name][1], report[m, factor]) for m, factor in lanes)


PLAN = Plan((1.0,), Phase("tuning", 3, 1), Phase("report", 3, 1), Phase("report", 3, 1))


def test_jobs_can_be_pickled():
    job = Job("sphere", PLAN, 0)
    assert pickle.loads(pickle.dumps((tune_and_report, job))) == (tune_and_report, job)


@pytest.mark.slow
def test_processes_give_the_results_of_one():
    jobs = [Job(name, PLAN, 0) for name in ("sphere", "levy")]
    alone, spawned = (list(on_all_cores(tune_and_report, jobs, Context(quick, seed=0))) for quick in (True, False))
    for one, two in zip(alone, spawned, strict=True):
        assert all(torch.equal(one[m.name][1], two[m.name][1]) for m in METHODS)


def test_log_psi_is_linear_between_centres_and_above_them():
    edges, log_psi = np.array([1.0, 3.0, 5.0, 7.0]), np.array([-4.0, -1.0, 0.0])  # centres 2, 4, 6
    u = np.array([0.0, 2.0, 3.0, 5.5, 9.0])
    assert log_psi_at(u, log_psi, edges) == pytest.approx([-4.0, -4.0, -2.5, -0.25, 1.5])
