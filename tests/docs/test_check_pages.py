"""Tests of `scripts/tools/check_pages.py`: which pages it measures, and that it sees what is too wide."""

import shutil

import pytest
from tools import check_pages

PAGE = "<!doctype html><html><body><div style='width:{width}px'>x</div>{more}</body></html>"


@pytest.mark.parametrize(
    "page, address",
    [
        ("index.md", ""),
        ("verdict.md", "verdict/"),
        ("gallery/README.md", "gallery/"),
        ("gallery/band.md", "gallery/band/"),
    ],
)
def test_a_page_of_docs_has_the_address_that_mkdocs_gives_it(page, address):
    assert check_pages.place(page) == address


@pytest.fixture
def site(tmp_path):
    """Pages of 100 and of 700 pixels, and one with a formula that nothing has set."""
    formula = "<span class='arithmatex'>\\(x\\)</span>"
    for name, page in {"fits": PAGE.format(width=100, more=""), "wide": PAGE.format(width=700, more=""),
                       "formula": PAGE.format(width=100, more=formula)}.items():  # fmt: skip
        (tmp_path / name).mkdir()
        (tmp_path / name / "index.html").write_text(page)
    return tmp_path


def test_pages_are_found_in_the_site(site):
    assert check_pages.pages_of(site) == ["fits/", "formula/", "wide/"]


def test_pages_that_were_not_measured_end_the_run(site, monkeypatch):
    monkeypatch.setattr(check_pages, "measure", lambda *_: [["/fits/", "0", "0"]])
    with pytest.raises(SystemExit, match="2 of 6 pages were measured"):
        check_pages.report("browser", site, 0, check_pages.pages_of(site))


@pytest.mark.slow
@pytest.mark.skipif(
    not any(map(shutil.which, check_pages.BROWSERS)), reason="no browser: .ci/run says that pages are not measured"
)
def test_a_wide_page_and_a_raw_formula_are_seen(site, script):
    status, out, _ = script("tools/check_pages", "--site", str(site))
    assert status == 1
    assert "/wide/ at 390 pixels: 3" in out and "/wide/ at 1280" not in out
    assert "/formula/: 1 formulas are not set" in out and "/fits/" not in out
