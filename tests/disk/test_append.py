"""A line is appended whole or not at all."""

import resource
import signal

import pytest
from injection import in_child

from bdl.disk.files import append_line
from bdl.errors import StoreError

FIRST, SECOND = b"a" * 60 + b"\n", b"b" * 60 + b"\n"


def limited(size: int) -> None:
    """Files of this process end at so many bytes: a write across the end takes a part, and the next one fails."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def test_a_line_that_does_not_fit_leaves_nothing_and_fits_later(tmp_path):
    path = tmp_path / "lines"
    append_line(path, FIRST)

    def work() -> None:
        limited(100)
        with pytest.raises(StoreError, match="cannot write .*lines: File too large"):
            append_line(path, SECOND)
        assert path.read_bytes() == FIRST
        limited(resource.RLIM_INFINITY)
        append_line(path, SECOND)

    assert in_child(work).status == 0
    assert path.read_bytes() == FIRST + SECOND


def test_half_a_line_of_a_killed_writer_is_cut_and_stays_away(tmp_path):
    path = tmp_path / "lines"
    path.write_bytes(FIRST + SECOND[:30])
    assert in_child(lambda: append_line(path, SECOND), lambda: limited(80)).status == 70  # its StoreError
    assert path.read_bytes() == FIRST
    append_line(path, SECOND)
    assert path.read_bytes() == FIRST + SECOND
