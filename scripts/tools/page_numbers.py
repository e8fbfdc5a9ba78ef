"""The paragraphs and tables of a page in Markdown, the numbers in them, and which of these claim a measurement."""

import re
from dataclasses import dataclass

HIDDEN = re.compile(r"^```.*?^```$|`[^`\n]*`|\]\([^)\n]*\)|^#.*?$", re.S | re.M)  # code, links and headings
NUMBER = re.compile(
    r"(?<![\w.,])(?:(?<=[\s(|])[-+]|(?<=^)[-+])?(?:\d+(?:,\d{3})*(?:\.\d+)?|\.\d+)(?:e-?\d+)?(?![\w]|,\d|\.\d)"
)
UNIT = re.compile(
    r"\s*(?:%|ms\b|µs\b|s\b|seconds?\b|minutes?\b|min\b|core-seconds\b|[kMGT]i?B\b|nats\b|points?\b|images\b|times\b|±)"
)
SCORE = re.compile(r"\b(?:NLL|LPPD|RMSE|CRPS|ECE|R-hat|ESS|T_eff|accurac|multiplier|of the time|core-seconds)")


@dataclass(frozen=True)
class Number:
    text: str
    place: int  # place in the page
    measured: bool  # whether it has a unit, a ±, or a score in its sentence


@dataclass(frozen=True)
class Paragraph:
    """The text between two empty lines of a page. Code, links and headings are blanks in it."""

    text: str
    start: int  # place in the page

    @property
    def end(self) -> int:
        return self.start + len(self.text)

    @property
    def is_table(self) -> bool:
        return self.text.lstrip().startswith("|")

    @property
    def rows(self) -> list[str]:
        """The rows of a table below its heading."""
        return self.text.strip().splitlines()[2:]

    def numbers(self) -> list[Number]:
        """The numbers in their order. A table's heading and its first column, if that has no ±, name things."""
        if self.is_table:
            return self._numbers_of_table()
        found = NUMBER.finditer(self.text)
        return [Number(m[0].strip(), self.start + m.start(), is_measured(self.text, m)) for m in found]

    def _numbers_of_table(self) -> list[Number]:
        lines = self.text.splitlines(keepends=True)
        measured = self._is_measured_table()
        found, start = [], 0
        for i, line in enumerate(lines):
            second = line.find("|", line.find("|") + 1)
            body = start + (0 if "±" in line[:second] else second)
            if i > 1:
                cells = NUMBER.finditer(self.text, body, start + len(line))
                found += [Number(m[0], self.start + m.start(), measured) for m in cells]
            start += len(line)
        return found

    def _is_measured_table(self) -> bool:
        """Whether a table has a score, a unit, or numbers in more than half of the cells behind its first column."""
        cells = [cell.strip() for row in self.rows for cell in row.strip().strip("|").split("|")[1:]]
        return (
            SCORE.search(self.text) is not None
            or re.search(rf"\d{UNIT.pattern}", self.text) is not None
            or re.search(rf"[|,;] {UNIT.pattern}", self.text.splitlines()[0]) is not None
            or 2 * sum(NUMBER.match(cell) is not None for cell in cells) > len(cells)
        )


@dataclass(frozen=True)
class Part:
    paragraph: Paragraph
    start: int  # place in the page
    end: int

    @property
    def text(self) -> str:
        return self.paragraph.text[self.start - self.paragraph.start : self.end - self.paragraph.start]

    def numbers(self) -> list[Number]:
        return [number for number in self.paragraph.numbers() if self.start <= number.place < self.end]


def paragraphs(text: str) -> list[Paragraph]:
    return [Paragraph(m[0], m.start()) for m in re.finditer(r"(?:^.*\S.*\n?)+", blank(text), re.M)]


def blank(text: str) -> str:
    """The text with blanks in the place of code, links and headings."""
    return HIDDEN.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)


def is_measured(text: str, number: re.Match[str]) -> bool:
    """Whether a number of a text claims a measurement: it has a unit or a ±, or is a decimal beside a score."""
    if UNIT.match(text, number.end()) or re.search(r"±\s*$", text[: number.start()]):
        return True
    ends = [m.end() for m in re.finditer(r"[.:;]\s", text)]
    start = max((e for e in ends if e <= number.start()), default=0)
    end = min((e for e in ends if e > number.start()), default=len(text))
    return "." in number[0] and bool(SCORE.search(text[start:end]))
