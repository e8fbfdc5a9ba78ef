"""Every command line that the README and the pages of docs/ show is one: it composes and its values are taken."""

import functools
import os
import pkgutil
import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest
from composing import CONF, compose
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from pages import CONTRIBUTING, PAGES, commands
from tools.command import run

from bdl.run.command import with_key
from bdl.run.help import ABOUT
from bdl.run.keys import check_keys
from bdl.run.sweeps import of_each_job

ROOMS = {"bench": ("benchmarks", "speed"), "experiment": ("experiments", None)}
INLINE = re.compile(r"`((?:bdl|python scripts/)[^`\n]+)`")


def shown() -> list[tuple[str, str, list[str]]]:
    """(page, command, its words): of bash blocks, and of code in the text. Those with ... or NAME stand for others."""
    lines = []
    for page in [*PAGES, CONTRIBUTING]:
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        for words in [*commands(page), *map(shlex.split, INLINE.findall(text))]:
            scripts = [i for i, word in enumerate(words) if re.fullmatch(r"scripts/\w+\.py", word)]
            start = scripts[0] if scripts else 1 if words[0] == "bdl" and len(words) > 1 else None
            if start is None or {"...", "NAME", "COMMAND", "--help"} & set(words) or "hydra.searchpath" in str(words):
                continue
            name, rest = Path(words[start]).stem, words[start + 1 :]
            lines.append((page.stem, name, rest))
            if (name, rest[:1]) == ("bench", ["table"]):
                lines.append((page.stem, "train", [word for word in rest[2:] if "=" in word]))
    return lines


SHOWN = shown()
COMPOSED = [line for line in SHOWN if line[1] in ABOUT]
PARSED = [line for line in SHOWN if line[1] in (*ROOMS, "reproduce")]


def line_of(value) -> str:
    return value if isinstance(value, str) else " ".join(value)


def jobs(overrides: list[str]) -> list[list[str]]:
    """The jobs that a command line runs: one, or those of its sweep. Hydra's own options and seeds are left out."""
    kept = [o for o in overrides if "=" in o and not o.startswith(("hydra", "seed=", "-"))]
    parsed = [first_of_interval(o) for o in OverridesParser.create().parse_overrides(kept)]
    return [list(job) for batch in BasicSweeper.split_arguments(parsed, max_batch_size=None) for job in batch]


def first_of_interval(override: Override) -> Override:
    if not override.is_interval_sweep():
        return override
    return OverridesParser.create().parse_override(f"{override.key_or_group}={override.value().start}")


@pytest.mark.parametrize("page, name, words", COMPOSED, ids=line_of)
def test_a_command_composes_and_its_values_are_taken(page, name, words):
    for job in jobs(with_key(name, [os.path.expandvars(word) for word in words])):
        folder = ["run_dir=outputs/a"] if name == "train" else []
        check_keys(name, compose(*job, *folder, command=name), HydraConfig.get(), CONF)
    if "-m" in words:  # Hydra first composes a configuration without what is swept
        given = [word for word in of_each_job(name, words, CONF) if not word.startswith("-")]
        fixed = [
            each.input_line for each in OverridesParser.create().parse_overrides(given) if not each.is_sweep_override()
        ]
        compose(*fixed, command=name)


@pytest.mark.parametrize("page, name, words", PARSED, ids=line_of)
def test_a_script_takes_its_words(page, name, words):
    room, otherwise = ROOMS.get(name, (None, None))
    module = name
    if room is not None:
        names = [module.name for module in pkgutil.iter_modules(import_module(room).__path__)]
        chosen, *words = words if words and words[0] in names else [otherwise, *words]
        module = f"{room}.{chosen}"
    main, calls = import_module(module).main, []
    run(functools.wraps(main)(lambda *values, **named: calls.append(values)), words)
    assert len(calls) == 1


def test_the_pages_show_many_command_lines():
    names = [name for _, name, _ in SHOWN]
    assert {name for name in names} >= {*ABOUT, *ROOMS, "reproduce"}, "a command that no page shows"
    assert names.count("train") >= 60 and len(PARSED) >= 30
    assert any(len(jobs(words)) == 3 for _, name, words in COMPOSED if name == "train"), "a sweep is one job"
