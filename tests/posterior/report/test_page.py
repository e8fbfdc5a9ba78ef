"""Tests of `bdl.posterior.report.page`, `.figures` and `.pictures`.

The report page: complete, self-contained, escaped, and readable when little is known.
"""

import base64
import hashlib
import html
import math
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
import toys
from by_hand import X, Y
from matplotlib.figure import Figure

import bdl
from bdl.data import TensorSlices
from bdl.errors import StoreError
from bdl.posterior.diagnostics import convergence_rows
from bdl.posterior.energy_histogram import EnergyHistogram
from bdl.posterior.evaluation import Curve
from bdl.posterior.report.figures import schedule_figure
from bdl.posterior.report.numbers import AVERAGES, summarise
from bdl.posterior.report.page import page, write_page
from bdl.posterior.report.pictures import ReportData, pictures_of

ATTACK = "<script>alert(1)</script>\"'&"
VOID = {"meta", "img", "br"}  # tags without an end tag


class Reader(HTMLParser):
    """Checks that tags are balanced and collects what a browser would load."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.within: list[str] = []  # links to a place on the page
        self.ids: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        links = [v or "" for k, v in attrs if k in ("src", "href", "srcset", "data", "action")]
        self.links += [v for v in links if not v.startswith("#")]
        self.within += [v for v in links if v.startswith("#")]
        self.ids += [v or "" for k, v in attrs if k == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def data() -> ReportData:
    rng, steps, chains = np.random.default_rng(0), np.arange(0, 3000, 3), 3
    probs = torch.randn(300, 4, generator=torch.Generator().manual_seed(0)).softmax(-1)
    metrics = {
        f"{split}/{row}/{score}": value
        for split in ("test", "train")
        for row in AVERAGES
        for score, value in {"accuracy": 0.91, "nll": 0.25, "ece": 0.02, "brier": 0.13}.items()
    }
    metrics["test/constant/nll"] = 1.6
    error = {"mcse/most": 0.01, "mcse/worst": 0.03}
    chain = {"samples": 600, "chains": 4, "temperature": 1.0, "t_eff": 1.2, "noise_ratio": 0.2, "weight_ess": 310.0}
    return ReportData(
        title="landsat",
        facts={"data": "landsat", "N": "4,435"},
        explain="intended law: exp(-U/T)\nT = 1 < 2",
        metrics=metrics
        | chain
        | error
        | {"rhat/max": 1.02, "ess/min": 340.0, "ess/within": 340.0, "kinetic_temperature": math.nan},
        trace={
            "step": steps,
            "energy": rng.normal(size=(len(steps), chains)),
            "lr": np.full(len(steps), 0.1),
            "temperature": np.where(steps < 300, 0.0, 1.0),
            "t_eff": np.full((len(steps), chains), np.nan),
            "multiplier": 1 + rng.random((len(steps), chains)),
        },
        kept_steps=np.arange(1000, 3000, 100),
        histogram=EnergyHistogram(
            np.linspace(-4, 4, 21), np.linspace(-5, 0, 20), rng.normal(size=500), 1.0, 1.0, "full", True
        ),
        reliability={"one sample": (probs, probs.argmax(1)), "average of all chains": (probs, probs.argmin(1))},
        curve=Curve([3, 6, 9], [0.8, 0.85, 0.86], [0.5, 0.4, 0.39], [0.8, 0.82, 0.83], [0.5, 0.45, 0.44]),
        convergence=convergence_rows({"energy": rng.normal(size=(3, 20)), "constant": np.ones((3, 20))}),
    )


@pytest.fixture(scope="module")
def text(data) -> str:
    return page(data)


def test_the_page_loads_nothing(text):
    reader = Reader(text)
    assert len(reader.links) == 5 and all(link.startswith("data:image/svg+xml;base64,") for link in reader.links)
    assert not {"link", "iframe", "object"} & set(reader.tags)
    scripts = re.findall(r"<script([^>]*)>(.*?)</script>", text, re.DOTALL)
    assert [kind for kind, _ in scripts] == [' type="application/json"'] * 2 + [""]
    allowed = base64.b64encode(hashlib.sha256(scripts[-1][1].encode()).digest()).decode()
    assert f"script-src 'sha256-{allowed}'\">" in text  # no other script runs
    assert not re.search(r"https?://|@import|url\(", text)


def test_pictures_are_whole_svgs_that_load_nothing(text):
    from xml.etree import ElementTree

    for link in Reader(text).links:
        tree = ElementTree.fromstring(base64.b64decode(link.split(",")[1]))
        assert tree.tag.endswith("svg")
        links = [v for e in tree.iter() for k, v in e.attrib.items() if k.endswith("href")]
        assert all(v.startswith(("#", "data:image/png;base64,")) for v in links)


def test_checks_lead_to_section_that_shows_what_they_are_about(text):
    reader = Reader(text)
    assert len(set(reader.ids)) == len(reader.ids)
    assert {link[1:] for link in reader.within} <= set(reader.ids)
    for check, place in (("R-hat (largest)", "convergence"), ("Calibration error (ECE)", "reliability")):
        assert f'<a href="#{place}">{check}</a>' in text
    alone = page(ReportData("t", metrics={"test/bma/ece": 0.1}))  # no reliability diagram: the table has the number
    assert '<a href="#predictions">Calibration error (ECE)</a>' in alone


def test_no_picture_is_an_empty_frame():
    nothing = {
        "trace": {"step": np.arange(5), "energy": np.full((5, 2), np.nan), "t_eff": np.full((5, 2), np.nan)},
        "curve": Curve([1], [0.5], [0.7]),
        "reliability": {"few": (torch.tensor([[0.9, 0.1]]), torch.tensor([1]))},
    }
    assert pictures_of(ReportData("t", **nothing)) == []
    trace = {"step": np.arange(5), "lr": np.ones(5), "t_eff": np.full((5, 2), np.nan)}
    assert len(schedule_figure({k: np.asarray(v) for k, v in trace.items()}).axes) == 1  # lr alone, no frame for T_eff


def test_rows_and_pictures_of_constants_are_left_out():
    still = {"step": np.arange(9), "energy": np.ones(9), "lr": np.ones(9), "multiplier": np.ones((9, 2))}
    assert pictures_of(ReportData("t", trace=still)) == []
    hot = {"t_eff": np.linspace(2, 3, 9), "temperature": np.ones(9)}
    (one,) = pictures_of(ReportData("t", trace=still | hot))
    assert one.title == "Temperature" and len(one.draw(*one.arguments).axes) == 1
    (both,) = pictures_of(ReportData("t", trace=still | hot | {"lr": np.linspace(1, 2, 9)}))
    assert both.title == "Learning rate and temperature" and len(both.draw(*both.arguments).axes) == 2


def test_a_picture_says_what_to_look_for_and_its_worst_check(data):
    level, rises = (page(replace(data, metrics={**data.metrics, **energy})) for energy in (
        {"ess/energy": 900.0, "energy/drift": 0.01, "energy/drift_t": 0.3},
        {"ess/energy": 22.0, "energy/drift": 1.35, "energy/drift_t": 9.0},
    ))  # fmt: skip
    for text, mark in ((level, "ok"), (rises, "look")):
        section = text[text.index('<section id="energy"') :]
        assert (
            section.index("Each line is a chain.")
            < section.index(f'<span class="mark {mark}">')
            < section.index("<img")
        )


def test_names_every_row_and_shows_every_kind_of_number(text):
    for name in (*AVERAGES.values(), "error %", "NLL (nats)", "ECE", "Brier", "9.00", "0.2500", "4,435", "noise_ratio"):
        assert name in html.unescape(text)
    assert "You can trust these samples" in text
    differ = "predicted probabilities differ between runs by ± 0.01 or less at 9 of 10 items, ± 0.03 at the worst"
    assert f"<b>yes</b>: {differ}".replace("± ", "±\N{NO-BREAK SPACE}") in text  # no line ends between them


def test_weighted_row_is_left_out_where_there_are_no_weights(data):
    plain = {k: v for k, v in data.metrics.items() if "weight" not in k}
    text = html.unescape(page(ReportData("t", metrics=plain)))
    assert AVERAGES["bma_weighted"] not in text and AVERAGES["bma"] in text


def test_the_best_number_of_a_column_is_bold():
    nll = {"one_sample": 0.3, "chain_bma": 0.2, "bma": math.nan}
    text = page(ReportData("t", metrics={f"test/{row}/nll": v for row, v in nll.items()}))
    assert re.findall(r'class="number test best">([^<]+)<', text) == ["0.2000"]


def test_a_worse_number_changes_the_headline(data):
    def with_numbers(**changes: float) -> str:
        return page(ReportData("t", metrics={**data.metrics, **{k.replace("__", "/"): v for k, v in changes.items()}}))

    alike, apart = with_numbers(rhat__max=1.6, ess__min=7.0), with_numbers(rhat__max=1.6, ess__min=7.0, mcse__most=0.05)
    assert "<h2>An ensemble over modes</h2>" in alike and "<b>no</b>: an ensemble over modes: another run" in alike
    assert (
        "<h2>An ensemble over modes</h2>" in apart
        and "<b>no</b>: an ensemble over modes: predicted probabilities differ between runs by" in apart
    )
    lights = [re.findall(r'<p><span class="mark (\w+)">', text) for text in (with_numbers(), alike, apart)]
    assert lights == [["ok", "ok"], ["ok", "look"], ["look", "look"]]
    assert re.search("Not settled: .*Warnings", page(ReportData("t", metrics=data.metrics, warnings=["clipped"])))


def test_text_of_users_is_escaped(data):
    hostile = ReportData(
        ATTACK,
        {ATTACK: ATTACK},
        ATTACK,
        {ATTACK: 1.0},
        convergence=convergence_rows({ATTACK: np.ones((2, 5))}),
        warnings=[ATTACK],
    )
    text = page(hostile)
    assert "<script>alert" not in text and text.count("&lt;script&gt;alert(1)&lt;/script&gt;&#34;&#39;&amp;") == 9
    Reader(text)


def test_everything_optional_absent():
    reader = Reader(page(ReportData("empty")))
    assert not reader.links and "h1" in reader.tags


def test_numbers_that_are_nan_or_null_are_dashes():
    text = page(ReportData("t", metrics={"test/bma/nll": math.nan, "test/bma/ece": 0.1, "rhat/max": None}))  # type: ignore
    assert "–" in text and "nan" not in text.lower().replace("nll (nats)", "")


@pytest.mark.parametrize(
    "change",
    [
        {"histogram": EnergyHistogram(np.linspace(0, 1, 11), np.zeros(10), np.ones(0), 2.0, 1.0, cumulative=False)},
        {"trace": {"step": np.arange(5), "energy": np.full(5, np.nan)}},
        {"trace": {"step": np.arange(5), "energy": np.ones(5), "kinetic_temperature": np.ones((5, 2))}},
        {"trace": {"step": np.arange(0), "energy": np.ones((0, 2))}},
        {"trace": {"step": torch.arange(9), "energy": torch.ones(9, 40)}},
        {"curve": Curve([1], [0.5], [0.7])},
        {"reliability": {"few": (torch.tensor([[0.9, 0.1]]), torch.tensor([1]))}},
    ],
)
def test_a_page_of_every_state_of_a_run(change, recwarn):
    Reader(page(replace(ReportData("t"), **change)))
    assert not [str(w) for w in recwarn.list]


def test_the_same_data_give_the_same_bytes(data, text):
    assert page(data) == text


@pytest.fixture
def summary_of(posterior):
    return summarise(posterior, {"test": TensorSlices(X, Y)})


def test_the_page_of_a_posterior(tmp_path, posterior, summary_of):
    trace = {"step": torch.arange(16), "energy": torch.randn(16, 2), "lr": torch.linspace(0.2, 0.1, 16)}
    facts = {"title": "toy run", "N": "40"}
    write_page(tmp_path / "report.html", posterior, summary_of, facts, "T = 1", trace)
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]
    text = (tmp_path / "report.html").read_text()
    titles = re.findall(r"<h2>([^<]+)</h2>", text)[1:]
    assert titles == [
        "Checks", "What was sampled", "Predictions", "Classes", "Energy", "Learning rate",
        "Accuracy and NLL against the number of networks", "Reliability", "Convergence", "All numbers",
        "What the sampler does",
    ]  # fmt: skip
    assert "<h1>toy run</h1>" in text and "<dt>N</dt><dd>40</dd>" in text and "title</dt>" not in text
    assert "<pre>T = 1</pre>" in text and f"{summary_of.metrics['test/bma/nll']:.4f}" in text


def test_without_a_trace_the_page_shows_energies_of_kept_samples(tmp_path, posterior, summary_of):
    write_page(tmp_path / "report.html", posterior, summary_of, {}, "", None)
    text = (tmp_path / "report.html").read_text()
    assert "<h2>Energy</h2>" in text and "<h2>Learning rate" not in text
    assert f"<h1>{tmp_path.name}</h1>" in text


def test_the_page_of_a_weighted_run_shows_its_histogram(tmp_path, weighted):
    posterior = bdl.Posterior.load(weighted, toys.plain())
    summary = summarise(posterior, {"test": TensorSlices(X, Y)})
    write_page(tmp_path / "report.html", posterior, summary, {}, "", None)
    text = (tmp_path / "report.html").read_text()
    assert "Energy histogram and weighting" in text and "zeta = 2, T = 1; psi has settled and is frozen" in text


def test_a_disk_that_refuses_is_a_clear_error(tmp_path, posterior, summary_of, monkeypatch):
    monkeypatch.setattr(Figure, "savefig", lambda *_, **__: None)  # nobody looks at the page
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="cannot write"):
        write_page(tmp_path / "file" / "report.html", posterior, summary_of, {}, "", None)
    assert (tmp_path / "file").read_text() == "in the way"
