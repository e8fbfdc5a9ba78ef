"""What an object shows of itself: lines in a terminal, a small table in a notebook."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from html import escape

Progress = Callable[[int, int], None]  # called with the work that is done, and with all of it


class Shown(ABC):
    """An object that says in a few named lines what it is. Neither form computes or writes anything.

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
