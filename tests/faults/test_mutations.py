"""Damaged files of a run: a command says so, or its result is the right one. Nothing ends in another error.

2,000 damages with --all-faults, a few hundred without. Hypothesis chooses them, the same ones in every run.
"""

import contextlib
import io
import shutil
import signal
from pathlib import Path

import pytest
from composing import compose
from fault_runs import TINY, training
from hypothesis import HealthCheck, given, settings
from injection import in_child, killed_at, recorded
from mutations import Damage, answered, damages, evaluated, resumed, verdict, verified

from bdl.run.jobs import NOTE

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def ended(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("ended") / "run"
    assert in_child(training(folder)).status == 0
    return folder


@pytest.fixture(scope="module")
def stopped(tmp_path_factory) -> Path:
    """Killed before its last checkpoint; the checkpoint before has a sample that awaits its energy."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    calls = recorded(training(folder), folder)
    at = max(k for k, call in enumerate(calls) if call == ("open", "checkpoints/last.writing"))
    shutil.rmtree(folder)
    assert in_child(training(folder), killed_at(at)).status == -signal.SIGKILL
    return folder


OPERATIONS = {
    "evaluate.py of an ended run": ("ended", lambda cfg: evaluated),
    "train.py of an ended run": ("ended", lambda cfg: lambda run: answered(run, cfg)),
    "evaluate.py of a stopped run": ("stopped", lambda cfg: evaluated),
    "train.py of a stopped run": ("stopped", lambda cfg: lambda run: resumed(run, cfg)),
}


def fault_of(run: Path, work, count: int, scratch: Path) -> str | None:
    """The first damage, shrunk, after which `work` is silently wrong or ends in an error; None without one."""
    copy = Path(shutil.copytree(run, scratch / "whole"))
    with contextlib.redirect_stdout(io.StringIO()):
        right = work(copy)

    @settings(
        max_examples=count, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck)
    )
    @given(damages(run))
    def silent(damage):
        fault = verdict(work, run, damage, right, scratch)
        assert fault is None, fault

    try:
        silent()
    except AssertionError as error:
        return str(error)
    return None


@pytest.mark.parametrize("operation", OPERATIONS)
def test_no_damage_is_silent(operation, tmp_path, request, all_faults):
    which, make = OPERATIONS[operation]
    assert fault_of(request.getfixturevalue(which), make(compose(*TINY)), 500 if all_faults else 25, tmp_path) is None


def test_verify_names_every_damage_of_an_ended_run(ended, tmp_path, all_faults):
    """But for checkpoints, which an ended run does without, notes for `bdl status`, and changes that change no byte."""
    whole = verified(ended)

    @settings(
        max_examples=500 if all_faults else 100, derandomize=True, database=None, deadline=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(damages(ended))
    def named(damage):
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(ended, copy)
        damage.apply(copy)
        changed = {name for name, data in contents(ended).items() if contents(copy).get(name) != data}
        if any(not name.startswith(("checkpoints/", NOTE, "progress-")) for name in changed):
            assert verified(copy) != whole, damage

    named()


def contents(run: Path) -> dict[str, bytes]:
    return {str(path.relative_to(run)): path.read_bytes() for path in run.rglob("*") if path.is_file()}


def test_the_damages_are_seen_where_nothing_looks(ended, tmp_path):
    """A negative control: a reader that trusts metrics.json blindly fails."""

    def trusting(run: Path) -> bytes:
        return (run / "metrics.json").read_bytes()

    right = trusting(ended)
    for how, fault in (("another digit", "another result without a word"), ("deleted", "FileNotFoundError")):
        assert fault in str(verdict(trusting, ended, Damage(how, "metrics.json", "", 0.9, 1), right, tmp_path))
    assert verdict(trusting, ended, Damage("emptied", "timing.json", "", 0.0, 1), right, tmp_path) is None
