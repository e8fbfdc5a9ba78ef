"""The command line of a script, read off the arguments of its `main`.

    def main(name: str, *overrides: str, seeds: Sequence[int] = (0, 1), out: Path = TABLES, quick: bool = False): ...

takes `NAME [OVERRIDES ...] [--seeds N ...] [--out DIR] [--quick]`. The docstring of its module is the text of --help,
and `Annotated[int, Said("of each scenario")]` says more of one argument.
"""

import argparse
import inspect
import pkgutil
import sys
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin


class UsageError(Exception):
    """Words of a command line that do not go together: ends the command with status 2, as argparse does."""


@dataclass(frozen=True)
class Said:
    """What --help says of an argument, the name that it shows, and the values that there are, if they are few."""

    help: str = ""
    metavar: str | None = None
    choices: Iterable[str] | None = None


def run_named(room: str, otherwise: str | None = None) -> None:
    """Run the script of a room that the command line names first. otherwise: the script for a line without a name."""
    names = [module.name for module in pkgutil.iter_modules(import_module(room).__path__)]
    words = sys.argv[1:]
    if words and words[0] in names:
        run(import_module(f"{room}.{words[0]}").main, words[1:], f"{Path(sys.argv[0]).name} {words[0]}")
    elif otherwise is not None:
        run(import_module(f"{room}.{otherwise}").main, words, Path(sys.argv[0]).name)
    else:
        sys.exit(f"name one of scripts/{room}: {', '.join(names)}")


def run(main: Callable[..., object], words: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Call `main` as a command line says, by default that of this process."""
    from bdl.run.console import one_line_errors

    parser = argparse.ArgumentParser(
        prog, description=inspect.getmodule(main).__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parameters = inspect.signature(main, eval_str=True).parameters.values()
    for parameter in parameters:
        add(parser, parameter)
    values = vars(parser.parse_intermixed_args(words))
    named = {p.name: values[p.name] for p in parameters if p.kind is p.KEYWORD_ONLY}
    placed = [v for p in parameters if p.kind is not p.KEYWORD_ONLY
              for v in (values[p.name] if p.kind is p.VAR_POSITIONAL else [values[p.name]])]  # fmt: skip
    with one_line_errors():
        try:
            main(*placed, **named)
        except UsageError as error:
            parser.error(str(error))


def add(parser: argparse.ArgumentParser, parameter: inspect.Parameter) -> None:
    """Let the parser take what is handed to this parameter."""
    kind, said = parameter.annotation, Said()
    if get_origin(kind) is Annotated:
        kind, said = get_args(kind)
    if get_origin(kind) in (Union, types.UnionType):
        kind = get_args(kind)[0]  # the other one is None
    several, is_option = get_origin(kind) is Sequence, parameter.kind is parameter.KEYWORD_ONLY
    takes: dict[str, Any] = {"help": said.help or None}
    if kind is bool:
        takes |= {"action": "store_true"}
    else:
        takes |= {"type": get_args(kind)[0] if several else kind, "metavar": said.metavar, "choices": said.choices}
    if parameter.kind is parameter.VAR_POSITIONAL:
        takes |= {"nargs": "*", "choices": said.choices and [*said.choices, []]}  # argparse looks for [] in them too
    elif several:
        takes |= {"nargs": "+"}
    if parameter.default is not parameter.empty:
        takes |= {"default": parameter.default} | ({} if is_option else {"nargs": "?"})
    elif is_option:
        takes |= {"required": True}
    name = f"--{parameter.name.replace('_', '-')}" if is_option else parameter.name
    parser.add_argument(name, **takes)
