"""What `--help` prints: the commands, and the keys of each with their defaults and comments, as conf/ has them.

This module imports neither torch nor Lightning.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from pathlib import Path

from bdl.run.config import config_folder

ABOUT = {
    "train": "Sample the posterior of a network, keep the samples, evaluate them and write a report.",
    "evaluate": "Evaluate the samples of one or several runs as one posterior.",
    "predict": "Predict the rows of a table with the samples of one or several runs.",
    "verify": "Verify every file of a run directory.",
    "compare": "Compare runs side by side, a row for each method, with means over seeds.",
    "llc": "Measure the local learning coefficient of a run's trained network.",
    "distil": "Train one network on the average over the samples of a run, and say what it loses.",
    "status": "Say how runs and the jobs of sweeps stand: waiting, running, ended, failed or killed.",
    "calibrate": "Calibrate a run by simulated data: how true networks rank among its draws.",
}
HELP = (
    "usage: bdl COMMAND [OVERRIDES]\n\ncommands:\n"
    + "".join(f"  {name:<9} {about}\n" for name, about in ABOUT.items())
    + """
Overrides are Hydra's: bdl train sampler=sghmc chains=4. The others take run directories too: bdl verify outputs/a.
`bdl COMMAND --help` explains the keys of a command. eval "$(bdl completion)" makes bash complete groups and keys."""
)
GROUP = re.compile(r"  - (\w+): (\S+)(?:  # (.*))?")  # a line of a defaults list
PART = re.compile(r"\b(dynamics|weighting|exchange|prior): (\w+)")  # a part of a sampler in such a list
HIDDEN = ("defaults:", "# @package", "  - ", "_partial_", "dynamics: ???")  # a sampler's dynamics has a part of its own
TUNED = re.compile(r"\$\{oc\.select:(tuned\.[\w.]+),([^{}]*)\}")  # with its default
OF_STEPS = re.compile(r"\$\{fraction:\$\{steps\},([^{}]*)\}")
OF_DATA = {"sampler": "langevin", "logger": "csv"}  # what the default data choose in place of the defaults list


def example_of(name: str) -> str:
    """A call of the command, with which its configuration file begins."""
    return _text(config_folder() / f"{name}.yaml").removeprefix("# ").partition(": ")[0]


def help_of(name: str, words: Sequence[str] = ()) -> str:
    """What a command does, its groups with their choices, and its keys with their defaults and comments.

    words: of the command line. Those of the form group=choice say which choice's keys are explained.
    """
    text = _text(config_folder() / f"{name}.yaml")
    before, _, after = text.partition("  - _self_\n")
    groups = [match.groups("") for match in GROUP.finditer(before + after.partition("\n\n")[0])]
    keys = (before + after).partition("\n\n")[2].partition("\nhydra:")[0]
    parts = [f"{ABOUT[name]}\n\n    {example_of(name)}\n"]
    if groups:
        parts += ["Groups, as group=choice:\n", *(_of_group(*group) for group in groups), ""]
    tuned = "8 or tuned.chains: 8, unless the data or the sampler have another value under `tuned`.\n"
    parts += [
        "Keys, with their defaults; ??? must be given." + ("\n" + tuned if name == "train" else "\n"),
        keys.rstrip(),
    ]
    if name == "train":
        chosen = {group: choice for group, choice, _ in groups} | OF_DATA | dict(_choices(words))
        parts += [text for group, choice in chosen.items() if (text := _keys_of(group, choice))]
        parts.append(
            "\nsampler=awsghmc --help and the like explain the keys of another choice; --cfg job shows all values."
        )
    return "\n".join(parts)


def _text(path: Path) -> str:
    """A file of conf/, with what an interpolation comes to in words."""
    return OF_STEPS.sub(r"\1 of the steps", TUNED.sub(r"\2 or \1", path.read_text()))


def _choices(words: Sequence[str]) -> list[tuple[str, str]]:
    """Group and choice of the words group=choice."""
    pairs = (word.partition("=")[::2] for word in words)
    return [(group, choice) for group, choice in pairs if (config_folder() / group / f"{choice}.yaml").is_file()]


def _of_group(group: str, default: str, comment: str) -> str:
    folder = config_folder() / group
    choices = sorted(str(path.relative_to(folder).with_suffix("")) for path in folder.rglob("*.yaml"))
    of_samplers = ("dynamics/", "exchange/", "prior/", "weighting/", "default")
    named = [choice for choice in choices if group != "sampler" or not choice.startswith(of_samplers)]
    said = f"  # {comment}" if comment else ""
    return f"{group}: {OF_DATA.get(group, default)}{said}\n{listed(named)}"


def listed(names: Sequence[str]) -> str:
    """The names in lines of 110 signs, none of them cut."""
    return textwrap.fill(", ".join(names), 110, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False)


def _keys_of(group: str, choice: str) -> str:
    """The keys of a choice, after those that all choices of its group share."""
    folder = config_folder() / group
    names = dict.fromkeys(["default", choice] if group == "sampler" else [choice])
    files = [path for name in names if (path := folder / f"{name}.yaml").is_file()]
    lines = [line for path in files for line in _text(path).splitlines() if not line.startswith(HIDDEN)]
    body = "\n".join(line for line in lines if line.strip())
    own = f"\n{group}.*, of {group}={choice}:\n\n{body}" if body else ""
    if group != "sampler":
        return own
    heads = "\n".join(line for path in files for line in _text(path).splitlines() if line.startswith(HIDDEN))
    parts = dict(PART.findall(heads))  # the choice comes after what all share, and wins
    return "\n".join([own, *(text for part in parts.items() if (text := _keys_of_part(*part)))])


def _keys_of_part(part: str, choice: str) -> str:
    """The keys of a part of the sampler."""
    lines = _text(config_folder() / "sampler" / part / f"{choice}.yaml").splitlines()
    body = "\n".join(line for line in lines if line.strip() and not line.startswith(HIDDEN))
    return f"\nsampler.{part}.*, of sampler/{part}={choice}:\n\n{body}" if body else ""
