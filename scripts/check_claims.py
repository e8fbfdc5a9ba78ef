"""Compares the numbers of the README and of docs/ with the results that they are from: python scripts/check_claims.py.

A comment behind a sentence, a list or a table says where its numbers stand, in their order:

    <!-- result tables/landsat-default.json: spread(100 * (1 - runs.bma.accuracy)) .2f; max(runs."rhat/max") .3f -->
    <!-- result leaderboard/leaderboard.json @ problems.landsat: reference.rhat .3f; runs[0].nll in 0.1 .. 0.2 -->
    <!-- result tables/candidates.md: rows -->
    <!-- no claim: published by Liang (2024) -->
    <!-- no claim 7.65, 9.00: published by Liang (2024) -->

Files lie in scripts/results and say version, machine and date. `@ path` is where all paths begin, and
`each a | b: ...` repeats what follows with `$` replaced. `rows` says that each row of the table stands in the file.
`in a .. b` bounds a value that the page tells in words. scripts/tools/claims.py has the rest of the language.

A reference speaks of the text before it, back to the last empty line or reference. Red are: a number that differs, a
file that is missing, and a number with a unit, a ± or a score in its sentence that has neither a result nor `no claim`.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from tools.claims import ClaimError, evaluate

ROOT = Path(__file__).resolve().parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))

COMMENT = re.compile(r"<!-- (result|no claim)\b(.*?)-->", re.S)
HIDDEN = re.compile(r"^```.*?^```$|`[^`\n]*`|\]\([^)\n]*\)|^#.*?$", re.S | re.M)  # code, links and headings
SOURCE = re.compile(r"(?:^|\s)(?=[\w/.-]+\.(?:json|md)\b)")
CLAIM = re.compile(r"(?P<expression>.*?)\s+(?:(?P<format>,?\.\d[fe]|s)|in (?P<low>\S+) \.\. (?P<high>\S+))", re.S)
NUMBER = re.compile(
    r"(?<![\w.,])(?:(?<=[\s(|])[-+]|(?<=^)[-+])?(?:\d+(?:,\d{3})*(?:\.\d+)?|\.\d+)(?:e-?\d+)?(?![\w]|,\d|\.\d)"
)
UNIT = re.compile(
    r"\s?(?:%|ms\b|µs\b|s\b|seconds?\b|minutes?\b|min\b|core-seconds\b|[kMGT]i?B\b|nats\b|points?\b|images\b|times\b|±)"
)
SCORE = re.compile(r"\b(?:NLL|LPPD|RMSE|CRPS|ECE|R-hat|ESS|T_eff|accurac|multiplier|of the time|core-seconds)")
BARE = re.compile(r"(?<![\w.])\.\d+")
PROVENANCE = ("version", "machine", "date")
DATED = re.compile(r"bdl \d.* of .*\d{4}-\d\d-\d\d")  # the first line of a table without a file .json


@dataclass
class Block:
    """Some text of a page, and the references that speak of it."""

    text: str
    line: int  # number of the first line
    references: list[re.Match[str]] = field(default_factory=list)

    @property
    def is_table(self) -> bool:
        return self.text.lstrip().startswith("|")


@dataclass(frozen=True)
class Number:
    """A number that a page shows."""

    text: str
    place: int  # place in the block
    measured: bool  # whether it has a unit, a ±, or a score in its sentence


def check(page: Path, results: Path) -> list[str]:
    """What is wrong with a page, one line for each fault: place, number, and what the result says."""
    return [
        f"{page.name}:{block.line + block.text.count(chr(10), 0, place)}: {fault}"
        for block in blocks(page.read_text())
        for place, fault in faults(block, results)
    ]


def blocks(text: str) -> list[Block]:
    """The text between empty lines and references. Code, links and headings are blanks in it."""
    text = blank(text)
    found: list[Block] = []
    for paragraph in re.finditer(r"(?:(?!\n[ \t]*\n)(?:<!--.*?-->|.))+", text, re.S):
        place = paragraph.start()
        for comment in COMMENT.finditer(text, paragraph.start(), paragraph.end()):
            if text[place : comment.start()].strip():
                found.append(Block(text[place : comment.start()], text.count("\n", 0, place) + 1))
            if found:
                found[-1].references.append(comment)
            place = comment.end()
        if text[place : paragraph.end()].strip():
            found.append(Block(text[place : paragraph.end()], text.count("\n", 0, place) + 1))
    return found


def blank(text: str) -> str:
    """The text with blanks in the place of code, links and headings."""
    return HIDDEN.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)


def faults(block: Block, results: Path) -> Iterator[tuple[int, str]]:
    """(place in the block, what is wrong) of one block."""
    yield from ((match.start(), f"write 0{match[0]} with its zero") for match in BARE.finditer(block.text))
    free, after = numbers(block), 0  # numbers that nothing speaks of yet; claims follow their order
    bodies = [reference[2] for reference in block.references if reference[1] == "result"]
    for body in bodies:
        try:
            for wanted in claimed(body, block, results):
                place, free = matched(wanted, block, free, after)
                after = max(after, place)
        except ClaimError as error:
            yield after, str(error)
    listed, of_all = exempt(block)
    if of_all and bodies:
        yield 0, "beside a result, `no claim` lists its numbers, and a reason behind a colon"
    if not of_all:
        yield from ((n.place, f"{n.text} has no result") for n in free if n.measured and n.text not in listed)


def exempt(block: Block) -> tuple[set[str], bool]:
    """The numbers of which the block says that they are no claims, and whether it says so of all."""
    listed: set[str] = set()
    of_all = False
    for reference in block.references:
        texts, _, reason = reference[2].partition(":")
        if reference[1] == "no claim" and reason.strip():
            listed |= set(re.split(r",\s+", texts.strip()))
            of_all |= not texts.strip()
    return listed, of_all


def matched(wanted: str, block: Block, free: list[Number], after: int) -> tuple[int, list[Number]]:
    """The end of the number that shows a claim, and the numbers that are left. Raises ClaimError if none shows it."""
    if wanted.startswith("="):  # words
        place = block.text.find(wanted[1:], after)
        if place < 0:
            raise ClaimError(f"the result says {wanted[1:]!r}, which the page does not")
        end = place + len(wanted) - 1
        return end, [n for n in free if not place <= n.place < end]
    shown = next((n for n in free if n.place >= after and n.text.lstrip("+") == wanted.lstrip("+")), None)
    if shown is None:
        rest = ", ".join(n.text for n in free if n.place >= after)
        raise ClaimError(f"the result says {wanted}, which does not follow; the page has {rest[:60] or 'no number'}")
    return shown.place + 1, [n for n in free if n is not shown]


def numbers(block: Block) -> list[Number]:
    """The numbers of a block, in their order. A table's head and its first column, if that has no ±, name things."""
    if not block.is_table:
        return [Number(m[0].strip(), m.start(), is_measured(block.text, m)) for m in NUMBER.finditer(block.text)]
    lines = block.text.splitlines(keepends=True)
    cells = [cell.strip() for line in lines[2:] for cell in line.strip().strip("|").split("|")[1:]]
    measured = bool(SCORE.search(block.text) or re.search(rf"\d{UNIT.pattern}", block.text))
    measured |= re.search(rf"[|,;] {UNIT.pattern}", lines[0]) is not None
    measured |= 2 * sum(NUMBER.match(cell) is not None for cell in cells) > len(cells)
    found, start = [], 0
    for i, line in enumerate(lines):
        second = line.find("|", line.find("|") + 1)
        body = start + (0 if "±" in line[:second] else second)
        if i > 1:
            found += [Number(m[0], m.start(), measured) for m in NUMBER.finditer(block.text, body, start + len(line))]
        start += len(line)
    return found


