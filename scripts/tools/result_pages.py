"""A hook of mkdocs: pictures and tables of scripts/results become pages of the site, for the pages that show them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

RESULTS = Path(__file__).parents[1] / "results"
SHOWN = (
    "reproduce/*/table.md", "reproduce/*/*.png", "leaderboard/leaderboard.md", "leaderboard/leaderboard.png",
    "tables_comparison/ranks.md", "tables_comparison/ranks.png",
)  # fmt: skip
PAGES = {  # folder of the results that a page shows
    "literature.md": "reproduce/", "samplers.md": "leaderboard/", "tables-comparison.md": "tables_comparison/",
}  # fmt: skip


def on_files(files: Files, config: Any) -> Files:
    """Each experiment's table.md, the leaderboard's, and the pictures that they show."""
    for path in sorted(path for pattern in SHOWN for path in RESULTS.glob(pattern)):
        place = path.relative_to(RESULTS).as_posix()
        files.append(File.generated(config, place, abs_src_path=str(path), inclusion=InclusionLevel.NOT_IN_NAV))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links that lead to scripts/results where the repository is read lead to the pages of the site."""
    folder = PAGES.get(page.file.src_uri)
    return markdown.replace(f"](../scripts/results/{folder}", f"]({folder}") if folder else markdown


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """The literature has some megabytes of pictures: a browser fetches those that are seen."""
    return html.replace("<img ", '<img loading="lazy" ') if page.file.src_uri in PAGES else html
