"""A hook of mkdocs: pictures and tables of scripts/results become pages of the site, for the pages that show them."""

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

RESULTS = Path(__file__).parents[1] / "results"
SHOWN = (
    "reproduce/*/table.md", "reproduce/*/*.png", "leaderboard/leaderboard.*", "tables_comparison/ranks*",
    "explore/explore.*", "verdict.md", "landsat.png", "tables/*candidates.md",
)  # fmt: skip
SITE = "numbers/"  # their folder on the site
REPOSITORY = "](../scripts/results/"  # how a page of docs/ links to them


def on_files(files: Files, config: Any) -> Files:
    """Each experiment's tables, and the pictures that they and the pages show."""
    found = sorted(path for pattern in SHOWN for path in RESULTS.glob(pattern) if path.suffix in (".md", ".png"))
    for path in found:
        place = SITE + path.relative_to(RESULTS).as_posix()
        files.append(File.generated(config, place, abs_src_path=str(path), inclusion=InclusionLevel.NOT_IN_NAV))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links that lead to scripts/results where the repository is read lead to the pages of the site."""
    return markdown.replace(REPOSITORY, f"]({SITE}")


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """The literature has some megabytes of pictures: a browser fetches those that are seen."""
    return html.replace("<img ", '<img loading="lazy" ') if f"]({SITE}" in page.markdown else html
