"""Runs the examples of docs/gallery; writes the picture that each draws and the lines that it prints.

python scripts/tools/gallery.py [NAME ...]    # all of them without a name
"""

import contextlib
import hashlib
import io
import os
import re
import runpy
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from PIL import Image
from PIL.PngImagePlugin import PngInfo

GALLERY = Path(__file__).parents[2] / "docs" / "gallery"
MOST = 100_000  # bytes of a picture
PROGRESS = re.compile(r"^(step [\d,]+ of|evaluating:) .*\n", re.M)  # it shows seconds, which no page needs
COLUMNS = "100"  # of the terminal that the examples print to


@dataclass(frozen=True)
class Drawn:
    """What an example leaves: its picture, a PNG with the checksum of the script, and the lines that it prints."""

    picture: bytes
    printed: str


def examples() -> list[Path]:
    return sorted(GALLERY.glob("*.py"))


def checksum(script: Path) -> str:
    """Of the code: a picture does not age when prose or comments change."""
    code = [line for line in script.read_text().splitlines() if line and not line.lstrip().startswith("#")]
    return hashlib.sha256("\n".join(code).encode()).hexdigest()


def run(script: Path) -> Drawn:
    """Run an example in an empty folder, in this process. Raises ValueError unless it draws one figure."""
    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    plt.close("all")
    printed = io.StringIO()
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = COLUMNS
    try:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), contextlib.redirect_stdout(printed):
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "FigureCanvasAgg is non-interactive")
                runpy.run_path(str(script), run_name="__main__")
    finally:
        os.environ.pop("COLUMNS") if before is None else os.environ.__setitem__("COLUMNS", before)
    figures = plt.get_fignums()
    if len(figures) != 1:
        raise ValueError(f"{script.name} draws {len(figures)} figures: a page shows one")
    picture = as_png(plt.figure(figures[0]), checksum(script))
    plt.close("all")
    return Drawn(picture, PROGRESS.sub("", printed.getvalue()))


def as_png(figure: Figure, description: str) -> bytes:
    """A PNG of at most 256 colours, which takes a third of the bytes."""
    drawn, picture, text = io.BytesIO(), io.BytesIO(), PngInfo()
    figure.savefig(drawn, format="png", dpi=110)
    text.add_text("Description", description)
    with Image.open(drawn) as image:
        image.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(picture, "png", optimize=True, pnginfo=text)
    return picture.getvalue()


def main() -> None:
    chosen = [GALLERY / f"{name}.py" for name in sys.argv[1:]] or examples()
    for script in chosen:
        drawn = run(script)
        if len(drawn.picture) > MOST:
            sys.exit(f"{script.name}: the picture has {len(drawn.picture):,} bytes, more than {MOST:,}")
        picture = GALLERY / "pictures" / f"{script.stem}.png"
        picture.write_bytes(drawn.picture)
        picture.with_suffix(".txt").write_text(drawn.printed)
        print(picture)


if __name__ == "__main__":
    main()
