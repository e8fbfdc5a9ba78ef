"""Manifests as a stranger may write them: any lines, chained as they should be."""

from collections.abc import Iterable

from bdl.disk.manifest import Entry, Manifest


def rewrite(manifest: Manifest, entries: Iterable[Entry]) -> None:
    """Write these lines in place of all."""
    entries = list(entries)
    manifest.path.unlink(missing_ok=True)
    new = Manifest(manifest.folder, manifest.stack)
    for entry in entries:
        new.add(entry.path, entry.kind, entry.bytes, entry.sha256, entry.line)
