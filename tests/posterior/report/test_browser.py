"""Tests of `bdl.posterior.report.page`.

The pages in a headless Chromium: a phone's width holds them, dark mode is dark, and links lead somewhere.
"""

import functools
import html
import json
import re
import shutil
import subprocess

import pytest
import toys
from by_hand import NUMBERS_X, NUMBERS_Y, X, Y
from repeats import slow_where

import bdl
from bdl.contrib.comparison.compare import comparison_page
from bdl.contrib.comparison.compared_runs import ComparedRun
from bdl.contrib.comparison.comparison import compare_runs
from bdl.data import TensorSlices
from bdl.posterior.report.numbers import summarise
from bdl.posterior.report.page import write_page

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs Chromium: apt-get install chromium")
QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--virtual-time-budget=5000",
)  # fmt: skip
WIDTH = 390  # CSS pixels of a common phone
MEASURE = """<script>addEventListener("load", () => {
  const wide = [...document.querySelectorAll("h1, h2, p, dd, figcaption, .words, .checks th, .methods td, .methods th")]
    .filter(e => e.getBoundingClientRect().right > innerWidth + 1).map(e => e.textContent.slice(0, 60));
  const inside = [...document.querySelectorAll("a[href^='#']")];
  const dead = inside.filter(a => !document.querySelector(a.getAttribute("href")));
  const images = [...document.images];
  const found = {
    inner: innerWidth, scroll: document.documentElement.scrollWidth, wide, dead: dead.map(a => a.href),
    links: document.links.length, images: images.length, broken: images.filter(i => !i.naturalWidth).length,
    main: document.querySelector("main").offsetWidth, page: getComputedStyle(document.body).backgroundColor, filter: images.length && getComputedStyle(images[0]).filter,
    smallest: Math.min(...[...document.querySelectorAll("p, td, th, dd")].map(e => parseFloat(getComputedStyle(e).fontSize))),
  };
  parent.document.documentElement.innerHTML = "<pre id=found>" + JSON.stringify(found) + "</pre>";
})</script>"""  # noqa: E501


def measured(folder, text: str, width: int, *flags: str) -> dict:
    """What a browser finds on the page. The page's own policy forbids scripts, so it is taken out of this copy.

    The page stands in a frame, because Chromium's windows have at least 500 pixels.
    """
    without, count = re.subn(r'<meta http-equiv="Content-Security-Policy"[^>]*>', MEASURE, text)
    assert count == 1
    return browsed(folder, without, width, "", "", *flags)


def browsed(folder, text: str, width: int, script: str, onload: str, *flags: str) -> dict:
    """What is found where the page stands in a frame of a page with this script, and has loaded."""
    frame = f'<iframe width="{width}" height="3000" style="border:0" onload="{onload}" srcdoc="{html.escape(text)}">'
    (folder / "page.html").write_text(f"<!DOCTYPE html><html>{script}<body>{frame}</iframe></body></html>")
    command = [BROWSER, *QUIET, f"--user-data-dir={folder / 'profile'}", *flags, "--dump-dom"]
    done = subprocess.run([*command, f"file://{folder / 'page.html'}"], capture_output=True, text=True, timeout=300)
    return json.loads(html.unescape(re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)[1]))


def report_of(folder, posterior: bdl.Posterior, x, y) -> str:
    summary = summarise(posterior, {"test": TensorSlices(x, y), "train": TensorSlices(x, y)})
    facts = {"title": "a-run-whose-name-is-long-and-has-no-space-in-it, seed 0", "runs": "/a/long/path/" * 9}
    write_page(folder / "report.html", posterior, summary, facts, "T = 1\n" + "explained " * 40, None)
    return (folder / "report.html").read_text()


