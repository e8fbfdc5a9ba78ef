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
        what, remedy = f"{group}={choice}: there is no such {group}", f"choose among {', '.join(choices)}"
        meant = nearest(choice, choices)
    elif match := MISSING.search(text):
        if choices := [choice for choice, keys in choices_of(command, conf) if match[1] in keys]:
            which = " or ".join(choices[:3]) + (" and others" if len(choices) > 3 else "")
            return f"{match[1]} is a key of {which}, which this command line does not choose: add {choices[0]}"
        what, remedy = f"{match[1]} is no key of this command", "--help lists the keys"
        meant = nearest(match[1], list(keys_of(command, conf)))
    else:
        return None
    return f"{what}: {remedy}" if meant is None else f"{what} (did you mean {meant}?): {remedy}"


def nearest(word: str, words: Sequence[str]) -> str | None:
    """The nearest of the words. A key of the same name in another section is the nearest one.

    >>> nearest("sampler.frction", ["seed", "sampler.lr", "sampler.dynamics.friction"])
    'sampler.dynamics.friction'
    >>> nearest("model.lr", ["sampler.lr", "model.hidden"])
    'sampler.lr'
    >>> nearest("something", ["seed", "chains"]) is None
    True
    """
    names = [each.rpartition(".")[2] for each in words]
    if near := get_close_matches(word.rpartition(".")[2], names, n=1, cutoff=0.75):
        same = [each for each, name in zip(words, names, strict=True) if name == near[0]]
        section = word.partition(".")[0]
        return max(same, key=lambda each: (each.startswith(section), SequenceMatcher(None, each, word).ratio()))
    return next(iter(get_close_matches(word, words, n=1, cutoff=0.75)), None)


def keys_of(command: str, conf: Path) -> Iterator[str]:
    """The keys that any configuration of the command may hold: its own, and those of its groups' files."""
    yield from _keys_below(_read(conf / f"{command}.yaml"))
    for choice, keys in choices_of(command, conf):
        yield choice.partition("=")[0].replace("/", ".")
        yield from keys


def choices_of(command: str, conf: Path) -> Iterator[tuple[str, list[str]]]:
    """The choices of the command's groups, such as start=adamw, each with its keys."""
    for path in sorted(conf.rglob("*.yaml")) if command == "train" else ():
        group = path.relative_to(conf).parent.as_posix()
        if group != "." and not group.startswith(GLOBAL):
            whole = "# @package _global_" in path.read_text()  # a file that names its keys from the top
            yield f"{group}={path.stem}", [*_keys_below(_read(path), "" if whole else f"{group.replace('/', '.')}.")]


def _keys_below(values: Any, before: str = "") -> Iterator[str]:
    for key, value in values.items() if isinstance(values, dict) else ():
        if key not in ("defaults", "hydra", "tuned", "_target_"):
            yield f"{before}{key}"
            yield from _keys_below(value, f"{before}{key}.")


def _read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())