def is_measured(text: str, number: re.Match[str]) -> bool:
    """Whether a number of a text claims a measurement: it has a unit or a ±, or is a decimal beside a score."""
    if UNIT.match(text, number.end()) or re.search(r"±\s*$", text[: number.start()]):
        return True
    ends = [m.end() for m in re.finditer(r"[.:;]\s", text)]
    start = max((e for e in ends if e <= number.start()), default=0)
    end = min((e for e in ends if e > number.start()), default=len(text))
    return "." in number[0] and bool(SCORE.search(text[start:end]))


def claimed(body: str, block: Block, results: Path) -> Iterator[str]:
    """What the numbers of a block must be: texts of numbers, or words behind "=". Raises ClaimError."""
    for statement in filter(None, (part.strip() for part in SOURCE.split(" ".join(body.split())))):
        head, _, claims = statement.partition(":")
        name, *options = re.split(r"\s+(?=@|each )", head.strip())
        result = load(results / name)
        if claims.strip() == "rows":
            yield from rows(block, result, name)
            continue
        options = dict(re.split(r"\s+", option, maxsplit=1) for option in options)
        for value in re.split(r"\s*\|\s*", options.get("each", "")):
            root = options.get("@", "").replace("$", value).strip()
            start = evaluate(root, result) if root else result
            for claim in filter(None, (c.strip() for c in claims.replace("$", value).split(";"))):
                yield from shown(claim, start, name)


