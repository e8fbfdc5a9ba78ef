"""The entries of docs/claims/PAGE.toml, and the place in the page of which each of them speaks."""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from tools.claims import ClaimError
from tools.page_numbers import Paragraph, Part

KEYS = {"text": str, "result": str, "reason": str, "exempt": list}
GAP = r"(?:(?!\n[ \t]*\n).)*?"  # any text without an empty line
NUMERIC = r"(?:\S*\d\S*|±)"  # a word with a digit


@dataclass(frozen=True)
class Entry:
    """Where the numbers of a text stand, or why they claim no measurement."""

    place: str  # file and line, for messages
    text: str
    result: str = ""
    reason: str = ""
    exempt: tuple[str, ...] = ()  # the numbers that the reason speaks of; all of them if there are none

    def find(self, page: str, paragraphs: list[Paragraph]) -> Part:
        """The part of a page that has the text. Raises ClaimError if there is none, or more than one."""
        if self.text.startswith("|"):
            row = re.compile(rf"^{re.escape(self.text)}", re.M)
            tables = (p for p in paragraphs if p.is_table)
            found = [Part(t, t.start, t.end) for t in tables if row.search(page[t.start : t.end])]
        else:
            places = [match.span() for match in pattern(self.text).finditer(page)]
            found = [Part(p, a, b) for a, b in places for p in paragraphs if p.start <= a and b <= p.end]
        if len(found) == 1:
            return found[0]
        if found:
            raise ClaimError(f"the page has {self.text!r} {len(found)} times: add words to it")
        raise ClaimError(f"the page has no {self.text!r}: copy the words from the page, or delete the entry")


def pattern(text: str) -> re.Pattern[str]:
    """What finds a text in a page: a blank matches a line break too, and … what stands between two words.

    At the beginning and at the end of the text … matches the numbers with which a sentence begins or ends.
    """
    parts = [r"\s+".join(map(re.escape, part.split())) for part in text.split("…")]
    first = "" if parts[0] else rf"(?<!\S)(?:{NUMERIC}(?<!\.)\s+)+"
    last = "" if parts[-1] else rf"(?:\s+{NUMERIC}(?<!\.))*\s+{NUMERIC}"
    return re.compile(first + rf"\s*{GAP}\s*".join(filter(None, parts)) + last, re.S)


def read(file: Path) -> list[Entry]:
    """The entries of a file, or none where there is no file. Raises ClaimError for one that is wrong."""
    if not file.exists():
        return []
    text = file.read_text()
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ClaimError(f"{file.name}: {error}") from error
    starts = [m.start() for m in re.finditer(r"^\[\[claim\]\]", text, re.M)]
    entries = tables.pop("claim", [])
    if tables:
        raise ClaimError(f"{file.name}: {next(iter(tables))} is not known; an entry begins with [[claim]]")
    places = [f"{file.name}:{text.count(chr(10), 0, start) + 1}" for start in starts]
    return [entry_of(place, keys) for place, keys in zip(places, entries, strict=True)]


def entry_of(place: str, keys: dict) -> Entry:
    """The entry that a table of the file says. Raises ClaimError with the first thing that is wrong with it."""
    refused = [key for key, value in keys.items() if not isinstance(value, KEYS.get(key, ()))]
    result, reason, exempt = (keys.get(key) for key in ("result", "reason", "exempt"))
    faults = {
        f"{', '.join(refused)}: an entry has text, result and reason, which are strings, and exempt, a list": refused,
        "an entry needs its `text`, with a word in it": not re.search(r"\w", keys.get("text", "")),
        "an entry needs a `result`, or the `reason` why its numbers claim no measurement": not (result or reason),
        "`exempt` needs the `reason` why these numbers claim no measurement": exempt and not reason,
        "beside a `result`, `exempt` lists the numbers of the `reason`": result and reason and not exempt,
    }
    for fault, is_so in faults.items():
        if is_so:
            raise ClaimError(f"{place}: {fault}")
    return Entry(place, **{**keys, "exempt": tuple(exempt or ())})
