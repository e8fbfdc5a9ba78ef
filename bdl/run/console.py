"""What a command says on the way: one line for an error, which names the remedy, and how much of long work is done."""

from __future__ import annotations

import errno
import logging
import os
import re
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import yaml
from hydra.errors import InstantiationException, OverrideParseException

from bdl.advice import override
from bdl.errors import BdlError, Stopped, printable, without_advice
from bdl.interrupts import line_of, signal_of
from bdl.run.config import config_folder
from bdl.run.suggestions import suggestion

EXTRAS = {"hydra/sweeper/optuna": "sweep", "hydra/launcher/submitit": "cluster"}  # Hydra's plugins -> bdl's extra
TRACEBACK = "Traceback (most recent call last)"
LACKING = re.compile("is not in struct|Could not delete from config|is no key of (this command|the \\w+ that was)")
LINES = 10  # the most lines of progress where there is no terminal
SILENT = 10.0  # seconds after which a log file has a first line


def quoted(word: str) -> str:
    """`key=value` as bash and Hydra take it, where the value is one word or a list of words without signs of Hydra's.

    >>> print(quoted("drop=[größe (m²),b]"), quoted("target={a=b"))
    drop=['"größe (m²)"',b] 'key="value"'
    """
    key, _, value = word.partition("=")
    listed = re.fullmatch(r"\[(.*)\]", value)
    text = listed[1] if listed else value
    if not text.strip() or re.search(r"[\[\]{}\"'\\]", text) or "," in value and not listed:
        return "'key=\"value\"'"
    return override(key, [part.strip() for part in text.split(",")] if listed else text)


def one_line(error: BaseException) -> str:
    """The error as one line of text, multi-line messages of Hydra and OmegaConf included."""
    cause: BaseException = error
    # Hydra wraps the error that a constructor raised. In an error from another process a page of text stands for it.
    while isinstance(cause, InstantiationException) and (inner := cause.__cause__) and TRACEBACK not in str(inner):
        cause = inner
    if isinstance(cause, OverrideParseException):
        word = cause.override
        if "=" not in word:
            return f"{word} has no key: write key=value"
        return f"{word} cannot be parsed: a value with ~, =, spaces or the like needs quotes, {quoted(word)}"
    if isinstance(cause, RecursionError):
        return (
            "a value or a file of the configuration is nested too deep: write it with fewer brackets inside each other"
        )
    if isinstance(cause, OSError) and cause.errno == errno.ENAMETOOLONG:
        return f"{str(cause.filename)[:60]}... is too long for the name of a file: give a shorter path"
    text = without_advice(joined(without_traceback(str(cause)))) or type(cause).__name__
    if isinstance(cause, MemoryError) or "can't allocate memory" in text:
        asked = f" for {int(found[1]) / 2**30:,.1f} GiB at once" if (found := ALLOCATED.search(text)) else ""
        return (
            f"there is no memory{asked}: take fewer chains (chains=1), smaller layers or batches, or a larger machine"
        )
    if ambiguous := re.match(r"Ambiguous value for argument '([^=]+)=(.*?)' 1\.", text):
        key, value = ambiguous.groups()
        return (
            f"{key}={value} may be a list or one word: {override(key, value.split(','))} is a list, "
            f"{override(key, value)} one word; -m makes a run of each"
        )
    for plugin, extra in EXTRAS.items():
        if f"Could not find '{plugin}" in text:
            return f"{plugin} is not installed: pip install 'bdl[{extra}]'"
    if (taken := next((word for word in sys.argv[1:] if word.startswith("~")), None)) and LACKING.search(text):
        return f"{taken} takes away what the command needs: leave it out, or choose another with {taken[1:]}=..."
    remedy = no_choice(text, sys.argv[1:]) or suggestion(text, command_of(), config_folder())
    if remedy is not None:
        return remedy
    key = re.search(r"full_key: (\S+)", str(error)) if cause is not error else None
    return text if key is None or isinstance(cause, BdlError) else f"{key[1]}: {text}"


def joined(text: str) -> str:
    """The lines of a text as one; blanks inside of a line stay, because they may be those of a column's name."""
    return " ".join(line.strip() for line in text.splitlines() if line.strip())


def command_of() -> str:
    """The command of this process, `train` where its name is none."""
    name = Path(sys.argv[0].split()[-1] if sys.argv[0] else "").stem
    return name if (config_folder() / f"{name}.yaml").exists() else "train"


