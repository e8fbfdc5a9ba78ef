"""The README, CONTRIBUTING and the pages of docs/, as blocks of code that tests can run."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from composing import ROOT

README, CONTRIBUTING = ROOT / "README.md", ROOT / "CONTRIBUTING.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r'^```(?P<language>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<code>.*?)^```$', re.S | re.M)


@dataclass(frozen=True)
class Block:
    language: str
    title: str | None  # path of the file that the block shows, if it shows one
    code: str
    line: int  # where the code starts on the page


def blocks(page: Path, *languages: str) -> list[Block]:
    text = page.read_text()
    return [
        Block(m["language"], m["title"], m["code"], text.count("\n", 0, m.start("code")) + 1)
        for m in FENCE.finditer(text)
        if m["language"] in languages
    ]


def commands(page: Path) -> list[list[str]]:
    """The words of every shell command of a page."""
    return [command for block in blocks(page, "bash") for command in commands_of(block)]


def commands_of(block: Block) -> list[list[str]]:
    """The words of every command of a shell block; `a && b` are two commands, and comments are dropped."""
    split_lines = []
    for line in block.code.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        while "&&" in words:
            first = words.index("&&")
            split_lines.append(words[:first])
            words = words[first + 1 :]
        if words:
            split_lines.append(words)
    return split_lines


def options(command: list[str], script: str) -> list[str] | None:
    """What a command hands to `scripts/<script>.py` or `bdl <script>`; None for another command."""
    if command[:2] == ["bdl", script]:
        return command[2:]
    names = [i for i, word in enumerate(command) if word == f"scripts/{script}.py"]
    return command[names[0] + 1 :] if names else None
