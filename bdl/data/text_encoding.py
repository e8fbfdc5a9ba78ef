"""How the bytes of a text file become letters: what a file says of it, or what can be guessed."""

from __future__ import annotations

import codecs
import re
import warnings
from dataclasses import dataclass
from pathlib import Path

from bdl.advice import override
from bdl.disk.files import open_regular
from bdl.errors import BdlWarning, ConfigError

UTF8 = "utf-8"
MARKS = (  # the mark of UTF-32 begins with that of UTF-16
    (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"),
)  # fmt: skip
FORMATS = (  # first bytes
    (b"PK\x03\x04", "an Excel workbook or a zip archive"), (b"\xd0\xcf\x11\xe0", "an Excel workbook"),
    (b"\x1f\x8b", "compressed by gzip"), (b"BZh", "compressed by bzip2"), (b"\xfd7zXZ", "compressed by xz"),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd"), (b"PAR1", "a Parquet file, which data=parquet reads"),
    (b"%PDF-", "a PDF"), (b"SQLite f", "an SQLite database"), (b"\x89HDF\r\n", "an HDF5 file"),
)  # fmt: skip
CONTROLS = re.compile(rb"[\x80-\x9f]")  # signs of cp1252 such as the euro; latin-1 has control signs there
UNUSED = re.compile(rb"[\x81\x8d\x8f\x90\x9d]")  # bytes that cp1252 does not use
WORD = re.compile(rb"[\w\x80-\xff]{0,20}[\x80-\xff][\w\x80-\xff]{0,20}")
BLOCK = 2**16  # bytes


def python_name(encoding: str) -> str:
    """The name by which Python reads an encoding. Raises ConfigError for one that it does not know."""
    try:
        name = codecs.lookup(encoding).name
        "".encode(name)  # refuses what is no encoding of text, such as base64
    except (LookupError, ValueError) as error:
        raise ConfigError(
            f"{override('data.encoding', encoding)} is no encoding that Python knows: utf-8, utf-16, latin-1 and "
            "cp1252 are the usual ones; null guesses"
        ) from error
    return f"{UTF8}-sig" if name == UTF8 else name


@dataclass(frozen=True)
class FileBytes:
    """What the bytes of a file without a mark tell of its encoding."""

    utf8: bool  # whether they are UTF-8
    word: bytes  # a first word with letters beyond ASCII; empty without any
    zeros: bool
    controls: bool
    unused: bool

    @staticmethod
    def of(path: Path) -> FileBytes:
        decoder, utf8, word, found = codecs.getincrementaldecoder(UTF8)(), True, b"", [False] * 3
        with open_regular(path) as file:
            while block := file.read(BLOCK):
                utf8 = utf8 and _decodes(decoder, block)
                found[0] |= b"\0" in block
                if not block.isascii():
                    word = word or (first[0] if (first := WORD.search(block)) else b"")
                    found[1] |= CONTROLS.search(block) is not None
                    found[2] |= UNUSED.search(block) is not None
        return FileBytes(utf8 and _decodes(decoder, b"", final=True), word, *found)


def refuse_other_format(path: Path, name: str) -> None:
    """Raise ConfigError for a file whose first bytes are those of another format than text."""
    with open_regular(path) as file:
        start = file.read(8)
    if (kind := next((kind for first, kind in FORMATS if start.startswith(first)), None)) is not None:
        raise ConfigError(f"{name} is {kind}, and no text: save the table as CSV in UTF-8, and give its path")


def mark_of(path: Path) -> str | None:
    """The encoding that the first bytes of a file name; None for a file without a mark, and for that of UTF-8."""
    with open_regular(path) as file:
        start = file.read(4)
    return next((encoding for mark, encoding in MARKS if start.startswith(mark)), None)


def guess_encoding(path: Path, name: str, usual: str | None = None) -> str:
    """The encoding of a file: that of its mark, or else UTF-8 where all its bytes are, or else latin-1 or cp1252.

    Every byte is a sign in latin-1, so that this last guess may be wrong: a warning shows a word that it reads, and the
    key that ends the guess. cp1252 differs from latin-1 in bytes that stand for control signs in latin-1 alone.

    Args:
        name: key and value of the path, for messages.
        usual: the encoding of the run's table. A file of rows that is no UTF-8 is taken to share it; where it does not,
            a warning says so.

    Raises ConfigError for zero bytes without a mark, and for bytes that neither encoding uses.
    """
    if (marked := mark_of(path)) is not None:
        return marked
    found, wide = FileBytes.of(path), usual is not None and python_name(usual).startswith(("utf-16", "utf-32"))
    if found.zeros:
        if usual is not None and wide:
            return usual
        raise ConfigError(
            f"{name} has zero bytes, as UTF-16 without its mark has them: set data.encoding=utf-16-le, or save the "
            "table as CSV in UTF-8"
        )
    if found.utf8:
        if found.word and usual is not None and python_name(usual) != python_name(UTF8):
            line = f"{name} is UTF-8 text, with words such as '{found.word.decode(UTF8, 'replace')}', and the table of "
            warnings.warn(f"{line}the run was {usual}: read as UTF-8", BdlWarning, 2)
        return UTF8
    if usual is not None and not wide and python_name(usual) != python_name(UTF8):
        if not (found.controls and python_name(usual) == python_name("latin-1")):
            return usual
    if found.unused:
        raise ConfigError(
            f"{name} is no UTF-8 text, and neither latin-1 nor cp1252: set data.encoding to its encoding, or save the "
            "table as CSV in UTF-8"
        )
    guess = "cp1252" if found.controls else "latin-1"
    remedy = f"if they are right, data.encoding={guess} says so, or else it names another encoding"
    if usual is not None:
        remedy = f"the table of the run was {usual}; save these rows in UTF-8 if the words are wrong"
    line = f"{name} is no UTF-8 text: read as {guess}, with words such as '{found.word.decode(guess, 'replace')}'"
    warnings.warn(f"{line}; {remedy}", BdlWarning, 2)
    return guess


def warn_of_utf8(path: Path, name: str, encoding: str) -> None:
    """Warn of a file that is said to be of one byte per sign, though its bytes are UTF-8 with several."""
    if mark_of(path) is not None or not (found := FileBytes.of(path)).utf8 or not found.word:
        return
    read, other = (found.word.decode(each, "replace") for each in (encoding, UTF8))
    warnings.warn(
        f"{name} is read as {encoding}, with words such as '{read}', and is UTF-8 text too, with '{other}' in its "
        "place: data.encoding=utf-8 reads the second", BdlWarning, 2,
    )  # fmt: skip


def _decodes(decoder: codecs.IncrementalDecoder, block: bytes, final: bool = False) -> bool:
    try:
        decoder.decode(block, final)
    except UnicodeDecodeError:
        return False
    return True