@contextmanager
def silent_pipe() -> Iterator[None]:
    """End quietly, as a command of the shell does, where the reader of the output has gone, such as `| head`."""
    complaining, logging.raiseExceptions = logging.raiseExceptions, False  # a log on stdout would complain itself
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python would complain at its end
        sys.exit(128 + signal.SIGPIPE)
    finally:
        logging.raiseExceptions = complaining


def without_traceback(text: str) -> str:
    """The message itself, where the text of an error from another process holds a traceback, as of a worker of torch.

    >>> without_traceback("In worker 0. Traceback (most recent call last): ...\\nbdl.errors.ConfigError: a is b")
    'a is b'
    """
    return text.strip().splitlines()[-1].removeprefix("bdl.errors.ConfigError: ") if TRACEBACK in text else text


def no_choice(text: str, words: Sequence[str]) -> str | None:
    """The line that names the group, where Hydra's message is about a value such as model=null among these words."""
    if not text.startswith("Config group override must be a string"):
        return None
    for word in words:
        group, _, value = word.partition("=")
        folder = config_folder() / group
        if group and folder.is_dir() and not isinstance(yaml.safe_load(value), str):
            return f"{word}: {group} must be one of {', '.join(sorted(path.stem for path in folder.glob('*.yaml')))}"
    return None


ALLOCATED = re.compile(r"tried to allocate (\d+) bytes")  # as torch says it of the memory of the CPU
CONTINUES = "the same command continues from what is saved"
BEGINS_ANEW = "the same command begins again"


def _print_warning(message: Warning | str, *_: object, **__: object) -> None:
    print(printable(f"bdl: warning: {joined(str(message))}"), file=sys.stderr)


def _print_error(line: str) -> None:
    print(printable(f"bdl: {line}"), file=sys.stderr)


@contextmanager
def one_line_errors(report: Callable[[str], None] = _print_error, kept: str = CONTINUES) -> Iterator[None]:
    """Report an error in one line and exit with status 1, or 128 + the number of the signal that stopped the run.

    kept: what Ctrl-C and SIGTERM leave behind, where the work itself does not say it.

    The environment variable BDL_DEBUG=1 keeps the traceback.
    """
    show, warnings.showwarning = warnings.showwarning, _print_warning
    try:
        yield
    except (KeyboardInterrupt, Stopped) as error:
        report(line_of(error, kept))
        sys.exit(128 + (signal_of(error) or signal.SIGINT))
    except BrokenPipeError:
        raise  # `silent_pipe` handles it
    except Exception as error:
        if os.environ.get("BDL_DEBUG") == "1":
            raise
        report(one_line(error))
        sys.exit(1)
    finally:
        warnings.showwarning = show


class WorkProgress:
    """Shows the share that is done and the remaining time: a bar on a terminal, up to 11 lines in a log file.

    The first of these comes after ten seconds, however small the share is. Work that ends sooner than `seconds` shows
    nothing.

        with WorkProgress("evaluating") as progress:
            posterior.evaluate_all(loaders, progress)

    Args:
        name: the work, with which the lines begin.
        seconds: time until the first line, or the bar.
    """

    def __init__(self, name: str, seconds: float = 2.0):
        self.name, self.seconds, self._lines = name, seconds, -1

    def __enter__(self) -> WorkProgress:
        from rich import progress as rich  # slow to import

        columns = rich.BarColumn(), rich.TaskProgressColumn(), rich.TimeElapsedColumn(), rich.TimeRemainingColumn()
        self._bar = rich.Progress(rich.TextColumn(self.name), *columns, refresh_per_second=2)
        self._task = self._bar.add_task(self.name)
        self._began = time.perf_counter()
        return self

    def __call__(self, done: int, total: int) -> None:
        """Show that `done` of `total` is done, in any unit."""
        seconds = time.perf_counter() - self._began
        if seconds < self.seconds:
            return
        if self._bar.console.is_terminal:
            self._bar.update(self._task, completed=done, total=total)
            self._bar.start()  # does nothing if the bar has started
        elif (line := LINES * done // total) > max(self._lines, 0) or self._lines < 0 and seconds >= SILENT:
            self._lines = line
            left = seconds / done * (total - done)
            print(f"{self.name}: {done / total:.0%}, {seconds:.0f} s, {left:.0f} s left", flush=True)

    def __exit__(self, *_: object) -> None:
        if self._bar.live.is_started:
            self._bar.stop()
