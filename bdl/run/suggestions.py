"""The key or choice that is nearest to one that does not exist, from the files of conf/."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher, get_close_matches
from pathlib import Path
from typing import Any

import yaml

GLOBAL = "experiment"  # a group whose files hold keys of other sections
MISSING = re.compile(r"Could not override '([^']+)'")
NO_CHOICE = re.compile(
    r"Could not find '([^']+)/([^'/]+)'\s+Available options in '[^']+':\s+(.*?)\s+Config search path"
)


def suggestion(text: str, command: str, conf: Path) -> str | None:
    """The line for Hydra's message on a key or a choice that does not exist; None for other messages.

    command: the one whose configuration it was, such as "train". conf: the folder of the configurations.
    """
    if match := NO_CHOICE.search(text):
        group, choice, choices = match[1], match[2], match[3].split()
        meant = _meant(nearest(choice, choices))
        return f"{group}={choice}: there is no such {group}{meant}: choose among {', '.join(choices)}"
    if match := MISSING.search(text):
        meant = _meant(nearest(match[1], list(keys_of(command, conf))))
        return f"{match[1]} is no key of this command{meant}: --help lists the keys"
    return None


def nearest(word: str, words: Sequence[str]) -> str | None:
    """The nearest of the words. A key of the same name in another section is the nearest one.

    >>> nearest("sampler.frction", ["seed", "sampler.lr", "sampler.dynamics.friction"])
    'sampler.dynamics.friction'
    >>> nearest("model.lr", ["sampler.lr", "model.hidden"])
    'sampler.lr'
    >>> nearest("something", ["seed", "chains"]) is None
    True
    """
    last = {each: each.rpartition(".")[2] for each in words}
    name = word.rpartition(".")[2]
    for known, asked in ((last, name), ({each: each for each in words}, word), (last, name)):
        exact = [each for each, part in known.items() if part == asked]
        close = exact or get_close_matches(asked, list(known.values()), n=1, cutoff=0.75)
        if close:
            same = [each for each, part in known.items() if part == close[0] or each == close[0]]
            section = word.partition(".")[0]
            return max(same, key=lambda each: (each.startswith(section), SequenceMatcher(None, each, word).ratio()))
    return None


def keys_of(command: str, conf: Path) -> Iterator[str]:
    """The keys that any configuration of the command may hold: its own, and those of its groups' files."""
    yield from _leaves(_read(conf / f"{command}.yaml"))
    if command == "train":
        for path in sorted(conf.rglob("*.yaml")):
            group = path.relative_to(conf).parent.as_posix().replace("/", ".")
            if group != "." and not group.startswith(GLOBAL):
                yield group
                whole = "# @package _global_" in path.read_text()  # a file that names its keys from the top
                yield from _leaves(_read(path), "" if whole else f"{group}.")


def _leaves(values: Any, before: str = "") -> Iterator[str]:
    for key, value in values.items() if isinstance(values, dict) else ():
        if key not in ("defaults", "hydra", "tuned", "_target_"):
            yield f"{before}{key}"
            yield from _leaves(value, f"{before}{key}.")


def _read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def _meant(word: str | None) -> str:
    return "" if word is None else f" (did you mean {word}?)"
