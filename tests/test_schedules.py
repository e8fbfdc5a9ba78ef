"""Schedules against their formulas, and the cycle that lr, temperature and keep-rule share."""

import math
import sys

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bdl.schedules import (
    Constant,
    Cosine,
    Cycle,
    CyclicalCosine,
    EveryStep,
    Exponential,
    PerCycle,
    Polynomial,
    Ramp,
    StepDecay,
    Warmup,
    WhileSampling,
    keep_rule,
)

STEPS = st.integers(0, 10**6)
RATES = st.floats(1e-4, 10)
few = settings(max_examples=50, deadline=None)


@st.composite
def cycles(draw) -> Cycle:
    count = draw(st.integers(1, 7))
    return Cycle(draw(st.integers(count, 300)), count, draw(st.floats(0, 0.99)))


@st.composite
def per_cycle(draw) -> PerCycle:
    cycle = draw(cycles())
    assume(cycle.sampling_steps > 0)
    return PerCycle(cycle, draw(st.integers(1, cycle.sampling_steps)))


def kept(keep, steps: int) -> list[int]:
    return [k for k in range(1, steps + 1) if keep(k)]


VALUES = {
    "polynomial has a floor": (Polynomial(1.0, 1.0, 1.0, floor=0.1), {0: 1, 4: 1 / 5, 8: 1 / 9, 10: 0.1, 100: 0.1}),
    "step decay has milestones": (StepDecay(0.8, [3, 5], factor=0.5), {0: 0.8, 2: 0.8, 3: 0.4, 4: 0.4, 5: 0.2, 6: 0.2}),
    "exponential has a floor": (Exponential(1.0, 0.1, floor=0.05), {2: 0.05}),
    "warm-up of no steps is the schedule": (Warmup(Constant(0.3), 0), {0: 0.3}),
    "ramp waits, rises and stays": (Ramp(2.0, 4, start=1.0, begin=3), {0: 1, 3: 1, 4: 1.25, 5: 1.5, 7: 2, 100: 2}),
    "ramp of no steps is a jump": (Ramp(2.0, 0, begin=3), {2: 0.0, 3: 2.0}),
    "cyclical lr has a floor": (CyclicalCosine(0.5, Cycle(100, 1), floor=0.1), {99: 0.1}),
}


@pytest.mark.parametrize("name", VALUES)
def test_a_schedule_has_these_values(name):
    schedule, expected = VALUES[name]
    assert {k: schedule(k) for k in expected} == pytest.approx(expected)


@few
@given(RATES, STEPS)
def test_constant_is_its_value(value, step):
    assert Constant(value)(step) == value


@few
@given(RATES, st.floats(0.1, 100), st.floats(0.1, 1), STEPS)
def test_polynomial_is_a_over_b_plus_k_to_the_gamma(a, b, gamma, step):
    assert Polynomial(a, b, gamma)(step) == pytest.approx(a / (b + step) ** gamma)


@few
@given(RATES, st.floats(0.1, 1), st.integers(1, 50), st.integers(0, 40), st.integers(0, 40), st.integers(0, 200))
def test_exponential_decays_between_start_and_stop(initial, rate, every, start, length, step):
    expected = initial * rate ** (min(max(step - start, 0), length) / every)
    assert Exponential(initial, rate, every, start, start + length)(step) == pytest.approx(expected)


@few
@given(RATES, RATES, st.integers(1, 1000), st.integers(0, 2000))
def test_cosine_is_half_a_cosine(initial, final, steps, step):
    phase = min(step, steps) / steps
    expected = final + (initial - final) * math.cos(math.pi * phase / 2) ** 2
    assert Cosine(initial, steps, final)(step) == pytest.approx(expected, abs=1e-12)


@few
@given(RATES, st.integers(1, 50), st.integers(0, 100))
def test_warm_up_rises_linearly_to_the_schedule_it_holds(value, steps, step):
    assert Warmup(Constant(value), steps)(step) == pytest.approx(value * min(1, (step + 1) / steps))


def test_warm_up_starts_above_zero_and_hands_over():
    inner = Polynomial(1.0)
    schedule = Warmup(inner, 4, start=0.2)
    assert schedule(0) == pytest.approx(0.2 + (inner(0) - 0.2) / 4)
    assert [schedule(k) for k in (3, 4, 9)] == [inner(k) for k in (3, 4, 9)]


@few
@given(cycles(), st.floats(0.01, 2), st.integers(0, 400))
def test_cyclical_lr_is_the_cosine_of_zhang_et_al_counted_from_0(cycle, initial, k):
    length = math.ceil(cycle.steps / cycle.cycles)
    expected = initial / 2 * (math.cos(math.pi * (k % length) / length) + 1)
    assert CyclicalCosine(initial, cycle)(k) == pytest.approx(expected, abs=1e-12)


def test_each_cycle_restarts_at_the_initial_lr():
    cycle = Cycle(40, 4)
    schedule = CyclicalCosine(0.5, cycle)
    assert [schedule(k) for k in (0, 10, 20, 30)] == [0.5] * 4
    assert schedule(9) < schedule(8) < schedule(5) == pytest.approx(0.25)


@few
@given(cycles(), st.integers(0, 400))
def test_noise_is_injected_in_the_sampling_part_only(cycle, k):
    length = math.ceil(cycle.steps / cycle.cycles)
    expected = 0.7 if k % length / length >= cycle.explore else 0.0
    assert WhileSampling(0.7, cycle)(k) == expected


@few
@given(per_cycle())
def test_states_are_kept_only_after_steps_with_injected_noise(keep):
    temperature = WhileSampling(1.0, keep.cycle)
    assert all(temperature(step - 1) == 1.0 for step in kept(keep, keep.cycle.steps))


@few
@given(per_cycle())
def test_every_whole_cycle_keeps_its_samples_and_last_at_its_end(keep):
    length = keep.cycle.length
    for i in range(keep.cycle.steps // length):
        of_cycle = [k for k in kept(keep, (i + 1) * length) if k > i * length]
        assert len(of_cycle) == keep.samples
        assert of_cycle[-1] == (i + 1) * length
        assert {keep.cycle_of(k) for k in of_cycle} == {i}
        assert len({b - a for a, b in zip(of_cycle, of_cycle[1:], strict=False)}) <= 1  # evenly spaced


@few
@given(per_cycle(), st.integers(0, 400))
def test_count_of_cyclical_keeping_is_the_number_kept(keep, steps):
    assert keep.count(steps) == len(kept(keep, steps))


@few
@given(st.integers(0, 100), st.integers(1, 30), st.integers(0, 400))
def test_count_of_every_step_is_the_number_kept(burn_in, every, steps):
    keep = EveryStep(burn_in, every)
    assert keep.count(steps) == len(kept(keep, steps))


def test_every_step_keeps_after_burn_in_at_its_spacing():
    assert kept(EveryStep(4, 3), 14) == [7, 10, 13]


def test_a_keep_rule_does_not_search_through_the_cycle():
    """It is called at every step, and a search over the 25,000 steps of a cycle would take milliseconds.

    The test counts calls of Python functions.
    """
    keep, calls = PerCycle(Cycle(100_000, 4), 10), 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event == "call"

    keep(24_000)
    sys.setprofile(count)
    try:
        keep(24_000)
    finally:
        sys.setprofile(None)
    assert calls < 100


def test_keep_rule_follows_the_cycle_where_there_is_one():
    cycle = Cycle(100, 2)
    assert keep_rule(None, 10, 5, 3) == EveryStep(10, 5)
    assert keep_rule(cycle, 10, 5, 3) == PerCycle(cycle, 3)