def page_of(name: str, folder, request) -> str:
    if name in ("classes", "weighted"):
        run = request.getfixturevalue("run" if name == "classes" else name)
        return report_of(folder, bdl.Posterior.load(run, toys.plain()), X, Y)
    if name == "numbers":
        numbers, net, _ = request.getfixturevalue("regression")
        return report_of(folder, bdl.Posterior.load(numbers, net), NUMBERS_X, NUMBERS_Y)
    metrics = {"test/bma/nll": 0.2, "test/bma/accuracy": 0.9, "test/bma/ece": 0.02, "test/one_sample/nll": 0.3}
    runs = [
        ComparedRun(folder, f"method-{i}", {"seed": j}, {"sampler.dynamics.friction": lr}, {}, metrics)
        for i in "ab" for lr in (0.1, 0.2) for j in (0, 1)
    ]  # fmt: skip
    return comparison_page(compare_runs(runs, None, same_data=True), folder / "out")


PAGES = ["classes", "weighted", "numbers", "comparison"]


@pytest.fixture(scope="module")
def pages(tmp_path_factory, request):
    """A function that returns a page, which it makes once."""
    return functools.cache(lambda name: page_of(name, tmp_path_factory.mktemp("page"), request))


@pytest.mark.parametrize("name", slow_where(lambda name: name != "classes", PAGES))
def test_a_phone_shows_every_word_without_scrolling_the_page(tmp_path, pages, name):
    found = measured(tmp_path, pages(name), WIDTH)
    assert found["inner"] == WIDTH
    assert found["scroll"] <= WIDTH and found["wide"] == []
    assert found["dead"] == [] and found["broken"] == 0 and found["images"] > 0
    assert found["links"] > 0 or name == "comparison"
    assert found["smallest"] >= 12


@pytest.mark.parametrize("name", slow_where(lambda name: name != "comparison", PAGES))
def test_a_laptop_gives_the_page_its_width(tmp_path, pages, name):
    """The contents take 200 pixels, where there are contents."""
    assert measured(tmp_path, pages(name), 1280)["main"] > 1000


def test_a_trace_zooms_from_a_file_under_the_policy_of_the_page(tmp_path, pages):
    """The buttons and a drag, on the page as it is: its policy lets its own script run, and no other."""
    act = """<script>function act(frame) {
      const figure = frame.contentDocument.querySelector("figure.zoomable"), bar = figure.querySelector(".zoom");
      const texts = () => [...figure.querySelectorAll(".zoomed text")].map(e => e.textContent);
      const says = () => texts().find(text => /^steps /.test(text));
      const found = {start: says() ?? "", buttons: bar.hidden ? 0 : bar.children.length};
      bar.children[0].click();
      const lines = [...figure.querySelectorAll(".zoomed path[stroke-opacity]")];
      Object.assign(found, {lines: lines.length, drawn: lines.filter(p => p.getAttribute("d")).length});
      found.zoomed = says();
      bar.children[4].click();
      const box = figure.querySelector("img").getBoundingClientRect(), area = figure.querySelector(".frame");
      area.setPointerCapture = () => {};
      const at = share => ({clientX: box.left + share * box.width, bubbles: true, pointerType: "mouse"});
      area.dispatchEvent(new PointerEvent("pointerdown", at(0.5)));
      area.dispatchEvent(new PointerEvent("pointerup", at(0.7)));
      found.dragged = says();
      document.documentElement.innerHTML = "<pre id=found>" + JSON.stringify(found) + "</pre>";
    }</script>"""
    foreign = pages("classes").replace("</body>", "<script>document.querySelector('figure').remove()</script></body>")
    found = browsed(tmp_path, foreign, 1200, act, "act(this)")
    assert found["start"] == "" and found["buttons"] == 5
    assert found["lines"] > 0 and found["drawn"] == found["lines"]
    ranges = [[int(n.replace(",", "")) for n in re.findall(r"[\d,]+", found[key])] for key in ("zoomed", "dragged")]
    (a, b), (c, d) = ranges
    assert a < c < d and d - c < b - a  # half of the run, and a fifth of the picture beyond its middle


def test_dark_mode_turns_page_and_pictures(tmp_path, pages):
    light = measured(tmp_path, pages("classes"), 1200, "--blink-settings=preferredColorScheme=1")
    dark = measured(tmp_path, pages("classes"), 1200, "--blink-settings=preferredColorScheme=0")
    brightness = [sum(map(int, re.findall(r"\d+", found["page"])[:3])) for found in (light, dark)]
    assert brightness[0] > 600 and brightness[1] < 150
    assert light["filter"] == "none" and "invert" in dark["filter"]
