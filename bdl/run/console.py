"""What a command prints of an error: one line, with a remedy, and an exit status that is not 0."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bdl.errors import BdlError, Stopped


def one_line(error: BaseException) -> str:
    """The error as one line of text, Hydra's and OmegaConf's multi-line messages included."""
    cause: BaseException = error
    while cause.__cause__ is not None and "Error in call to target" in str(
        cause
    ):  # Hydra wraps what a constructor raised
        cause = cause.__cause__
    if type(cause).__name__ == "OverrideParseException":
        word = getattr(cause, "override", "")
        return f"{word} can't be read: a value with ~, =, spaces or the like wants quotes of its own, 'key=\"value\"'"
    text = " ".join(str(cause).split()) or type(cause).__name__
    key = re.search(r"full_key: (\S+)", str(error)) if cause is not error else None
    return text if key is None or isinstance(cause, BdlError) else f"{key[1]}: {text}"


def _one_line_warning(message: Warning | str, *_: object, **__: object) -> None:
    print(f"bdl: warning: {' '.join(str(message).split())}", file=sys.stderr)


def _say(line: str) -> None:
    print(f"bdl: {line}", file=sys.stderr)


@contextmanager
def one_line_errors(say: Callable[[str], None] = _say) -> Iterator[None]:
    """Say an error in one line and exit with 1, or 128 + the signal that stopped; `BDL_DEBUG=1` keeps the traceback."""
    shown, warnings.showwarning = warnings.showwarning, _one_line_warning
    try:
        yield
    except KeyboardInterrupt:
        say("interrupted; the same command goes on from the last checkpoint")
        sys.exit(130)
    except Stopped as stop:
        say(str(stop))
        sys.exit(128 + stop.signum)
    except Exception as error:
        if os.environ.get("BDL_DEBUG") == "1":
            raise
        say(one_line(error))
        sys.exit(1)
    finally:
        warnings.showwarning = shown
