"""Where results lie, what a result says of its origin, and how it is written: numbers as JSON, tables as Markdown.

The package bdl is imported where it is needed, so that an interpreter without it can measure another library.
"""

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).parents[1]
ROOT = SCRIPTS.parent
RESULTS = SCRIPTS / "results"
TABLES = RESULTS / "tables"


def about() -> dict[str, Any]:
    """Version, machine and date, which every result says."""
    import bdl
    from bdl.run.machine import device_name

    return {"bdl": bdl.__version__, "device": device_name(), "date": date.today().isoformat()}


def origin(record: Mapping[str, Any], where: str = "one core of") -> str:
    """The same in words, for the line above a table."""
    return f"bdl {record['bdl']}, {where} {record['device']}, {record['date']}"


def read(path: Path, **empty: Any) -> dict[str, Any]:
    """What an earlier run left in a file; `empty` where there is none."""
    return json.loads(path.read_text()) if path.exists() else empty


def save(path: Path, record: Mapping[str, Any], text: str | None = None) -> None:
    """Write the numbers as JSON, and a text with their tables as Markdown beside them."""
    from bdl.disk.files import write_atomically

    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (json.dumps(record, indent=1) + "\n").encode())
    if text is not None:
        write_atomically(path.with_suffix(".md"), text.encode())


def save_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write numpy's arrays as a compressed file .npz."""
    import numpy as np

    from bdl.disk.files import write_atomically

    file = io.BytesIO()
    np.savez_compressed(file, allow_pickle=False, **arrays)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, file.getvalue())


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table, with the end of its last line."""
    return "".join(f"| {' | '.join(line)} |\n" for line in (head, ["---"] * len(head), *rows))
