"""Compares the numbers of the README and of docs/ with the results that they are from: python scripts/check_claims.py.

docs/claims/PAGE.toml says for the numbers of a page, in their order, where they stand:

    [[claim]]
    text = "On Landsat the error is … over five seeds"
    result = '''
    tables/landsat-default.json: spread(100 * (1 - runs.bma.accuracy)) .2f; max(runs."rhat/max") .3f
    leaderboard/leaderboard.json @ problems.landsat: reference.rhat .3f; runs[0].nll in 0.1 .. 0.2'''

    [[claim]]
    text = "| method | Landsat |"
    result = "tables/candidates.md: rows"
    exempt = ["7.65", "9.00"]
    reason = "published by Liang (2024)"

`text` is copied from the page: … stands for any words between two others, and for numbers at the beginning or the end.
A row of a table, or its heading, stands for the table. An entry with a `reason` alone says that its text has no
measurement of ours; beside a result, `exempt` lists the numbers that are no measurement.

Results lie in scripts/results and say version, machine and date. `@ path` is where all paths begin, and
`each a | b: ...` repeats what follows with `$` replaced. `rows` says that each row of the table stands in the file.
`in a .. b` bounds a value that the page tells in words. scripts/tools/claims.py has the rest of the language.

Red are: a number that differs, a file that is missing, an entry whose text the page does not have, and a number with a
unit, a ± or a score in its sentence that no entry speaks of.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from tools.claim_entries import Entry, read
from tools.claims import ClaimError, evaluate
from tools.page_numbers import NUMBER, Number, Part, blank, paragraphs

ROOT = Path(__file__).resolve().parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
CLAIMS = ROOT / "docs" / "claims"

SOURCE = re.compile(r"(?:^|\s)(?=[\w/.-]+\.(?:json|md)\b)")
CLAIM = re.compile(r"(?P<expression>.*?)\s+(?:(?P<format>,?\.\d[fe]|s)|in (?P<low>\S+) \.\. (?P<high>\S+))", re.S)
BARE = re.compile(r"(?<![\w.])\.\d+")
PROVENANCE = ("version", "machine", "date")
DATED = re.compile(r"bdl \d.* of .*\d{4}-\d\d-\d\d")  # the first line of a table without a file .json


def check(page: Path, claims: Path, results: Path) -> list[str]:
    """What is wrong with a page, one line for each fault: place, number, and what the result says."""
    text = page.read_text()
    try:
        entries = read(claims)
    except ClaimError as error:
        return [str(error)]

    def at(place: int) -> str:
        return f"{page.name}:{text.count(chr(10), 0, place) + 1}"

    found = [f"{at(match.start())}: write 0{match[0]} with its zero" for match in BARE.finditer(blank(text))]
    in_page, spoken = paragraphs(text), list[Part]()
    for entry in entries:
        try:
            part = entry.find(text, in_page)
        except ClaimError as error:
            found.append(f"{entry.place}: {error}")
            continue
        if any(part.start < other.end and other.start < part.end for other in spoken):
            found.append(f"{entry.place}: another entry speaks of {entry.text!r} or a part of it: merge the two")
        found += [f"{at(place)}: {fault} ({entry.place})" for place, fault in faults(part, entry, results)]
        spoken.append(part)
    for number in (n for paragraph in in_page for n in paragraph.numbers() if n.measured):
        if not any(part.start <= number.place < part.end for part in spoken):
            found.append(f"{at(number.place)}: {number.text} has no result: name it in {claims.name}")
    return found


def faults(part: Part, entry: Entry, results: Path) -> Iterator[tuple[int, str]]:
    """(place in the page, what is wrong) of the part of which an entry speaks."""
    free, after = part.numbers(), part.start  # numbers that no claim names yet; claims follow their order
    absent = set(entry.exempt) - {number.text for number in free}
    if absent:
        yield part.start, f"`exempt` has {', '.join(sorted(absent))}, which the text does not"
    try:
        for wanted in claimed(entry.result, part, results):
            place, free = matched(wanted, part, free, after)
            after = max(after, place)
    except ClaimError as error:
        yield after, str(error)
    if not entry.result and not any(number.measured for number in free):
        yield part.start, "the text claims no measurement: delete the entry"
    if entry.result:
        yield from ((n.place, f"{n.text} has no result") for n in free if n.measured and n.text not in entry.exempt)


def matched(wanted: str, part: Part, free: list[Number], after: int) -> tuple[int, list[Number]]:
    """The end of the number that shows a claim, and the numbers that are left. Raises ClaimError if none shows it."""
    if wanted.startswith("="):  # words
        place = part.text.find(wanted[1:], after - part.start)
        if place < 0:
            raise ClaimError(f"the result says {wanted[1:]!r}, which the page does not")
        start = part.start + place
        end = start + len(wanted) - 1
        return end, [n for n in free if not start <= n.place < end]
    shown = next((n for n in free if n.place >= after and n.text.lstrip("+") == wanted.lstrip("+")), None)
    if shown is None:
        rest = ", ".join(n.text for n in free if n.place >= after)
        raise ClaimError(f"the result says {wanted}, which does not follow; the page has {rest[:60] or 'no number'}")
    return shown.place + 1, [n for n in free if n is not shown]


def claimed(body: str, part: Part, results: Path) -> Iterator[str]:
    """What the numbers of a part must be: texts of numbers, or words behind "=". Raises ClaimError."""
    for statement in filter(None, (part.strip() for part in SOURCE.split(" ".join(body.split())))):
        head, _, claims = statement.partition(":")
        name, *options = re.split(r"\s+(?=@|each )", head.strip())
        result = load(results / name)
        if claims.strip() == "rows":
            yield from rows(part, result, name)
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


def rows(part: Part, result: Any, name: str) -> Iterator[str]:
    """The rows of a table, if each stands in the file."""
    if "text" not in result or not part.paragraph.is_table:
        raise ClaimError(f"{name}: `rows` needs a table, and a file .md with its rows")
    there = {line.strip() for line in blank(result["text"]).splitlines()}
    for row in part.paragraph.rows:
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
    for table in (paragraph for paragraph in paragraphs(text) if paragraph.is_table):
        rows = text[table.start : table.end].strip().splitlines()
        cells = [[cell.strip() for cell in row.strip().strip("|").split("|")] for row in rows]
        if len(cells) > 2:
            tables.append([dict(zip(cells[0], map(as_number, row), strict=False)) for row in cells[2:]])
    return {"text": text, "tables": tables}


def as_number(cell: str) -> float | str:
    return float(cell.replace(",", "")) if NUMBER.fullmatch(cell) else cell


def origin(result: dict[str, Any]) -> tuple[Any, Any, Any]:
    """(version of bdl, machine, date) of a result."""
    machine = result.get("machine", result)
    versions = machine.get("versions", machine)
    return versions.get("bdl"), machine.get("device") or machine.get("hardware"), machine.get("date")


def claims_of(page: Path) -> Path:
    """The file with the entries of a page."""
    return CLAIMS / f"{page.stem}.toml"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", type=Path, default=PAGES, help="the README and docs/ if not given")
    parser.add_argument("--results", type=Path, default=ROOT / "scripts" / "results", metavar="DIR")
    arguments = parser.parse_args(argv)
    found = [fault for page in arguments.pages for fault in check(page, claims_of(page), arguments.results)]
    print("\n".join(found) or "all numbers are those of their results", file=sys.stderr if found else sys.stdout)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
