"""Steps from a time."""

from bdl.tune.budget import FEWEST, choose_steps


def test_steps_fill_what_start_up_and_report_leave():
    found = choose_steps(600, per_step=0.01, stacks=1, before=20, after=5)
    assert found.value == 50_000  # 575 s at 11.5 ms
    assert choose_steps(600, 0.01, 2, 20, 5).value == 25_000


def test_a_budget_that_is_too_short_still_takes_some_steps():
    assert choose_steps(10, 0.01, 1, 20, 5).value == FEWEST
