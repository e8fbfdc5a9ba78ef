"""A hook of mkdocs: every script of docs/gallery becomes a page, with its picture, and a notebook to download."""

import re
from pathlib import Path
from typing import Any

import jupytext
from mkdocs.structure.files import File, Files

GALLERY = Path(__file__).parents[2] / "docs" / "gallery"
KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}


def on_files(files: Files, config: Any) -> Files:
    for script in sorted(GALLERY.glob("*.py")):
        for suffix, content in (("md", page_of(script)), ("ipynb", notebook_of(script))):
            files.append(File.generated(config, f"gallery/{script.stem}.{suffix}", content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Where the repository is read, a picture of the overview leads to its script; here it leads to its page."""
    if page.file.src_uri != "gallery/README.md":
        return markdown
    return re.sub(r"\]\((\w+)\.py\)", r"](\1.md)", markdown)


def page_of(script: Path) -> str:
    """The page of an example: its first cell, the picture, the other cells, and what the script prints."""
    first, *cells = jupytext.read(script, fmt="py:percent").cells
    title = first.source.partition("\n")[0].lstrip("# ")
    printed = (script.parent / "pictures" / f"{script.stem}.txt").read_text()
    name = script.stem
    parts = [
        first.source,
        f"![{title}](pictures/{name}.png)",
        *(cell.source if cell.cell_type == "markdown" else f"```python\n{cell.source}\n```" for cell in cells),
        f"It prints:\n\n```text\n{printed}```",
        f"Download this page as a [notebook]({name}.ipynb) or as a [script]({name}.py). [All examples](README.md)",
    ]
    return "\n\n".join(parts)


def notebook_of(script: Path) -> str:
    notebook = jupytext.read(script, fmt="py:percent")
    notebook.metadata = {"kernelspec": KERNEL}
    return jupytext.writes(notebook, fmt="ipynb")
