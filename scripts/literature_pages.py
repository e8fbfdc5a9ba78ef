"""A hook of mkdocs: the pictures and tables in scripts/results/reproduce become pages behind docs/literature.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

RESULTS = Path(__file__).parent / "results" / "reproduce"
IN_THE_REPOSITORY, ON_THE_SITE = "../scripts/results/reproduce/", "reproduce/"


def on_files(files: Files, config: Any) -> Files:
    """Each experiment's table.md and the pictures that it shows."""
    for path in sorted([*RESULTS.glob("*/table.md"), *RESULTS.glob("*/*.png")]):
        place = ON_THE_SITE + path.relative_to(RESULTS).as_posix()
        files.append(File.generated(config, place, abs_src_path=str(path), inclusion=InclusionLevel.NOT_IN_NAV))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links that lead to scripts/results where the repository is read lead to the pages of the site."""
    return markdown.replace(f"]({IN_THE_REPOSITORY}", f"]({ON_THE_SITE}") if of_literature(page) else markdown


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """The page has some megabytes of pictures: a browser fetches those that are seen."""
    return html.replace("<img ", '<img loading="lazy" ') if of_literature(page) else html


def of_literature(page: Any) -> bool:
    return page.file.src_uri == "literature.md"
