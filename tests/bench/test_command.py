"""tools/command.py: every script of a room has a command line, which its `main` describes."""

import pkgutil
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import benchmarks
import experiments
import pytest
from running import done
from tools.command import Said, UsageError, run

NAMES = [(entry, module.name) for entry, room in (("bench", benchmarks), ("experiment", experiments))
         for module in pkgutil.iter_modules(room.__path__)]  # fmt: skip
called = []


def main(
    name: str,
    *rest: Annotated[Path, Said(metavar="FILE")],
    seeds: Sequence[int] = (0,),
    kind: Annotated[str, Said("of it", choices=["a", "b"])] = "a",
    quick: bool = False,
    at_most: int | None = None,
) -> None:
    if quick:
        raise UsageError("not today")
    called.append((name, rest, list(seeds), kind, at_most))


@pytest.mark.parametrize("words, expected", [
    (["x"], ("x", (), [0], "a", None)),
    (["x", "f", "--seeds", "1", "2", "--kind", "b"], ("x", (Path("f"),), [1, 2], "b", None)),
    (["--at-most", "3", "x", "f", "g"], ("x", (Path("f"), Path("g")), [0], "a", 3)),
])  # fmt: skip
def test_main_gets_what_the_line_says(words, expected):
    run(main, words)
    assert called.pop() == expected


@pytest.mark.parametrize("words, message", [
    ([], "required: name"), (["x", "--kind", "c"], "invalid choice: 'c'"), (["x", "--quick"], "not today"),
])  # fmt: skip
def test_a_wrong_line_ends_with_status_2(words, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        run(main, words)
    assert message in capsys.readouterr().err and called == []


@pytest.mark.parametrize("entry, name", NAMES)
def test_every_script_of_a_room_tells_its_command_line(entry, name, script):
    assert f"usage: {entry}.py {name}" in done(script(entry, name, "--help"))


def test_an_unknown_experiment_is_refused_with_the_names_there_are(script):
    status, _, _ = script("experiment", "nothing")
    assert "candidates, continual" in str(status)
