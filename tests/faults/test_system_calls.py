"""Kills and full disks at chosen calls of the system: the same command goes on, to the byte.

Without --all-faults, the last call of each kind on each kind of file stands for all, thinned to a bound.
"""

import shutil
import signal
from pathlib import Path

import pytest
from fault_runs import files, goes_on, refused, training
from injection import GROWS, chosen, full_from, in_child, killed_at, recorded

pytestmark = pytest.mark.faults
PARTS = 4  # so that several processes can share them


class Undisturbed:
    """A run without faults, its files, and the calls that it makes."""

    def __init__(self, folder: Path):
        self.folder = folder / "whole"
        self.calls = recorded(training(self.folder), self.folder)
        self.files = files(self.folder)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Undisturbed:
    return Undisturbed(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def stopped(whole, tmp_path_factory) -> tuple[Path, list[tuple[str, str]]]:
    """A run killed before its last checkpoint, with samples after the one before; and the calls of going on."""
    folder = tmp_path_factory.mktemp("stopped") / "a"
    at = max(k for k, call in enumerate(whole.calls) if call == ("open", "checkpoints/last.writing"))
    assert in_child(training(folder), killed_at(at)).status == -signal.SIGKILL
    copy = Path(shutil.copytree(folder, folder.with_name("copy")))
    return folder, recorded(training(copy), copy)


@pytest.mark.parametrize("part", range(PARTS))
def test_a_kill_at_any_call_loses_nothing(whole, tmp_path, part, all_faults):
    for k in chosen(whole.calls, 8, all_faults)[part::PARTS]:
        folder = tmp_path / str(k)
        assert in_child(training(folder), killed_at(k)).status == -signal.SIGKILL, (k, whole.calls[k])
        assert goes_on(folder) == whole.files, (k, whole.calls[k])


@pytest.mark.parametrize("part", range(PARTS))
def test_a_second_kill_while_it_goes_on_loses_nothing(whole, stopped, tmp_path, part, all_faults):
    before, calls = stopped
    for k in chosen(calls, 4, all_faults)[part::PARTS]:
        folder = Path(shutil.copytree(before, tmp_path / str(k)))
        assert in_child(training(folder), killed_at(k)).status == -signal.SIGKILL, (k, calls[k])
        assert goes_on(folder) == whole.files, (k, calls[k])


@pytest.mark.parametrize("once", [False, True], ids=["stays full", "full once"])
@pytest.mark.parametrize("part", range(PARTS))
def test_a_disk_full_at_any_call_is_one_line_and_loses_nothing(whole, tmp_path, part, once, all_faults):
    growing = [k for k, (what, _) in enumerate(whole.calls) if what in GROWS]
    numbers = chosen([whole.calls[k] for k in growing], 4, all_faults)[part::PARTS]
    for k in [growing[i] for i in numbers]:
        folder = tmp_path / str(k)
        ended = in_child(training(folder), full_from(k, once))
        if ended.status:
            assert "No space left on device" in refused(ended), (k, whole.calls[k])
        else:
            assert files(folder) == whole.files, (k, whole.calls[k])
        assert goes_on(folder) == whole.files, (k, whole.calls[k])
