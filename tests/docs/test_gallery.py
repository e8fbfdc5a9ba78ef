"""Tests of gallery.py and gallery_pages.py of `scripts/tools`: every example of docs/gallery runs and has its page."""

import json
import re

import pytest
import yaml
from composing import ROOT
from PIL import Image
from tools import gallery, gallery_pages

EXAMPLES = gallery.examples()
NAV = (ROOT / "mkdocs.yml").read_text().partition("nav:")[2].partition("\nmarkdown_extensions")[0]


def stem(script):
    return script.stem


@pytest.mark.slow
@pytest.mark.parametrize("script", EXAMPLES, ids=stem)
def test_the_example_runs(script):
    drawn = gallery.run(script)
    assert len(drawn.picture) <= gallery.MOST
    assert drawn.printed.strip()


def test_there_are_ten_examples_or_more():
    assert len(EXAMPLES) >= 10


@pytest.mark.parametrize("script", EXAMPLES, ids=stem)
def test_the_committed_picture_is_of_this_script(script):
    """An example that was edited and not run again has a picture with another checksum."""
    picture = script.parent / "pictures" / f"{script.stem}.png"
    assert picture.stat().st_size <= gallery.MOST
    with Image.open(picture) as image:
        drawn_by = image.info["Description"]
    assert drawn_by == gallery.checksum(script), f"run `python scripts/tools/gallery.py {script.stem}`"


@pytest.mark.parametrize("script", EXAMPLES, ids=stem)
def test_the_example_is_in_the_navigation_and_in_the_overview(script):
    assert f"gallery/{script.stem}.md" in [page for part in yaml.safe_load(NAV) for page in pages_below(part)]
    overview = (gallery.GALLERY / "README.md").read_text()
    assert f"]({script.name})" in overview and f"](pictures/{script.stem}.png)" in overview


def pages_below(part):
    if isinstance(part, str):
        return [part]
    return [page for below in (part if isinstance(part, list) else part.values()) for page in pages_below(below)]


@pytest.mark.parametrize("script", EXAMPLES, ids=stem)
def test_page_and_notebook_hold_the_whole_script(script):
    code = [line for line in script.read_text().splitlines() if line and not line.startswith("#")]
    page = gallery_pages.page_of(script)
    notebook = json.loads(gallery_pages.notebook_of(script))
    cells = "\n".join("".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code")
    for shown in (page, cells):
        assert [line for line in code if line not in shown.splitlines()] == []
    assert re.match(r"# \w.*\n\n\w", page), "a page begins with its title and what to look at"
    assert (script.parent / "pictures" / f"{script.stem}.txt").read_text() in page


def test_a_script_that_draws_no_figure_is_refused(tmp_path):
    (tmp_path / "nothing.py").write_text("print(1)\n")
    with pytest.raises(ValueError, match="nothing.py draws 0 figures"):
        gallery.run(tmp_path / "nothing.py")


def test_a_run_returns_what_the_script_draws_and_prints(tmp_path):
    """Progress shows seconds, which differ from run to run."""
    script = tmp_path / "drawn.py"
    script.write_text(
        "import matplotlib.pyplot as plt\nplt.plot([1, 2])\n"
        "print('step 5 of 10, 1 s, 1 s left')\nprint('done')\nplt.show()\n"
    )
    first, second = gallery.run(script), gallery.run(script)
    assert first == second and first.printed == "done\n"
