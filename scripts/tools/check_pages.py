"""Measures in Chromium which pages of the documentation are wider than the window, and photographs them on request.

python scripts/tools/check_pages.py                          # all pages at 1280 and 390 pixels
python scripts/tools/check_pages.py --shots FOLDER index.md gallery/README.md

The exit status is 1 if a page is wider than its window or has a formula that is not set, and 2 without a browser.
"""

import argparse
import functools
import html
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ROOT = Path(__file__).parents[2]
WIDTHS = (1280, 390)  # pixels: a laptop and a telephone
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# A page of its own with one frame for each page of the site, as wide as the window to be measured: a headless window
# itself is 500 pixels wide or more. A script in it compares what a page needs with the frame that it has.
MEASURE = """<!doctype html><body><script>
const results = [];
async function measure(path) {
  const frame = document.createElement("iframe");
  frame.style.cssText = "width:%(width)dpx;height:900px;border:0";
  document.body.append(frame);
  await new Promise(done => { frame.onload = done; frame.src = path; });
  await new Promise(done => setTimeout(done, 300));
  const root = frame.contentDocument.documentElement;
  const formulas = [...frame.contentDocument.querySelectorAll(".arithmatex")];
  const raw = formulas.filter(f => !f.querySelector(".katex") || f.querySelector(".katex-error")).length;
  results.push([path, root.scrollWidth - frame.contentWindow.innerWidth, raw].join("\\t"));
  frame.remove();
}
(async () => {
  for (const path of %(paths)s) await measure(path);
  document.title = "measured";
  document.body.innerText = results.join("\\n");
})();
</script></body>"""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--site", type=Path, help="a site that mkdocs has built; without it, one is built")
    parser.add_argument("--shots", type=Path, help="photograph the named pages into this folder, light and dark")
    parser.add_argument("pages", nargs="*", help="pages of docs/; all of them without a name")
    options = parser.parse_args()
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        print(f"the pages are not measured: none of {', '.join(BROWSERS)} is installed", file=sys.stderr)
        sys.exit(2)
    with tempfile.TemporaryDirectory() as folder:
        site = options.site or build(Path(folder, "site"))
        served = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
        threading.Thread(target=served.serve_forever, daemon=True).start()
        try:
            pages = [place(page) for page in options.pages] or pages_of(site)
            if options.shots:
                photograph(browser, served.server_port, pages, options.shots)
            else:
                sys.exit(report(browser, site, served.server_port, pages))
        finally:
            served.shutdown()


def build(site: Path) -> Path:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(site)]
    subprocess.run(command, cwd=ROOT, check=True)
    return site


def place(page: str) -> str:
    """The address of a page of docs/ on the site: `gallery/band.md` is `gallery/band/`."""
    return re.sub(r"(^|/)(index|README)/$", r"\1", page.removesuffix(".md") + "/")


def pages_of(site: Path) -> list[str]:
    return sorted(path.parent.relative_to(site).as_posix() + "/" for path in site.rglob("index.html"))


def report(browser: str, site: Path, port: int, pages: Sequence[str]) -> int:
    """Print each page that is wider than its window, or has a formula that is not set. Returns 1 if there is one."""
    faults, measured = 0, 0
    for width in WIDTHS:
        for page, wider, raw in measure(browser, site, port, pages, width):
            measured += 1
            if int(wider) > 0:
                print(f"{page} at {width} pixels: {wider} pixels too wide")
            if int(raw) > 0:
                print(f"{page}: {raw} formulas are not set")
            faults += int(wider) > 0 or int(raw) > 0
    if measured != len(pages) * len(WIDTHS):
        sys.exit(
            f"{measured} of {len(pages) * len(WIDTHS)} pages were measured: the browser ended before all were loaded"
        )
    print(f"{len(pages)} pages at {' and '.join(map(str, WIDTHS))} pixels, {faults} faults")
    return int(faults > 0)


def measure(browser: str, site: Path, port: int, pages: Sequence[str], width: int) -> list[list[str]]:
    """(page, pixels that it is wider than its window, formulas that are not set) of each page."""
    paths = [f"/{page}" for page in pages]
    scratch = site / "measure.html"
    scratch.write_text(MEASURE % {"width": width, "paths": paths})
    try:
        dumped = run(browser, "--virtual-time-budget=600000", "--dump-dom", f"http://127.0.0.1:{port}/{scratch.name}")
    finally:
        scratch.unlink()
    body = re.search(r"<body>(.*)</body>", dumped, re.S)
    lines = html.unescape(re.sub(r"<br ?/?>", "\n", body[1] if body else "")).splitlines()
    return [parts for line in lines if len(parts := line.strip().split("\t")) == 3]


def photograph(browser: str, port: int, pages: Sequence[str], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for page in pages:
        for scheme in ("light", "dark"):
            for width in WIDTHS:
                picture = folder / f"{page.strip('/').replace('/', '-') or 'index'}-{width}-{scheme}.png"
                dark = ["--blink-settings=preferredColorScheme=0"] if scheme == "dark" else []
                shot = [f"--screenshot={picture}", f"--window-size={width},1400", "--virtual-time-budget=5000"]
                run(browser, *dark, *shot, f"http://127.0.0.1:{port}/{page}")
                print(picture)


def run(browser: str, *arguments: str) -> str:
    with tempfile.TemporaryDirectory() as profile:
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        command = [browser, "--headless", *sandbox, "--disable-gpu", f"--user-data-dir={profile}", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout


if __name__ == "__main__":
    main()
