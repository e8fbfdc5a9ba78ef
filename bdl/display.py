"""What an object shows of itself: lines in a terminal, a small table in a notebook."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

Progress = Callable[[int, int], None]  # called with the work that is done, and with all of it


def count_of(number: float, noun: str) -> str:
    """A whole number and its noun, in the plural unless it is one.

    >>> count_of(1, "chain"), count_of(1390, "sample"), count_of(2, "class")
    ('1 chain', '1,390 samples', '2 classes')
    """
    plural = noun if number == 1 else f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{number:,.0f} {plural}"


def figures(value: float, digits: int = 3) -> str:
    """A number with so many figures, written out where `g` would take a power of ten for a number that people write.

    >>> figures(1386.2), figures(0.123456), figures(2.5e9)
    ('1,390', '0.123', '2.5e+09')
    """
    text = f"{value:.{digits}g}"
    return f"{float(text):,.0f}" if "e+" in text and abs(value) < 1e7 or 1000 <= abs(value) < 1e7 else text


def print_whole(table: Table) -> None:
    """Print a rich table whole, in a file and a pipe too: a terminal wraps lines better than rich cuts cells."""
    from rich.console import Console

    wanted = Console(width=10_000).measure(table).maximum
    Console(width=max(wanted, Console().width)).print(table)


class Shown(ABC):
    """An object that says in a few named lines what it is. Neither form writes anything.

    >>> class Coin(Shown):
    ...     def shown(self):
    ...         return "Coin", {"sides": "2", "thickness": "1.67 mm"}
    >>> Coin()
    Coin
      sides      2
      thickness  1.67 mm
    >>> Coin()._repr_html_()
    '<table><caption>Coin</caption><tr><th>sides</th><td>2</td></tr><tr><th>thickness</th><td>1.67 mm</td></tr></table>'
    """

    @abstractmethod
    def shown(self) -> tuple[str, Mapping[str, str]]:
        """A title, and the lines below it by name."""

    def __repr__(self) -> str:
        title, lines = self.shown()
        width = max(map(len, lines), default=0)
        return "\n".join([title, *(f"  {name:<{width}}  {value}" for name, value in lines.items())])

    def _repr_html_(self) -> str:
        title, lines = self.shown()
        rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in lines.items())
        return f"<table><caption>{escape(title)}</caption>{rows}</table>"