def shown(claim: str, result: Any, name: str) -> list[str]:
    """The numbers of a claim, as the page has to show them."""
    match = CLAIM.fullmatch(claim)
    if match is None:
        raise ClaimError(f"`{claim}` is no claim: it needs a format such as .2f, or `in 1 .. 2`")
    try:
        value = evaluate(match["expression"], result)
    except ClaimError as error:
        raise ClaimError(f"{name}: {error}") from error
    values = value if isinstance(value, list) else [value]
    if match["format"] == "s":
        return ["=" + ", ".join(map(str, values))]
    if not all(isinstance(v, int | float) for v in values):
        raise ClaimError(f"{name}: `{match['expression']}` is {value!r}, which is no number"[:160])
    if match["low"]:
        low, high = float(match["low"]), float(match["high"])
        if not all(low <= v <= high for v in values):
            raise ClaimError(f"{name}: `{match['expression']}` is {value}, which is not in {low:g} .. {high:g}")
        return []
    return [format(v, "z" + match["format"]) for v in values]


def rows(block: Block, result: Any, name: str) -> Iterator[str]:
    """The rows of a table, if each stands in the file."""
    if "text" not in result or not block.is_table:
        raise ClaimError(f"{name}: `rows` needs a table, and a file .md with its rows")
    there = {line.strip() for line in blank(result["text"]).splitlines()}
    for row in block.text.strip().splitlines()[2:]:
        if row.strip() not in there:
            raise ClaimError(f"{name} has no row {row.strip()}")
        yield "=" + row.strip()


@lru_cache
def load(path: Path) -> Any:
    """A result as JSON, or the tables of a page. Raises ClaimError for a file without its origin, or none."""
    if not path.exists():
        raise ClaimError(f"there is no {path.name} in {path.parent}")
    if path.suffix == ".json":
        result = json.loads(path.read_text())
        missing = [name for name, known in zip(PROVENANCE, origin(result), strict=True) if not known]
    else:
        result = read_table(path.read_text())
        beside = [p for p in (path.with_suffix(".json"), path.with_name("results.json")) if p.exists()]
        missing = [] if beside and load(beside[0]) else [] if DATED.match(result["text"]) else [*PROVENANCE]
    if missing:
        raise ClaimError(f"{path.name} does not say its {', '.join(missing)}")
    return result


def read_table(text: str) -> dict[str, Any]:
    """The tables of a page: lists of rows, which are objects from heading to cell; numbers where a cell is one."""
    tables = []
    for block in blocks(text):
        lines = text.splitlines()[block.line - 1 :][: block.text.count("\n") + 1]
        cells = [
            [cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines if line.startswith("|")
        ]
        if block.is_table and len(cells) > 2:
            tables.append([dict(zip(cells[0], map(as_number, row), strict=False)) for row in cells[2:]])
    return {"text": text, "tables": tables}


def as_number(cell: str) -> float | str:
    return float(cell.replace(",", "")) if NUMBER.fullmatch(cell) else cell


def origin(result: dict[str, Any]) -> tuple[Any, Any, Any]:
    """(version of bdl, machine, date) of a result."""
    machine = result.get("machine", result)
    versions = machine.get("versions", machine)
    return versions.get("bdl"), machine.get("device") or machine.get("hardware"), machine.get("date")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", type=Path, default=PAGES, help="the README and docs/ if not given")
    parser.add_argument("--results", type=Path, default=ROOT / "scripts" / "results", metavar="DIR")
    arguments = parser.parse_args(argv)
    found = [fault for page in arguments.pages for fault in check(page, arguments.results)]
    print("\n".join(found) or "all numbers are those of their results", file=sys.stderr if found else sys.stdout)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
