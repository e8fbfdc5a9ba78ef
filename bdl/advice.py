"""Words of the command line as messages print them: what one copies into bash arrives as it was meant."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

# Words that Hydra takes without quotes, as texts or as numbers that give the same word again. It refuses letters beyond
# ASCII, and reads true or null as no text.
PLAIN = re.compile(
    r"(?!(?i:true|false|null|nan|inf)$)(package:|\.{0,2}/)?[A-Za-z_][A-Za-z0-9_./-]*( [A-Za-z0-9_.-]+)*"
    r"|\?|-?[1-9][0-9]{0,14}|-?(0|[1-9][0-9]{0,9})\.[0-9]{0,4}[1-9]|0"
)


_arguments: ContextVar[Mapping[str, str] | None] = ContextVar("arguments", default=None)


@contextmanager
def naming(arguments: Mapping[str, str]) -> Iterator[None]:
    """In the block, messages name the arguments of a call in Python where they would name keys of the command.

    arguments: the argument of each key; "" where the reader gave the value itself. Other keys have none.
    """
    token = _arguments.set(arguments)
    try:
        yield
    finally:
        _arguments.reset(token)


def takes(key: str) -> bool:
    """Whether the reader can set a key, or an argument in its place; advice that needs another one is no help."""
    known = _arguments.get()
    return known is None or key in known


def key_or_argument(key: str) -> str:
    """The key, or the argument that the reader sets in its place.

    >>> with naming({"data.batch_size": "batch_size"}):
    ...     key_or_argument("data.batch_size"), takes("data.missing")
    ('batch_size', False)
    """
    return (_arguments.get() or {}).get(key, key)


def override(key: str, value: str | Iterable[str]) -> str:
    """`key=value` with quotes for bash and Hydra where they are needed. The value is a word, or a list of words.

    >>> print(override("data.drop", ["age", "Current Ver", "2020"]), override("data.target", "price ($)"))
    data.drop=[age,'Current Ver',2020] data.target='"price ($)"'

    In Python it is the argument, or the value where there is no other word for it:

    >>> with naming({"loss": "loss", "data.target": ""}):
    ...     print(override("loss", "gamma"), override("data.target", "y"))
    loss='gamma' y
    """
    if key in (known := _arguments.get() or {}):
        return f"{known[key]}={value!r}" if known[key] else str(value)
    return f"{key}={_word(value)}" if isinstance(value, str) else f"{key}=[{','.join(map(_word, value))}]"


def _word(text: str) -> str:
    if not PLAIN.fullmatch(text):
        text = re.sub(r"(\\*)\$\{", r"\1\1\\${", text)  # OmegaConf would look up what ${...} names
        text = re.sub(r'(\\*)"', r'\1\1\\"', text)
        text = '"' + re.sub(r"(\\+)$", r"\1\1", text) + '"'
    if text.isprintable():
        return shlex.quote(text)
    # a terminal shows no such sign, and a message has ? in its place: bash reads its bytes
    signs = (s if s.isprintable() and s not in "\\'" else "".join(f"\\x{b:02x}" for b in s.encode()) for s in text)
    return f"$'{''.join(signs)}'"
