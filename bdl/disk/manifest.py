"""The manifests of a run: what every file was when it was written, a line for each, chained by hashes.

`manifest.jsonl` lists the files of the whole run, and `manifest-<stack>.jsonl` the files of one stack of chains. Each
has one writer at a time, so that no line needs a lock, over NFS neither. A later line for a path replaces an earlier
one.
"""

from __future__ import annotations  # the field `bytes` hides the type of that name

import hashlib
import json
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Self, TypeVar

from bdl.disk.files import (
    append_line,
    disk_errors,
    move_into_place,
    open_regular,
    parse_json,
    read_file,
    refuse_links,
    temporary_file,
    write_atomically,
)
from bdl.errors import BdlWarning, StoreError

T = TypeVar("T")
SAMPLE = "sample"  # the kind of a sample file
SHARED = ("target", "frozen")  # kinds of files that all stacks list
_NAME = re.compile(r"manifest(-(0|[1-9]\d*))?\.jsonl")


@dataclass(frozen=True)
class Entry:
    """One line of a manifest. `hash` is the sha256 of the line with the hash of the line before in its place."""

    path: str  # relative to the folder of the manifest
    kind: str
    bytes: int
    sha256: str
    line: str | None  # the sha256 of a sample's line in the index
    hash: str

    def after(self, before: str) -> Self:
        """The entry in the place that follows the hash `before`."""
        return replace(self, hash=digest(replace(self, hash=before).text()))

    def text(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    def is_plain(self) -> bool:
        """Whether the values have their types, and the path stays in the folder. A stranger may have written them."""
        path = PurePosixPath(self.path)
        texts = all(isinstance(text, str) for text in (self.kind, self.sha256, self.line or ""))
        return texts and type(self.bytes) is int and not path.is_absolute() and ".." not in path.parts


class Manifest:
    """The manifest of a stack, or of the whole run. It is read again only when the file has changed.

    skip_bad: read a damaged manifest up to the first damaged line, with a warning. What follows cannot be trusted.
    """

    def __init__(self, folder: str | Path, stack: int | None = None, skip_bad: bool = False):
        self.folder, self.stack, self.skip_bad = Path(folder), stack, skip_bad
        self.path = self.folder / ("manifest.jsonl" if stack is None else f"manifest-{stack}.jsonl")
        self._version: tuple[int, int, int] | None = None  # inode, size and time of the file as it was read
        self._entries: list[Entry] = []
        self._whole, self._warned = True, False

    def entries(self) -> list[Entry]:
        """All lines, but for a last line that was cut short. Raises StoreError for a damaged line unless skip_bad."""
        entries = self.first_entries()
        fault = f"line {len(entries) + 1} of {self.path} is damaged, or a line before it was lost"
        if not self._whole and not self.skip_bad:
            raise StoreError(
                f"{fault}: restore it, or give the command of the run in another folder, where it draws the same "
                "samples; skip_bad=true uses the lines before it"
            )
        if not self._whole and not self._warned:
            self._warned = True
            warnings.warn(f"left out: {fault}; nothing that follows is used", BdlWarning, stacklevel=2)
        return entries

    def first_entries(self) -> list[Entry]:
        """The lines before the first damaged one."""
        version = self._present_version()
        if version is None and self._entries:
            raise StoreError(f"{self.path} is gone: its folder was moved or removed while a process wrote to it")
        if version != self._version or version is None:
            *lines, _ = (b"" if version is None else _read(self.path)).split(b"\n")
            self._entries = list(_entries(lines, self.path.name))
            self._whole, self._version = len(self._entries) == len(lines), version
        return self._entries

    def samples(self) -> list[Entry]:
        return [entry for entry in self.entries() if entry.kind == SAMPLE]

    def last_hash(self) -> str:
        """The hash that stands for all lines: a checkpoint knows its samples by it."""
        entries = self.entries()
        return entries[-1].hash if entries else self.path.name

    def versions(self, path: str) -> list[Entry]:
        """The last line of a file, and the one before: a writer that is killed before its rename leaves the file so."""
        return [entry for entry in self.entries() if entry.path == path][-2:]

    def add(self, path: str, kind: str, size: int, sha256: str, line: str | None = None) -> None:
        """Write the line of a file. Raises StoreError if the disk is full or not writable."""
        entry = Entry(path, kind, size, sha256, line, "").after(self.last_hash())
        append_line(self.path, entry.text())
        self._entries.append(entry)
        self._version = self._present_version()

    def write(self, path: str, kind: str, *parts: bytes | memoryview) -> None:
        """Replace a file by the parts, one after the other. Its line is written before it gets its name.

        Raises StoreError as `add` does.
        """
        place, sha256 = self.folder / path, digest(*parts)
        refuse_links(*(self.folder / part for part in PurePosixPath(path).parents if part.name))
        versions = self.versions(path)
        with disk_errors(place):
            if versions and versions[-1].sha256 == sha256 and place.is_file() and file_digest(place) == sha256:
                return
            place.parent.mkdir(parents=True, exist_ok=True)
            with temporary_file(place.parent, *parts) as written:
                if not versions or versions[-1].sha256 != sha256:
                    self.add(path, kind, sum(map(len, parts)), sha256)
                move_into_place(written, place)

    def cut(self, count: int) -> None:
        """Keep the first lines, and remove the files of the stack that only later lines list. Damaged lines go too."""
        entries = self.first_entries()
        stay = {entry.path for entry in entries[:count]}
        for entry in entries[count:]:
            if entry.path not in stay and entry.kind not in SHARED:
                (self.folder / entry.path).unlink(missing_ok=True)
        data = b"".join(entry.text() for entry in entries[:count])
        if not data:
            self.path.unlink(missing_ok=True)
        elif read_file(self.path) != data:
            write_atomically(self.path, data)
        self._version, self._entries = None, []

    def _present_version(self) -> tuple[int, int, int] | None:
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_size, status.st_mtime_ns


def manifests_of(folder: Path) -> list[Manifest]:
    """The manifests in a folder: of the whole run, then of every stack. A copy under another name does not count."""
    named = [name for path in folder.glob("manifest*.jsonl") if (name := _NAME.fullmatch(path.name))]
    stacks = sorted(int(name[2]) for name in named if name[2])
    return [Manifest(folder, stack) for stack in ([None] if len(stacks) < len(named) else []) + stacks]


def read_listed(manifests: Sequence[Manifest], path: str) -> bytes | None:
    """The bytes of a file; None where no manifest lists it. Raises StoreError if it is lost or altered."""
    return checked_file(manifests, path, _with_digest)


def check_listed(manifests: Sequence[Manifest], path: str) -> None:
    """Raise StoreError if a file that a manifest lists is lost or altered. A large one is never whole in memory."""
    checked_file(manifests, path, lambda place: (None, file_digest(place)))


def checked_file(manifests: Sequence[Manifest], path: str, read: Callable[[Path], tuple[T, str]]) -> T | None:
    """What `read` makes of a file, which returns it with the file's sha256; None where no manifest lists the file.

    Raises StoreError if the file is lost or altered.
    """
    listed = [(manifest, entry) for manifest in manifests for entry in manifest.versions(path)]
    if not listed:
        return None
    place, manifest = listed[0][0].folder / path, listed[0][0].path
    try:
        content, sha256 = read(place)
    except StoreError:  # an OSError too, with its own words
        raise
    except OSError as error:
        raise _unreadable(place, error) from error
    if sha256 not in {entry.sha256 for _, entry in listed}:
        raise StoreError(f"{place} was altered: its sha256 is not that of {manifest}; restore it")
    return content


def write_listed(path: Path, data: bytes) -> None:
    """Write a file, and its line where its folder is a run directory. Raises StoreError as `Manifest.add` does."""
    if manifests_of(path.parent):
        Manifest(path.parent).write(path.name, path.stem, data)
    else:
        write_atomically(path, data)


def _read(path: Path) -> bytes:
    try:
        return read_file(path)
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> StoreError:
    return StoreError(f"{path} cannot be read ({error.strerror}): restore it")


def _with_digest(path: Path) -> tuple[bytes, str]:
    data = read_file(path)
    return data, digest(data)


def _entries(lines: Iterable[bytes], before: str) -> Iterator[Entry]:
    """The lines up to the first that is damaged, or does not follow from the lines before it and the hash `before`."""
    for line in lines:
        try:
            entry = Entry(**parse_json(line))
            follows = entry.is_plain() and entry.after(before) == entry and entry.text() == line + b"\n"
        except (ValueError, TypeError):
            return
        if not follows:
            return
        yield entry
        before = entry.hash


def digest(*parts: bytes | memoryview) -> str:
    """The sha256 of a content, which may be given in parts."""
    sha256 = hashlib.sha256()
    for part in parts:
        sha256.update(part)
    return sha256.hexdigest()


def file_digest(path: Path) -> str:
    """The sha256 of a regular file, which is read a piece at a time. Raises OSError."""
    with open_regular(path) as f:
        return rest_digest(f)


def rest_digest(file: BinaryIO) -> str:
    """The sha256 of what is left to read of an open file, which is read a piece at a time."""
    typed: Any = file  # more narrowly than hashlib asks for
    return hashlib.file_digest(typed, "sha256").hexdigest()
